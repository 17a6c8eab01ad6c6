//! What a plain scalar stands for: the core schema of YAML 1.2, and what YAML 1.1 would have read instead.

use serde_json::Number;

/// A plain scalar, read by the core schema.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plain {
    Null,
    Bool(bool),
    Number(Number),
    /// A number that JSON has no room for.
    NoNumber(&'static str),
    Text,
}

pub(super) fn resolve(text: &str) -> Plain {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Plain::Null,
        "true" | "True" | "TRUE" => return Plain::Bool(true),
        "false" | "False" | "FALSE" => return Plain::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Plain::NoNumber("is not a number"),
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Plain::NoNumber("is not a finite number");
    }
    if let Some(digits) = text.strip_prefix("0x").filter(|d| all(d, |b| b.is_ascii_hexdigit())) {
        return radix(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o").filter(|d| all(d, |b| matches!(b, b'0'..=b'7'))) {
        return radix(digits, 8);
    }
    if all(unsigned, |b| b.is_ascii_digit()) {
        let text = text.strip_prefix('+').unwrap_or(text);
        return match (text.parse::<u64>(), text.parse::<i64>()) {
            (Ok(n), _) => Plain::Number(n.into()),
            (_, Ok(n)) => Plain::Number(n.into()),
            _ => Plain::NoNumber("is beyond 64 bits"),
        };
    }
    if is_float(unsigned) {
        let number = text.parse::<f64>().ok().and_then(Number::from_f64);
        return number.map_or(Plain::NoNumber("is beyond the range of numbers"), Plain::Number);
    }
    Plain::Text
}

fn radix(digits: &str, radix: u32) -> Plain {
    u64::from_str_radix(digits, radix).map_or(Plain::NoNumber("is beyond 64 bits"), |n| Plain::Number(n.into()))
}

fn all(text: &str, test: impl Fn(u8) -> bool) -> bool {
    !text.is_empty() && text.bytes().all(test)
}

fn is_float(unsigned: &str) -> bool {
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let exponent_fits = exponent.is_none_or(|e| all(e.strip_prefix(['+', '-']).unwrap_or(e), |b| b.is_ascii_digit()));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    exponent_fits && digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty())
}

/// What a reader of YAML 1.1 takes a plain scalar for, when that differs from ours. Half of the tools that touch
/// manifests read 1.1, so such a scalar has to be quoted or written otherwise.
pub(super) fn trap(text: &str) -> Option<String> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Some("true".to_owned()),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Some("false".to_owned()),
        _ => {}
    }
    let (sign, unsigned) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (&text[..1], rest),
        None => ("", text),
    };
    if !unsigned.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if let Some(digits) = unsigned.strip_prefix("0o").filter(|d| all(d, |b| matches!(b, b'0'..=b'7'))) {
        return Some(format!("the text \"0o{digits}\""));
    }
    if let Some(digits) = unsigned.strip_prefix("0b").filter(|d| all(d, |b| matches!(b, b'0' | b'1' | b'_'))) {
        return u64::from_str_radix(&digits.replace('_', ""), 2).ok().map(|n| format!("the number {sign}{n}"));
    }
    if unsigned.len() > 1 && unsigned.starts_with('0') && all(unsigned, |b| b.is_ascii_digit() || b == b'_') {
        let octal = u64::from_str_radix(&unsigned.replace('_', ""), 8);
        return Some(octal.map_or("text".to_owned(), |n| format!("the number {sign}{n} (octal)")));
    }
    if unsigned.contains('_') && all(unsigned, |b| b.is_ascii_digit() || matches!(b, b'_' | b'.')) {
        return Some(format!("the number {sign}{}", unsigned.replace('_', "")));
    }
    sexagesimal(unsigned).map(|n| format!("the number {sign}{n} (base 60)"))
}

/// `12:30:45` in base 60: every part after the first is below 60.
fn sexagesimal(text: &str) -> Option<u64> {
    let (first, rest) = text.split_once(':')?;
    let first = Some(first).filter(|f| all(f, |b| b.is_ascii_digit()))?.parse::<u64>().ok()?;
    rest.split(':').try_fold(first, |sum, part| {
        let fits = matches!(part.len(), 1 | 2) && all(part, |b| b.is_ascii_digit());
        let part = Some(part).filter(|_| fits)?.parse::<u64>().ok().filter(|p| *p < 60)?;
        sum.checked_mul(60)?.checked_add(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_follow_the_core_schema() {
        for (text, expected) in [
            ("", Plain::Null),
            ("~", Plain::Null),
            ("True", Plain::Bool(true)),
            ("tRue", Plain::Text),
            ("12", Plain::Number(12.into())),
            ("+12", Plain::Number(12.into())),
            ("-3", Plain::Number((-3).into())),
            ("0x1F", Plain::Number(31.into())),
            ("1.5", Plain::Number(Number::from_f64(1.5).unwrap())),
            (".5", Plain::Number(Number::from_f64(0.5).unwrap())),
            ("1e3", Plain::Number(Number::from_f64(1000.0).unwrap())),
            (".", Plain::Text),
            ("1.2.3", Plain::Text),
            ("2026-01-31", Plain::Text),
            ("-", Plain::Text),
            ("99999999999999999999", Plain::NoNumber("is beyond 64 bits")),
            ("-.inf", Plain::NoNumber("is not a finite number")),
        ] {
            assert_eq!(resolve(text), expected, "{text}");
        }
    }

    #[test]
    fn scalars_that_yaml_1_1_reads_otherwise_are_found() {
        for (text, expected) in [
            ("no", Some("false")),
            ("On", Some("true")),
            ("y", Some("true")),
            ("010", Some("the number 8 (octal)")),
            ("-010", Some("the number -8 (octal)")),
            ("1_000", Some("the number 1000")),
            ("12:30", Some("the number 750 (base 60)")),
            ("0b11", Some("the number 3")),
            ("0o17", Some("the text \"0o17\"")),
            ("089", Some("text")),
            ("0", None),
            ("0.5", None),
            ("nope", None),
            ("12:75", None),
            ("10", None),
            ("127.0.0.1:8787", None),
        ] {
            assert_eq!(trap(text).as_deref(), expected, "{text}");
        }
    }
}
