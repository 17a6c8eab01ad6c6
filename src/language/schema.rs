//! From a JSON Schema to the language's type.
//!
//! The type is always at least as wide as the schema: a keyword that is not understood narrows what is allowed, so
//! leaving it out is safe. References that run in circles, and schemas that grow when written out, end in "any".

use serde_json::Value as Json;
use vrl::value::Kind;
use vrl::value::kind::Collection;

use super::Value;

/// References and properties inside one another.
const DEPTH_MAX: usize = 24;
/// Schemas looked at, each reference counted anew.
const SCHEMAS_MAX: usize = 500;

pub(super) fn kind(schema: &Json) -> Kind {
    Reader { document: schema, left: SCHEMAS_MAX }.kind(schema, DEPTH_MAX)
}

struct Reader<'a> {
    document: &'a Json,
    left: usize,
}

fn any() -> Kind {
    Kind::any().without_undefined()
}

impl<'a> Reader<'a> {
    fn kind(&mut self, schema: &'a Json, depth: usize) -> Kind {
        let (Some(depth), Some(left)) = (depth.checked_sub(1), self.left.checked_sub(1)) else { return any() };
        self.left = left;
        let Json::Object(keywords) = schema else { return any() };
        if let Some(reference) = keywords.get("$ref") {
            let target =
                reference.as_str().and_then(|text| text.strip_prefix('#')).and_then(|p| self.document.pointer(p));
            return target.map_or_else(any, |target| self.kind(target, depth));
        }
        let mut kind = if let Some(value) = keywords.get("const") {
            kind_of(value)
        } else if let Some(Json::Array(values)) = keywords.get("enum") {
            values.iter().map(kind_of).fold(Kind::never(), |kind, next| kind.union(next))
        } else if let Some(types) = keywords.get("type") {
            self.typed(types, keywords, depth)
        } else if let Some(Json::Array(branches)) = keywords.get("anyOf").or(keywords.get("oneOf")) {
            branches.iter().map(|b| self.kind(b, depth)).fold(Kind::never(), |kind, next| kind.union(next))
        } else {
            // `properties` without `type` says something about objects and nothing about the rest.
            any().without_object().or_object(self.object(keywords, depth))
        };
        if keywords.get("nullable") == Some(&Json::Bool(true)) {
            kind = kind.or_null();
        }
        // An empty enum allows nothing; "any" keeps the compiler from concluding from that.
        if kind.is_never() { any() } else { kind }
    }

    fn typed(&mut self, types: &'a Json, keywords: &'a serde_json::Map<String, Json>, depth: usize) -> Kind {
        let names: Vec<&str> = match types {
            Json::String(name) => vec![name],
            Json::Array(names) => names.iter().filter_map(Json::as_str).collect(),
            _ => return any(),
        };
        names.into_iter().fold(Kind::never(), |kind, name| match name {
            "string" => kind.or_bytes(),
            "integer" => kind.or_integer(),
            "number" => kind.or_integer().or_float(),
            "boolean" => kind.or_boolean(),
            "null" => kind.or_null(),
            "object" => kind.or_object(self.object(keywords, depth)),
            "array" => kind.or_array(match keywords.get("items") {
                Some(items) if !keywords.contains_key("prefixItems") => {
                    Collection::from_unknown(self.kind(items, depth))
                }
                _ => Collection::from_unknown(any()),
            }),
            _ => any(),
        })
    }

    fn object(
        &mut self,
        keywords: &'a serde_json::Map<String, Json>,
        depth: usize,
    ) -> Collection<vrl::value::kind::Field> {
        let unknown = match keywords.get("additionalProperties") {
            _ if keywords.contains_key("patternProperties") => any().or_undefined(),
            Some(Json::Bool(false)) => Kind::undefined(),
            Some(schema) => self.kind(schema, depth).or_undefined(),
            None => any().or_undefined(),
        };
        let mut fields = Collection::from_unknown(unknown);
        let required = match keywords.get("required") {
            Some(Json::Array(names)) => names.iter().filter_map(Json::as_str).collect(),
            _ => Vec::new(),
        };
        if let Some(Json::Object(properties)) = keywords.get("properties") {
            for (name, schema) in properties {
                let kind = self.kind(schema, depth);
                let kind = if required.contains(&name.as_str()) { kind } else { kind.or_undefined() };
                fields.known_mut().insert(name.as_str().into(), kind);
            }
        }
        for name in required {
            let absent = !fields.known().contains_key(&vrl::value::kind::Field::from(name));
            if absent {
                let kind = fields.unknown_kind().without_undefined();
                fields.known_mut().insert(name.into(), if kind.is_never() { any() } else { kind });
            }
        }
        fields
    }
}

fn kind_of(value: &Json) -> Kind {
    match serde_json::from_value::<Value>(value.clone()) {
        // 1 and 1.0 are equal to a schema.
        Ok(Value::Integer(_) | Value::Float(_)) => Kind::integer().or_float(),
        Ok(value) => Kind::from(value),
        Err(_) => any(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_property_is_possibly_absent_unless_it_is_required() {
        let kind = kind(&json!({"type": "object", "required": ["a", "c"],
            "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}));
        let fields = kind.as_object().unwrap();
        assert_eq!(fields.known()[&"a".into()], Kind::bytes());
        assert_eq!(fields.known()[&"b".into()], Kind::integer().or_undefined());
        assert_eq!(fields.known()[&"c".into()], any());
    }

    #[test]
    fn references_and_unions_are_followed_inside_the_document_only() {
        let schema = json!({"$defs": {"n": {"type": "number"}}, "type": "object", "required": ["x", "y", "z"],
            "properties": {
                "x": {"$ref": "#/$defs/n"},
                "y": {"oneOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]},
                "z": {"$ref": "http://elsewhere/schema.json"}}});
        let kind = kind(&schema);
        let fields = kind.as_object().unwrap();
        assert_eq!(fields.known()[&"x".into()], Kind::integer().or_float());
        assert_eq!(fields.known()[&"y".into()], Kind::integer().or_float().or_null());
        assert_eq!(fields.known()[&"z".into()], any());
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends_in_any() {
        let tree = json!({"$ref": "#"});
        assert_eq!(kind(&tree), any());
        let wide =
            json!({"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}, "c": {"$ref": "#"}}});
        assert!(kind(&wide).contains_object());
    }

    #[test]
    fn unknown_keywords_and_odd_documents_widen() {
        assert_eq!(kind(&json!(true)), any());
        assert_eq!(kind(&json!({"if": {}, "not": {}})), any());
        assert_eq!(kind(&json!({"type": "strange"})), any());
        assert_eq!(kind(&json!({"enum": []})), any());
        assert_eq!(kind(&json!({"enum": ["a", null]})), Kind::bytes().or_null());
        assert_eq!(kind(&json!({"type": "string", "nullable": true})), Kind::bytes().or_null());
    }

    #[test]
    fn the_type_of_items_is_known() {
        let kind = kind(&json!({"type": "array", "items": {"type": "string"}}));
        assert_eq!(kind.as_array().unwrap().unknown_kind().without_undefined(), Kind::bytes());
    }
}
