//! What is known about an event before it is there.

use std::collections::BTreeSet;
use std::fmt;

use vrl::value::Kind;

use super::schema;

/// The type of an event, of a program's result, or of what a flow's subject carries. Says at least as much is
/// possible as really is.
#[derive(Clone, PartialEq)]
pub struct EventType(Kind);

impl EventType {
    /// Nothing is known.
    pub fn any() -> Self {
        EventType(Kind::any().without_undefined())
    }

    /// Takes from a JSON Schema what the language can use: `type`, `properties`, `required`, `items`,
    /// `additionalProperties`, `enum`, `const`, `anyOf`, `oneOf`, `nullable`, and `$ref` inside the document.
    /// Whatever else it demands is not known here. An `integer` is taken to be written without a fraction.
    pub fn from_json_schema(schema: &serde_json::Value) -> Self {
        EventType(schema::kind(schema))
    }

    pub(super) fn from_kind(kind: Kind) -> Self {
        EventType(kind.upgrade_undefined())
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.0
    }

    pub fn is_boolean(&self) -> bool {
        self.0.is_boolean()
    }

    /// Whether nothing is known.
    pub fn is_any(&self) -> bool {
        *self == EventType::any()
    }

    /// Why an event of this type certainly is none of `other`. `None` means that it may be one.
    pub fn can_never_match(&self, other: &EventType) -> Option<Conflict> {
        conflict(&self.0, &other.0, String::new())
    }
}

impl fmt::Debug for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventType({self})")
    }
}

/// `string`, `integer or null`, `any`.
impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(&self.0))
    }
}

/// A certain disagreement between two types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// `.` or `.customer.name`.
    pub path: String,
    pub found: String,
    pub wanted: String,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is {}, wanted {}", self.path, self.found, self.wanted)
    }
}

/// What a value is once it is JSON. Times and patterns are written as text; 2 and 2.0 are one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Shape {
    Text,
    Number,
    Boolean,
    Null,
    Object,
    Array,
    Absent,
}

fn shapes(kind: &Kind) -> BTreeSet<Shape> {
    let text = kind.contains_bytes() || kind.contains_timestamp() || kind.contains_regex();
    let pairs = [
        (text, Shape::Text),
        (kind.contains_integer() || kind.contains_float(), Shape::Number),
        (kind.contains_boolean(), Shape::Boolean),
        (kind.contains_null(), Shape::Null),
        (kind.contains_object(), Shape::Object),
        (kind.contains_array(), Shape::Array),
        (kind.contains_undefined(), Shape::Absent),
    ];
    pairs.into_iter().filter(|(present, _)| *present).map(|(_, shape)| shape).collect()
}

fn conflict(found: &Kind, wanted: &Kind, path: String) -> Option<Conflict> {
    let (have, need) = (shapes(found), shapes(wanted));
    // No shape at all: the program never gets this far, so nothing certain can be said of what it sends on.
    if have.is_empty() {
        return None;
    }
    if have.is_disjoint(&need) {
        let path = if path.is_empty() { ".".to_owned() } else { path };
        return Some(Conflict { path, found: describe(found), wanted: describe(wanted) });
    }
    let certain = have.len() == 1 && have.contains(&Shape::Object);
    let (Some(found), Some(wanted), true) = (found.as_object(), wanted.as_object(), certain) else { return None };
    let names: BTreeSet<_> = found.known().keys().chain(wanted.known().keys()).collect();
    names.into_iter().find_map(|name| {
        let have = found.known().get(name).cloned().unwrap_or_else(|| found.unknown_kind().or_undefined());
        let need = wanted.known().get(name).cloned().unwrap_or_else(|| wanted.unknown_kind().or_undefined());
        conflict(&have, &need, format!("{path}.{name}"))
    })
}

fn describe(kind: &Kind) -> String {
    if kind.is_any() || kind.clone().or_undefined().is_any() {
        return "any".to_owned();
    }
    let names = [
        (kind.contains_bytes(), "string"),
        (kind.contains_integer(), "integer"),
        (kind.contains_float(), "float"),
        (kind.contains_boolean(), "boolean"),
        (kind.contains_timestamp(), "timestamp"),
        (kind.contains_regex(), "regex"),
        (kind.contains_object(), "object"),
        (kind.contains_array(), "array"),
        (kind.contains_null(), "null"),
        (kind.contains_undefined(), "absent"),
    ];
    let names: Vec<&str> = names.into_iter().filter(|(present, _)| *present).map(|(_, name)| name).collect();
    match names.as_slice() {
        [] => "never there".to_owned(),
        names => names.join(" or "),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(schema: serde_json::Value) -> EventType {
        EventType::from_json_schema(&schema)
    }

    fn object(fields: serde_json::Value, required: serde_json::Value) -> EventType {
        of(json!({"type": "object", "properties": fields, "required": required, "additionalProperties": false}))
    }

    #[test]
    fn a_required_property_that_is_certainly_absent_is_a_conflict() {
        let found = object(json!({"id": {"type": "string"}}), json!(["id"]));
        let wanted = of(json!({"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}));
        let conflict = found.can_never_match(&wanted).unwrap();
        assert_eq!(conflict.to_string(), "`.total` is absent, wanted integer or float");
    }

    #[test]
    fn a_nested_property_of_certainly_another_type_is_a_conflict_with_its_path() {
        let inner = |kind: &str| object(json!({"n": {"type": kind}}), json!(["n"]));
        assert_eq!(inner("string").can_never_match(&inner("number")).unwrap().path, ".n");
        let outer = |kind: &str| {
            let inner = json!({"type": "object", "properties": {"n": {"type": kind}}, "required": ["n"]});
            object(json!({"a": inner}), json!(["a"]))
        };
        assert_eq!(outer("string").can_never_match(&outer("boolean")).unwrap().path, ".a.n");
    }

    #[test]
    fn what_is_only_possible_is_no_conflict() {
        let wanted = object(json!({"n": {"type": "integer"}}), json!(["n"]));
        assert_eq!(EventType::any().can_never_match(&wanted), None);
        assert_eq!(object(json!({"n": {"type": "number"}}), json!([])).can_never_match(&wanted), None);
        assert_eq!(of(json!({"type": ["object", "null"]})).can_never_match(&wanted), None);
        assert_eq!(wanted.can_never_match(&EventType::any()), None);
    }

    #[test]
    fn a_property_that_the_other_forbids_is_a_conflict_only_when_it_is_certainly_there() {
        let wanted = object(json!({}), json!([]));
        assert!(object(json!({"n": {"type": "string"}}), json!(["n"])).can_never_match(&wanted).is_some());
        assert!(object(json!({"n": {"type": "string"}}), json!([])).can_never_match(&wanted).is_none());
    }

    #[test]
    fn a_time_is_a_text_and_an_integer_a_number_once_it_is_json() {
        let text = of(json!({"type": "string"}));
        assert_eq!(EventType::from_kind(Kind::timestamp()).can_never_match(&text), None);
        assert_eq!(EventType::from_kind(Kind::float()).can_never_match(&of(json!({"type": "integer"}))), None);
    }
}
