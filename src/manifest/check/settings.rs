//! References in settings: well-formed, resolvable as far as can be known beforehand, and nowhere in steps.

use serde_json::Value as Json;

use super::{Check, FileFault};
use crate::manifest::problem::{Code, Place, Problem};
use crate::manifest::reader::origin::Origin;
use crate::manifest::reader::tree::{Node, Value};
use crate::manifest::reference::{self, Part, Target};
use crate::manifest::{generate, shape};

/// Largest file that a `${file:…}` may stand for, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where references may stand: the schema calls the type of such a field so.
const SETTING: &str = "Setting";
/// Settings that are secrets wherever they stand.
const SECRETS: [&str; 3] = ["token", "password", "secret"];
/// What may not hold one: the beginnings of references.
const BEGINNINGS: [&str; 3] = ["${env:", "${secret:", "${file:"];

pub(super) fn missing_file(place: Place, path: &str, fault: &FileFault) -> Problem {
    Problem::error(Code::MissingFile, place, format!("`{path}`: {fault}"))
        .help("paths are relative to the manifest and stay inside the tree of manifests")
}

impl Check<'_> {
    pub(super) fn check_settings(&mut self) {
        let mut found = Vec::new();
        for (at, draft) in self.drafts.iter().enumerate() {
            let (Some(kind), Some(_), Some(spec)) = (draft.kind, &draft.manifest, draft.find("spec")) else { continue };
            if let (Some(steps), "Flow") = (spec.get("steps"), kind) {
                each_text(steps, &mut |node, text| {
                    let begins = BEGINNINGS.iter().filter_map(|beginning| text.find(beginning)).min();
                    if let (Some(start), Some(origin)) = (begins, Origin::of(&draft.source, node)) {
                        let end = text[start..].find('}').map_or(text.len(), |length| start + length + 1);
                        let place = draft.place(origin.region_in_file(start, end));
                        let problem = Problem::error(Code::ReferenceInStep, place, "a step cannot hold a reference");
                        found.push((at, problem.help("look the value up in a Table, or write one flow per value")));
                    }
                });
            }
            let Some(root) = generate::document(kind) else { continue };
            let schema = root.get("properties").and_then(|properties| properties.get("spec"));
            if let Some(schema) = schema {
                let mut settings = Vec::new();
                collect(root, schema, "spec", spec, &mut settings);
                settings.iter().for_each(|(key, node)| self.setting(at, key, node, &mut found));
            }
        }
        self.report_all(found);
    }

    fn setting(&self, at: usize, key: &str, node: &Node, found: &mut Vec<(usize, Problem)>) {
        let draft = &self.drafts[at];
        let (Some(text), Some(origin)) = (node.text(), Origin::of(&draft.source, node)) else { return };
        let place = |start: usize, end: usize| draft.place(origin.region_in_file(start, end));
        let parts = match reference::parse(text) {
            Ok(parts) => parts,
            Err(error) => {
                let place = place(error.span.start, error.span.end);
                return found.push((at, Problem::error(Code::ReferenceSyntax, place, error.message)));
            }
        };
        if SECRETS.contains(&key) && !parts.iter().any(|part| matches!(part, Part::Reference(_))) {
            let message = format!("`{key}` stands here for everybody who can read the manifest");
            let problem = Problem::warning(Code::LiteralSecret, draft.place(node.region), message);
            found.push((at, problem.help("refer to it: `${env:NAME}`, `${secret:path/key}` or `${file:path}`")));
        }
        for part in parts {
            let Part::Reference(reference) = part else { continue };
            let place = place(reference.span.start, reference.span.end);
            match reference.target {
                Target::Env { name, default: None } if self.world.is_set.is_some_and(|is_set| !is_set(&name)) => {
                    let problem =
                        Problem::error(Code::UnsetVariable, place, format!("the variable `{name}` is not set"));
                    found.push((at, problem.help(format!("set it, or give a default: `${{env:{name}:-value}}`"))));
                }
                Target::File { path } => {
                    let read = (self.world.read_beside)(&draft.source.path, &path, FILE_BYTES_MAX);
                    if let Err(fault) = read {
                        found.push((at, missing_file(place, &path, &fault)));
                    }
                }
                Target::Env { .. } | Target::Secret { .. } => {}
            }
        }
    }
}

fn each_text(node: &Node, visit: &mut impl FnMut(&Node, &str)) {
    match &node.value {
        Value::Text { text, .. } => visit(node, text),
        Value::List(items) => items.iter().for_each(|item| each_text(item, visit)),
        Value::Map(entries) => entries.iter().for_each(|entry| each_text(&entry.value, visit)),
        _ => {}
    }
}

/// The nodes that the schema calls settings, each with its key.
fn collect<'n>(root: &Json, schema: &Json, key: &'n str, node: &'n Node, found: &mut Vec<(&'n str, &'n Node)>) {
    let (schema, name) = shape::resolve(root, schema);
    if name == Some(SETTING) {
        return found.push((key, node));
    }
    for choice in ["anyOf", "oneOf"] {
        for branch in schema.get(choice).and_then(Json::as_array).into_iter().flatten() {
            collect(root, branch, key, node, found);
        }
    }
    let properties = schema.get("properties").and_then(Json::as_object);
    let more = schema.get("additionalProperties").filter(|more| more.is_object());
    for entry in node.entries() {
        if let Some(schema) = properties.and_then(|properties| properties.get(&*entry.key)).or(more) {
            collect(root, schema, &entry.key, &entry.value, found);
        }
    }
}
