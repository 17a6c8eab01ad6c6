//! References inside connector settings: `${env:NAME}`, `${env:NAME:-default}`, `${secret:path/key}`, `${file:path}`.
//! `$${` stands for a literal `${`. What a reference stands for is looked up elsewhere.

use std::ops::Range;

/// One piece of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Text(String),
    Reference(Reference),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    pub target: Target,
    /// Where it stands in the setting, in bytes.
    pub span: Range<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Env { name: String, default: Option<String> },
    Secret { path: String, key: String },
    File { path: String },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ReferenceError {
    pub message: String,
    /// Where it stands in the setting, in bytes.
    pub span: Range<usize>,
}

/// Splits a setting into text and references.
pub fn parse(setting: &str) -> Result<Vec<Part>, ReferenceError> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut at = 0;
    while let Some(found) = setting[at..].find("${") {
        let start = at + found;
        if setting[..start].ends_with('$') && start > at {
            // `$${`: drop one `$`, keep the rest as text.
            text.push_str(&setting[at..start - 1]);
            text.push_str("${");
            at = start + 2;
            continue;
        }
        text.push_str(&setting[at..start]);
        let Some(length) = setting[start..].find('}') else {
            return Err(ReferenceError {
                message: "`${` is not closed by `}`; write `$${` for the characters themselves".to_owned(),
                span: start..setting.len(),
            });
        };
        let end = start + length + 1;
        let target =
            target(&setting[start + 2..end - 1]).map_err(|message| ReferenceError { message, span: start..end })?;
        if !text.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut text)));
        }
        parts.push(Part::Reference(Reference { target, span: start..end }));
        at = end;
    }
    text.push_str(&setting[at..]);
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    Ok(parts)
}

fn target(inside: &str) -> Result<Target, String> {
    let forms = "write `${env:NAME}`, `${env:NAME:-default}`, `${secret:path/key}` or `${file:path}`";
    let (scheme, rest) =
        inside.split_once(':').ok_or_else(|| format!("`${{{inside}}}` names no kind of reference: {forms}"))?;
    match scheme {
        "env" => {
            let (name, default) = match rest.split_once(":-") {
                Some((name, default)) => (name, Some(default.to_owned())),
                None => (rest, None),
            };
            let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if name.is_empty() || !plain || name.as_bytes()[0].is_ascii_digit() {
                return Err(format!("{name:?} is not the name of an environment variable"));
            }
            Ok(Target::Env { name: name.to_owned(), default })
        }
        "secret" => match rest.rsplit_once('/') {
            Some((path, key)) if !path.is_empty() && !key.is_empty() => {
                Ok(Target::Secret { path: path.to_owned(), key: key.to_owned() })
            }
            _ => Err("a secret is named by path and key, as in `${secret:erp/token}`".to_owned()),
        },
        "file" if !rest.is_empty() => Ok(Target::File { path: rest.to_owned() }),
        "file" => Err("`${file:}` names no file".to_owned()),
        other => Err(format!("`{other}` is not a kind of reference: {forms}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_references_come_apart_with_their_positions() {
        let parts = parse("https://${env:HOST:-a.b}/x?k=${secret:erp/token}").unwrap();
        assert_eq!(parts[0], Part::Text("https://".to_owned()));
        assert_eq!(
            parts[1],
            Part::Reference(Reference {
                target: Target::Env { name: "HOST".to_owned(), default: Some("a.b".to_owned()) },
                span: 8..24,
            })
        );
        let Part::Reference(secret) = &parts[3] else { panic!() };
        assert_eq!(secret.target, Target::Secret { path: "erp".to_owned(), key: "token".to_owned() });
    }

    #[test]
    fn a_doubled_dollar_is_text() {
        assert_eq!(parse("a$${b}").unwrap(), [Part::Text("a${b}".to_owned())]);
        assert_eq!(parse("costs 5$").unwrap(), [Part::Text("costs 5$".to_owned())]);
    }

    #[test]
    fn faults_name_their_place() {
        for (setting, start) in
            [("x${env:A", 1), ("${what:a}", 0), ("ab${env:}", 2), ("${secret:a}", 0), ("${env:1A}", 0)]
        {
            assert_eq!(parse(setting).unwrap_err().span.start, start, "{setting}");
        }
    }
}
