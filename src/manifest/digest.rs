//! The digest of a manifest: two manifests with the same digest mean the same to the runtime.
//!
//! SHA-256 over length-framed parts, in this order: the format's name, the language level, kind, name, the canonical
//! JSON of the spec as written, and kind, name and digest of every schema, table and file it refers to. Labels and
//! annotations are left out: they are for people and tools, and changing one restarts nothing. Defaults are not filled
//! in and `${…}` references enter as written. Where a manifest stands (file, document, line) does not matter.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// Raised whenever the same program text may come to mean something else: another version of the language, another
/// set of functions.
pub const LANGUAGE_LEVEL: u32 = 1;

const FORMAT: &str = "vejas/digest/1";

/// What a manifest refers to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Referred {
    /// `schema`, `table` or `file`.
    pub kind: &'static str,
    pub name: String,
    pub digest: [u8; 32],
}

/// The digest of one manifest. The order of `referred` does not matter, repeated entries count once.
pub fn manifest(kind: &str, name: &str, spec: &Value, referred: &[Referred]) -> [u8; 32] {
    let mut referred: Vec<&Referred> = referred.iter().collect();
    referred.sort_unstable();
    referred.dedup();
    let mut hash = Sha256::new();
    part(&mut hash, FORMAT.as_bytes());
    part(&mut hash, &LANGUAGE_LEVEL.to_be_bytes());
    part(&mut hash, kind.as_bytes());
    part(&mut hash, name.as_bytes());
    part(&mut hash, canonical(spec).as_bytes());
    for other in referred {
        part(&mut hash, other.kind.as_bytes());
        part(&mut hash, other.name.as_bytes());
        part(&mut hash, &other.digest);
    }
    hash.finalize().into()
}

/// The digest of a value: SHA-256 over its canonical JSON.
pub fn value(value: &Value) -> [u8; 32] {
    bytes(canonical(value).as_bytes())
}

pub fn bytes(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn part(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_be_bytes());
    hash.update(bytes);
}

/// JSON without blanks, keys sorted by their bytes.
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            text.push('{');
            for (at, (key, value)) in entries.into_iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                text.push_str(&Value::String(key.clone()).to_string());
                text.push(':');
                write(value, text);
            }
            text.push('}');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn hex(digest: [u8; 32]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn schema(name: &str) -> Referred {
        Referred { kind: "schema", name: name.to_owned(), digest: bytes(name.as_bytes()) }
    }

    /// Other processes and later versions compute the same: a changed line here is a changed format.
    #[test]
    fn golden_vectors() {
        let spec = json!({ "to": "b", "from": "a", "steps": [{ "filter": ".x == \"ä\"" }] });
        assert_eq!(canonical(&spec), r#"{"from":"a","steps":[{"filter":".x == \"ä\""}],"to":"b"}"#);
        assert_eq!(hex(manifest("Flow", "f", &spec, &[])), GOLDEN_ALONE);
        assert_eq!(hex(manifest("Flow", "f", &spec, &[schema("s"), schema("r")])), GOLDEN_REFERRING);
    }

    const GOLDEN_ALONE: &str = "1f487e33dff780ba0368498411b6e77a7ea976b481222c3cbcfe494f3689da12";
    const GOLDEN_REFERRING: &str = "12e97a3b46d6a671f70fee41f3dff96af42d470b07b41ed6b289b83e285a0021";

    #[test]
    fn order_of_keys_and_references_does_not_matter_but_everything_else_does() {
        let of = |spec: Value, referred: &[Referred]| manifest("Flow", "f", &spec, referred);
        let (s, r) = (schema("s"), schema("r"));
        let base = of(json!({ "a": 1, "b": 2 }), &[s.clone(), r.clone()]);
        assert_eq!(base, of(json!({ "b": 2, "a": 1 }), &[r.clone(), s.clone(), r.clone()]));
        assert_ne!(base, of(json!({ "a": 1, "b": 3 }), &[s.clone(), r.clone()]));
        assert_ne!(base, of(json!({ "a": 1, "b": 2 }), &[s]));
        assert_ne!(base, manifest("Sink", "f", &json!({ "a": 1, "b": 2 }), &[r]));
    }
}
