//! Source manifests: exactly one connector, and a schedule that can be kept.

use std::str::FromStr;

use super::Check;
use super::draft::Draft;
use crate::manifest::Spec;
use crate::manifest::connector::interval::{EVERY_MS_MIN, Interval};
use crate::manifest::problem::{Code, Problem};

impl Check<'_> {
    pub(super) fn check_sources(&mut self) {
        let mut found = Vec::new();
        for (at, draft) in self.drafts.iter().enumerate() {
            let Some(Spec::Source(source)) = draft.manifest.as_ref().map(|manifest| &manifest.spec) else { continue };
            let mut report = |problem| found.push((at, problem));
            match &source.interval {
                None => {
                    let problem = Problem::error(Code::ExactlyOne, draft.at_key("spec"), "the source has no connector");
                    report(problem.help("one of: interval"));
                }
                Some(interval) => check_interval(draft, interval, &mut report),
            }
        }
        self.report_all(found);
    }
}

fn check_interval(draft: &Draft, interval: &Interval, report: &mut impl FnMut(Problem)) {
    match (&interval.every, &interval.cron) {
        (Some(_), Some(_)) => {
            let place = draft.at_key("spec.interval.cron");
            let problem = Problem::error(Code::ExactlyOne, place, "the interval has both `every` and `cron`");
            report(problem.and(draft.at_key("spec.interval.every"), "the other").help("keep one of the two"));
        }
        (None, None) => {
            let place = draft.at_key("spec.interval");
            let problem = Problem::error(Code::ExactlyOne, place, "the interval has neither `every` nor `cron`");
            report(problem.help("add one of the two: `every: 10s` or `cron: \"*/5 * * * *\"`"));
        }
        (Some(every), None) if every.0.as_millis() < EVERY_MS_MIN => {
            let message = format!("the period is below {EVERY_MS_MIN} ms");
            report(Problem::error(Code::InvalidSchedule, draft.at("spec.interval.every"), message));
        }
        (Some(_), None) => {}
        (None, Some(cron)) => {
            if let Err(error) = croner::Cron::from_str(cron) {
                let message = format!("invalid cron expression: {error}");
                let problem = Problem::error(Code::InvalidSchedule, draft.at("spec.interval.cron"), message);
                report(problem.help("five fields (minute, hour, day, month, weekday), or six with seconds first"));
            }
        }
    }
    let Some(zone) = &interval.time_zone else { return };
    let place = draft.at("spec.interval.timeZone");
    if chrono_tz::Tz::from_str(zone).is_err() {
        let names = chrono_tz::TZ_VARIANTS.iter().map(|zone| zone.name());
        let help = match crate::manifest::problem::did_you_mean(zone, names) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "names are such as `Europe/Vilnius`".to_owned(),
        };
        report(Problem::error(Code::InvalidSchedule, place, format!("there is no time zone `{zone}`")).help(help));
    } else if interval.cron.is_none() {
        let problem = Problem::error(Code::InvalidSchedule, place, "`timeZone` has a meaning only with `cron`");
        report(problem.help("leave it out, or write the schedule as `cron`"));
    }
}
