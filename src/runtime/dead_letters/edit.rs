//! Changes fields of a JSON text and leaves every other byte of a value as it was: numbers keep their digits, objects
//! their order.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::Error;
use super::view::Field;

/// Fields of one edit.
const FIELDS_MAX: usize = 1_000;
/// Longest path, in names and indices.
const SEGMENTS_MAX: usize = 64;

/// The payload with the fields set, in order.
pub fn set(payload: &[u8], fields: &[Field]) -> Result<Vec<u8>, Error> {
    if fields.len() > FIELDS_MAX {
        return Err(Error::Edit(format!("more than {FIELDS_MAX} fields at once")));
    }
    let not_json = |error: serde_json::Error| Error::Edit(format!("the payload is no JSON ({error}): edit it whole"));
    let mut text: Box<RawValue> = serde_json::from_slice(payload).map_err(not_json)?;
    for field in fields {
        let path = parse(&field.path)?;
        let changed = put(Some(&text), &path, &field.value)
            .map_err(|reason| Error::Edit(format!("cannot set {}: {reason}", field.path)))?;
        text = RawValue::from_string(changed).map_err(not_json)?;
    }
    Ok(text.get().as_bytes().to_vec())
}

#[derive(Debug, PartialEq, Eq)]
enum Segment {
    Name(String),
    Index(usize),
}

/// `order.items[0].price`; a leading `.` is allowed, a name with other characters is quoted (`."a b".c`).
fn parse(path: &str) -> Result<Vec<Segment>, Error> {
    let wrong = || Error::Edit(format!("{path:?} is no path: write it as in `order.items[0].price`"));
    let mut segments = Vec::new();
    let mut rest = path.strip_prefix('.').unwrap_or(path);
    while !rest.is_empty() {
        if let Some(tail) = rest.strip_prefix('[') {
            let (index, tail) = tail.split_once(']').ok_or_else(wrong)?;
            segments.push(Segment::Index(index.parse().map_err(|_| wrong())?));
            rest = tail;
        } else if rest.starts_with('"') {
            let mut names = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            let name = names.next().and_then(Result::ok).ok_or_else(wrong)?;
            rest = &rest[names.byte_offset()..];
            segments.push(Segment::Name(name));
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            if end == 0 || rest[..end].contains(|c: char| c.is_whitespace() || matches!(c, '"' | ']')) {
                return Err(wrong());
            }
            segments.push(Segment::Name(rest[..end].to_owned()));
            rest = &rest[end..];
        }
        match rest.strip_prefix('.') {
            Some("") => return Err(wrong()),
            Some(tail) => rest = tail,
            None if rest.is_empty() || rest.starts_with('[') => {}
            None => return Err(wrong()),
        }
    }
    if segments.is_empty() || segments.len() > SEGMENTS_MAX {
        return Err(wrong());
    }
    Ok(segments)
}

/// The text of `held` with `value` at `path`. Objects on the way are made as needed; an array grows by its end only.
fn put(held: Option<&RawValue>, path: &[Segment], value: &RawValue) -> Result<String, String> {
    let Some((segment, rest)) = path.split_first() else { return Ok(value.get().to_owned()) };
    match segment {
        Segment::Name(name) => {
            let mut members = match held {
                None => Vec::new(),
                Some(held) if held.get() == "null" => Vec::new(),
                Some(held) => {
                    serde_json::from_str::<Members<'_>>(held.get())
                        .map_err(|_| format!("{name:?} would be a field of something that is no object"))?
                        .0
                }
            };
            // Of a name that occurs twice the last one counts, as everywhere.
            let at = members.iter().rposition(|(held, _)| held == name);
            let new = put(at.map(|at| members[at].1), rest, value)?;
            let new = RawValue::from_string(new).map_err(|error| error.to_string())?;
            match at {
                Some(at) => members[at].1 = &new,
                None => members.push((name.clone(), &new)),
            }
            let fields = members.iter().map(|(name, held)| {
                format!("{}:{}", serde_json::to_string(name).expect("a string is JSON"), held.get())
            });
            Ok(format!("{{{}}}", fields.collect::<Vec<_>>().join(",")))
        }
        Segment::Index(index) => {
            let no_array = || format!("[{index}] would be an element of something that is no array");
            let held = held.ok_or_else(no_array)?;
            let mut elements = serde_json::from_str::<Elements<'_>>(held.get()).map_err(|_| no_array())?.0;
            if *index > elements.len() {
                return Err(format!("[{index}] is beyond the end: the array has {}", elements.len()));
            }
            let new = put(elements.get(*index).copied(), rest, value)?;
            let new = RawValue::from_string(new).map_err(|error| error.to_string())?;
            match elements.get_mut(*index) {
                Some(element) => *element = &new,
                None => elements.push(&new),
            }
            let elements: Vec<&str> = elements.iter().map(|element| element.get()).collect();
            Ok(format!("[{}]", elements.join(",")))
        }
    }
}

/// The members of an object, in order, each as it is written.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// The same for an array.
struct Elements<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Elements<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Elements<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = array.next_element()? {
                    elements.push(element);
                }
                Ok(Elements(elements))
            }
        }
        deserializer.deserialize_seq(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(payload: &str, fields: &[(&str, &str)]) -> Result<String, String> {
        let fields: Vec<Field> = fields
            .iter()
            .map(|(path, value)| Field {
                path: (*path).to_owned(),
                value: RawValue::from_string((*value).to_owned()).unwrap(),
            })
            .collect();
        set(payload.as_bytes(), &fields)
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn only_the_named_field_changes_and_every_other_digit_stays() {
        let payload = r#"{"z": 1.10, "big": 123456789012345678901234567890, "a": {"b": [1, {"c": 2}]}}"#;
        assert_eq!(
            changed(payload, &[("a.b[1].c", "\"x\""), (".new.deep", "[1]"), ("a.b[2]", "true")]).unwrap(),
            r#"{"z":1.10,"big":123456789012345678901234567890,"a":{"b":[1,{"c":"x"},true]},"new":{"deep":[1]}}"#
        );
        assert_eq!(changed(r#"{"a b":null}"#, &[(r#""a b".c"#, "1")]).unwrap(), r#"{"a b":{"c":1}}"#);
    }

    #[test]
    fn what_cannot_be_set_is_refused_with_the_reason() {
        for (payload, path, reason) in [
            ("\u{1}", "a", "no JSON"),
            ("[1]", "a", "no object"),
            ("{}", "a[0]", "no array"),
            ("[1]", "[3]", "beyond the end"),
            ("{}", "", "is no path"),
            ("{}", "a..b", "is no path"),
            ("{}", "a.", "is no path"),
            ("{}", "a[x]", "is no path"),
            ("{}", "a b", "is no path"),
        ] {
            let error = changed(payload, &[(path, "1")]).unwrap_err();
            assert!(error.contains(reason), "{payload} {path}: {error}");
        }
    }
}
