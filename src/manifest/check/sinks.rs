//! Sink manifests: exactly one connector, and settings that can work.

use super::Check;
use super::draft::Draft;
use crate::manifest::Spec;
use crate::manifest::connector::{file::File, http::Http};
use crate::manifest::flow::Retry;
use crate::manifest::problem::{Code, Place, Problem};

/// What a path template may hold.
const PLACEHOLDERS: &[&str] = &["subject", "unit", "year", "month", "day", "hour"];

impl Check<'_> {
    pub(super) fn check_sinks(&mut self) {
        let mut found = Vec::new();
        for (at, draft) in self.drafts.iter().enumerate() {
            let Some(Spec::Sink(sink)) = draft.manifest.as_ref().map(|manifest| &manifest.spec) else { continue };
            let mut report = |problem| found.push((at, problem));
            match sink.connectors().as_slice() {
                [_] => {}
                [] => {
                    let problem = Problem::error(Code::ExactlyOne, draft.at_key("spec"), "the sink has no connector");
                    report(problem.help("one of: http, file, stdout"));
                }
                [first, second, ..] => {
                    let message = format!("the sink has both `{first}` and `{second}`, exactly one is allowed");
                    let problem = Problem::error(Code::ExactlyOne, draft.at_key(&format!("spec.{second}")), message);
                    let other = draft.at_key(&format!("spec.{first}"));
                    report(problem.and(other, "the other").help("write two sinks with the same `from`"));
                }
            }
            check_retry(draft, &sink.retry, &mut report);
            if let Some(http) = &sink.http {
                check_http(draft, http, &mut report);
            }
            if let Some(file) = &sink.file {
                check_file(draft, file, &mut report);
            }
        }
        self.report_all(found);
    }
}

/// The wait between attempts cannot shrink.
pub(super) fn check_retry(draft: &Draft, retry: &Retry, report: &mut impl FnMut(Problem)) {
    if retry.backoff.initial > retry.backoff.max {
        let message =
            format!("the first wait ({}) is longer than the longest ({})", retry.backoff.initial, retry.backoff.max);
        report(Problem::error(Code::InvalidValue, draft.at("spec.retry.backoff.initial"), message));
    }
}

fn check_http(draft: &Draft, http: &Http, report: &mut impl FnMut(Problem)) {
    let url = &http.url.0;
    if !url.contains("${")
        && let Err(why) = check_url(url)
    {
        let problem = Problem::error(Code::InvalidAddress, draft.at("spec.http.url"), format!("{url:?} {why}"));
        report(problem.help("write a URL such as `https://erp.example/orders`"));
    }
    if http.timeout.0.is_zero() {
        report(zero(draft.at("spec.http.timeout"), "timeout"));
    }
    if http.breaker.pause > http.breaker.max_pause {
        let message =
            format!("the first pause ({}) is longer than the longest ({})", http.breaker.pause, http.breaker.max_pause);
        report(Problem::error(Code::InvalidValue, draft.at("spec.http.breaker.pause"), message));
    }
    for name in http.headers.keys().filter(|name| !is_token(name)) {
        let place = draft.at_key("spec.http.headers");
        report(Problem::error(Code::InvalidValue, place, format!("{name:?} is not the name of a header")));
    }
}

/// The characters of header names.
pub(super) fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

pub(super) fn zero(place: Place, field: &str) -> Problem {
    Problem::error(Code::InvalidValue, place, format!("`{field}` is zero: nothing could ever succeed"))
}

fn check_url(url: &str) -> Result<(), &'static str> {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let rest = rest.ok_or("begins with neither `http://` nor `https://`")?;
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err("holds blanks");
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
    if authority.contains('@') {
        return Err("holds a user: credentials belong into `auth`");
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    if host.is_empty() {
        return Err("names no host");
    }
    match port {
        Some(port) if port.parse::<u16>().is_err() => Err("has a port that is no number from 0 to 65535"),
        _ => Ok(()),
    }
}

fn check_file(draft: &Draft, file: &File, report: &mut impl FnMut(Problem)) {
    let place = || draft.at("spec.file.path");
    let path = &file.path.0;
    if path.is_empty() {
        report(Problem::error(Code::InvalidValue, place(), "the path is empty"));
    }
    for name in placeholders(path).filter(|name| !PLACEHOLDERS.contains(name)) {
        let known: Vec<String> = PLACEHOLDERS.iter().map(|name| format!("{{{name}}}")).collect();
        let problem = Problem::error(Code::InvalidValue, place(), format!("there is no placeholder `{{{name}}}`"));
        report(problem.help(format!("there are: {}", known.join(", "))));
    }
    if let Some(rotate) = &file.rotate {
        if rotate.max_bytes.is_none() && rotate.max_age.is_none() {
            let problem =
                Problem::error(Code::MissingKey, draft.at_key("spec.file.rotate"), "`rotate` says not when to rotate");
            report(problem.help("add `maxBytes`, `maxAge` or both"));
        }
        if rotate.max_bytes.is_some_and(|bytes| bytes.0 == 0) {
            report(zero(draft.at("spec.file.rotate.maxBytes"), "maxBytes"));
        }
    }
}

/// The names in braces, references (`${…}`) left out.
fn placeholders(path: &str) -> impl Iterator<Item = &str> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(start) = path[at..].find('{').map(|found| at + found) {
            let end = start + path[start..].find('}')?;
            at = end + 1;
            if !path[..start].ends_with('$') {
                return Some(&path[start + 1..end]);
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_need_scheme_host_and_a_port_that_is_one() {
        for good in ["http://a", "https://a.example:8443/x?y=1", "http://[::1]:80/", "http://[::1]"] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for bad in ["ftp://a", "http://", "http://a b", "http://a:x/", "http://:80", "http://u:p@a/", "a/b"] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn references_are_no_placeholders() {
        assert_eq!(placeholders("${env:DIR}/{subject}/{x}.ndjson").collect::<Vec<_>>(), ["subject", "x"]);
    }
}
