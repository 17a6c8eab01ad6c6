//! Names of fields inside an event, such as `vat` or `order.items[0].price`.

use vrl::path::{OwnedValuePath, parse_value_path};

use super::Value;

/// A field to put something into. Objects on the way are made as needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldPath(OwnedValuePath);

impl FieldPath {
    /// `None` when the text names no field. A leading `.` is allowed.
    pub fn parse(text: &str) -> Option<Self> {
        let path = parse_value_path(text.strip_prefix('.').unwrap_or(text)).ok()?;
        (!path.segments.is_empty()).then_some(FieldPath(path))
    }

    pub fn insert(&self, event: &mut Value, value: Value) {
        event.insert(&self.0, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::json;

    #[test]
    fn a_field_is_put_where_the_path_says_and_objects_are_made() {
        let mut event = json::from_slice(br#"{"a":1}"#).unwrap();
        FieldPath::parse(".order.vat").unwrap().insert(&mut event, Value::from(7));
        assert_eq!(&json::to_bytes(&event)[..], br#"{"a":1,"order":{"vat":7}}"#);
    }

    #[test]
    fn what_names_no_field_is_refused() {
        for text in ["", ".", "a b", "a..b", "%time"] {
            assert_eq!(FieldPath::parse(text), None, "{text}");
        }
    }
}
