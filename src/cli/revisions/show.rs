//! The answers about revisions, for people.

use crate::api::view::revisions::{Diff, History, Plan, Published, Suspended};
use crate::cli::status::align;
use crate::runtime::load::errors_text;
use crate::runtime::planning::Action;
use crate::unit::status::short;

pub(super) fn plan(plan: &Plan) -> String {
    let mut text = String::new();
    for problem in &plan.problems {
        text.push_str(&format!("{}: {} {}: {}\n", problem.severity, problem.place, problem.code, problem.message));
        if let Some(help) = &problem.help {
            text.push_str(&format!("  help: {help}\n"));
        }
    }
    if !plan.problems.is_empty() {
        text.push('\n');
    }
    let dash = |digest: &Option<String>| digest.as_deref().map_or("-", short).to_owned();
    if !plan.changes.is_empty() {
        let rows = plan.changes.iter().map(|change| {
            [
                action(change.action).to_owned(),
                change.unit.clone(),
                dash(&change.from),
                dash(&change.to),
                change.waiting.map_or_else(|| "-".to_owned(), |waiting| waiting.to_string()),
                change.note.clone().unwrap_or_default(),
            ]
        });
        align(&mut text, ["ACTION", "UNIT", "FROM", "TO", "WAITING", "NOTE"], rows, "llllrl");
        text.push('\n');
    }
    let touched = plan.changes.iter().filter(|change| change.from != change.to).count();
    if touched == 0 && plan.errors > 0 {
        let errors = errors_text(plan.errors);
        text.push_str(&format!(
            "{errors}: as they are, these manifests change nothing (against publication {})\n",
            plan.no
        ));
        return text;
    }
    if touched == 0 {
        text.push_str(&format!("nothing to change: {} units are as published (no {})\n", plan.unchanged, plan.no));
        return text;
    }
    let change = if touched == 1 { "1 unit changes".to_owned() } else { format!("{touched} units change") };
    text.push_str(&format!("{change}, {} stay, against publication {}\n", plan.unchanged, plan.no));
    if let Some(guard) = &plan.guard {
        text.push_str(&format!("to be confirmed: {guard}\n"));
    }
    if plan.errors > 0 {
        text.push_str(&format!("{}: mend, or publish with --keep-going\n", errors_text(plan.errors)));
    } else {
        text.push_str(&format!(
            "plan {}: `vejas apply --plan {} DIR` applies exactly this\n",
            plan.hash,
            short(&plan.hash)
        ));
    }
    text
}

fn action(action: Action) -> &'static str {
    match action {
        Action::Create => "create",
        Action::InPlace => "in place",
        Action::Restart => "restart",
        Action::Recreate => "recreate",
        Action::Remove => "remove",
        Action::Keep => "keep",
    }
}

pub(super) fn published(published: &Published) -> String {
    let publication = &published.publication;
    let (no, revision) = (publication.no, short(&publication.revision));
    if published.unchanged {
        return format!("nothing to change: publication {no} ({revision}) is in effect\n");
    }
    let mut text = match published.pending.as_slice() {
        [] => format!("publication {no} ({revision}) is in effect\n"),
        pending => format!(
            "publication {no} ({revision}) is decided, and not in effect yet on {}: `vejas members` tells more\n",
            pending.join(", ")
        ),
    };
    if !published.uncounted.is_empty() {
        let gone = published.uncounted.join(", ");
        text.push_str(&format!("{gone} left meanwhile and was not waited for; it runs this when it is back\n"));
    }
    text
}

pub(super) fn history(history: &History) -> String {
    if history.publications.is_empty() {
        return "nothing was published yet\n".to_owned();
    }
    let mut text = String::new();
    let rows = history.publications.iter().map(|past| {
        let publication = &past.publication;
        [
            publication.no.to_string(),
            short(&publication.revision).to_owned(),
            publication.at.clone(),
            publication.by.clone(),
            publication.commit.as_deref().map_or_else(|| "-".to_owned(), |commit| short(commit).to_owned()),
            if past.set_aside { "set aside" } else { "" }.to_owned(),
            publication.reason.clone().unwrap_or_default(),
        ]
    });
    align(&mut text, ["NO", "REVISION", "AT", "BY", "COMMIT", "", "REASON"], rows, "rllllll");
    text
}

pub(super) fn diff(diff: &Diff) -> String {
    if diff.units.is_empty() {
        return format!("publications {} and {} are the same\n", diff.from, diff.to);
    }
    let mut text = format!("from publication {} to {}\n", diff.from, diff.to);
    for unit in &diff.units {
        let what = match (&unit.from, &unit.to) {
            (None, _) => "added",
            (_, None) => "removed",
            _ => "changed",
        };
        text.push_str(&format!("\n{what} {}\n", unit.unit));
        let (before, after) = match (&unit.before, &unit.after) {
            (None, None) => continue,
            (before, after) => (before.clone().unwrap_or_default(), after.clone().unwrap_or_default()),
        };
        let lines = |value: &serde_json::Value| if value.is_null() { String::new() } else { format!("{value:#}") };
        text.push_str(&lines_diff(&lines(&before), &lines(&after)));
    }
    text
}

/// The lines that differ, with what is the same left out except beside them.
fn lines_diff(before: &str, after: &str) -> String {
    let (before, after): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let start = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
    let (before_rest, after_rest) = (&before[start..], &after[start..]);
    let end = before_rest.iter().rev().zip(after_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    let mut text = String::new();
    for line in &before[start.saturating_sub(1)..start] {
        text.push_str(&format!("    {line}\n"));
    }
    before_rest[..before_rest.len() - end].iter().for_each(|line| text.push_str(&format!("  - {line}\n")));
    after_rest[..after_rest.len() - end].iter().for_each(|line| text.push_str(&format!("  + {line}\n")));
    text
}

pub(super) fn suspended(suspended: &Suspended) -> String {
    match suspended {
        Suspended { unit, suspended: true, .. } => {
            format!("{unit} is suspended on all members; `vejas resume {unit}` lets it go on\n")
        }
        Suspended { unit, .. } => format!("{unit} runs\n"),
    }
}
