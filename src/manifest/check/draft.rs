//! One document on its way to a manifest: is it one at all, of which kind, and does it have that kind's shape.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value as Json;

use super::{CheckedProgram, LeftOut};
use crate::id::{UnitId, UnitKind};
use crate::manifest::digest::Referred;
use crate::manifest::generate::{self, KINDS, KINDS_NOT_IN_THIS_VERSION};
use crate::manifest::problem::{Code, Place, Position, Problem, Region, Source, did_you_mean};
use crate::manifest::reader::Document;
use crate::manifest::reader::tree::{Node, Value};
use crate::manifest::value::{Name, OneOrMany, Pattern, StartFrom};
use crate::manifest::{API_VERSION, Manifest, Metadata, Spec, shape};

pub(super) struct Draft {
    pub source: Arc<Source>,
    pub document: usize,
    pub root: Node,
    /// A kind of this version, also when the rest has errors.
    pub kind: Option<&'static str>,
    /// Present when document and kind have the right shape.
    pub manifest: Option<Manifest>,
    /// The spec as written.
    pub spec: Json,
    /// An error was reported: it will not run.
    pub bad: bool,
    /// The first error reported.
    reason: Option<String>,
    pub referred: Vec<Referred>,
    pub programs: BTreeMap<String, CheckedProgram>,
    /// See [`super::CheckedManifest::places`].
    pub places: BTreeMap<String, Position>,
}

impl Draft {
    pub(super) fn new(source: &Arc<Source>, document: Document) -> (Self, Vec<Problem>) {
        let mut draft = Draft {
            source: Arc::clone(source),
            document: document.index,
            root: document.root,
            kind: None,
            manifest: None,
            spec: Json::Null,
            bad: document.damaged,
            reason: None,
            referred: Vec::new(),
            programs: BTreeMap::new(),
            places: BTreeMap::new(),
        };
        let problems = draft.identify().unwrap_or_else(|kind| draft.take_shape(kind));
        problems.iter().for_each(|problem| draft.fail(problem));
        (draft, problems)
    }

    /// Takes note of an error.
    pub(super) fn fail(&mut self, problem: &Problem) {
        self.bad = true;
        self.reason.get_or_insert_with(|| format!("{} at {}: {}", problem.code, problem.place, problem.message));
    }

    /// Takes note of an error that is reported elsewhere.
    pub(super) fn leave_out(&mut self, reason: &str) {
        self.bad = true;
        self.reason.get_or_insert_with(|| reason.to_owned());
    }

    /// The line it begins on.
    pub(super) fn line(&self) -> usize {
        self.source.position(self.root.region.start).line
    }

    /// The unit that it would have been; none when it declares no unit or its name cannot be told.
    pub(super) fn left_out(&self) -> Option<LeftOut> {
        let kind = match self.kind? {
            "HttpIn" => UnitKind::HttpIn,
            "Source" => UnitKind::Source,
            "Flow" => UnitKind::Flow,
            "Sink" => UnitKind::Sink,
            _ => return None,
        };
        let name = Name::parse(self.name()?.0).ok()?;
        let reads = matches!(kind, UnitKind::Flow | UnitKind::Sink).then(|| self.reads()).flatten();
        let reason = self.reason.clone().unwrap_or_else(|| "the document cannot be read".to_owned());
        let file = PathBuf::from(&self.source.path);
        Some(LeftOut { id: UnitId::new(kind, name.as_str()), file, line: self.line(), reason, reads })
    }

    fn reads(&self) -> Option<(OneOrMany<Pattern>, StartFrom)> {
        let from = OneOrMany::deserialize(self.find("spec.from")?.to_json()).ok()?;
        let start = match self.find("spec.startFrom") {
            Some(node) => StartFrom::deserialize(node.to_json()).ok()?,
            None => StartFrom::default(),
        };
        Some((from, start))
    }

    /// `Err` is the kind, when there is nothing to complain about.
    fn identify(&mut self) -> Result<Vec<Problem>, &'static str> {
        let root = self.root.region;
        let expected = format!("write `apiVersion: {API_VERSION}` and a `kind`, or move the file out of the tree");
        if self.root.entries().is_empty() {
            let found = if matches!(self.root.value, Value::Map(_)) { "an empty one" } else { self.root.type_name() };
            let message = format!("a manifest is a mapping, this is {found}");
            return Ok(vec![Problem::error(Code::NotAManifest, self.place(root), message).help(expected)]);
        }
        match self.root.entry("apiVersion") {
            Some(entry) if entry.value.text() == Some(API_VERSION) => {}
            Some(entry) => {
                let place = self.place(entry.value.region);
                let message = "`apiVersion` is none that this version knows";
                return Ok(vec![Problem::error(Code::NotAManifest, place, message).help(expected)]);
            }
            None => {
                let message = "the document has no `apiVersion`, so it is not a manifest";
                return Ok(vec![Problem::error(Code::NotAManifest, self.place(root), message).help(expected)]);
            }
        }
        let Some(entry) = self.root.entry("kind") else {
            let problem = Problem::error(Code::MissingKey, self.place(root), "the manifest lacks the key `kind`");
            return Ok(vec![problem.help(format!("kinds there are: {}", KINDS.join(", ")))]);
        };
        let place = self.place(entry.value.region);
        let Some(written) = entry.value.text() else {
            let message = format!("`kind` is {}, wanted text", entry.value.type_name());
            return Ok(vec![Problem::error(Code::WrongType, place, message)]);
        };
        if let Some(kind) = KINDS.iter().find(|kind| **kind == written) {
            self.kind = Some(kind);
            return Err(kind);
        }
        let kinds = format!("kinds there are: {}", KINDS.join(", "));
        if KINDS_NOT_IN_THIS_VERSION.contains(&written) {
            let message = format!("the kind `{written}` is not in this version");
            return Ok(vec![Problem::error(Code::NotInThisVersion, place, message).help(kinds)]);
        }
        let help =
            did_you_mean(written, KINDS.iter().copied()).map_or(kinds, |meant| format!("did you mean `{meant}`?"));
        Ok(vec![Problem::error(Code::UnknownKind, place, format!("there is no kind `{written}`")).help(help)])
    }

    fn take_shape(&mut self, kind: &'static str) -> Vec<Problem> {
        let Some(schema) = generate::document(kind) else { return Vec::new() };
        let at = self.root.region;
        let mut problems = shape::problems(&self.source, kind, schema, &self.root, at);
        if !problems.is_empty() {
            return problems;
        }
        let metadata = self.root.get("metadata").map(Node::to_json).unwrap_or_default();
        self.spec = self.root.get("spec").map(Node::to_json).unwrap_or_default();
        match parse(kind, metadata, &self.spec) {
            Ok(manifest) => self.manifest = Some(manifest),
            // The shape was right, so this is a rule that only the type knows.
            Err(error) => problems.push(Problem::error(Code::InvalidValue, self.at("spec"), error.to_string())),
        }
        problems
    }

    pub(super) fn place(&self, region: Region) -> Place {
        Place::new(&self.source, region)
    }

    /// The node at a dotted path; list entries are numbers.
    pub(super) fn find(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(&self.root, step)
    }

    /// The place of a value; of what holds it when it is not there.
    pub(super) fn at(&self, path: &str) -> Place {
        let mut node = &self.root;
        let mut region = node.region;
        for key in path.split('.') {
            let key_region = node.entry(key).map(|entry| entry.key_region);
            let Some(next) = step(node, key) else { break };
            node = next;
            let is_collection = !node.entries().is_empty() || !node.items().is_empty();
            region = if is_collection { key_region.unwrap_or(node.region) } else { node.region };
        }
        self.place(region)
    }

    /// The place of a key; of what holds it when it is not there.
    pub(super) fn at_key(&self, path: &str) -> Place {
        let (parent, key) = path.rsplit_once('.').unwrap_or(("", path));
        let holder = if parent.is_empty() { Some(&self.root) } else { self.find(parent) };
        match holder.and_then(|node| node.entry(key)) {
            Some(entry) => self.place(entry.key_region),
            None => self.at(path),
        }
    }

    /// `flow/price-orders`.
    pub(super) fn title(&self) -> String {
        let name = self.name().map_or("?", |(name, _)| name);
        format!("{} `{name}`", self.kind.unwrap_or("manifest"))
    }

    /// The name as written, also when the rest has errors.
    pub(super) fn name(&self) -> Option<(&str, Region)> {
        let node = self.find("metadata.name")?;
        node.text().map(|name| (name, node.region))
    }
}

fn step<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    match key.parse::<usize>() {
        Ok(at) if !node.items().is_empty() => node.items().get(at),
        _ => node.get(key),
    }
}

fn parse(kind: &str, metadata: Json, spec: &Json) -> Result<Manifest, serde_json::Error> {
    let metadata = Metadata::deserialize(metadata)?;
    let spec = match kind {
        "HttpIn" => Spec::HttpIn(Deserialize::deserialize(spec)?),
        "Source" => Spec::Source(Deserialize::deserialize(spec)?),
        "Flow" => Spec::Flow(Deserialize::deserialize(spec)?),
        "Sink" => Spec::Sink(Deserialize::deserialize(spec)?),
        "Table" => Spec::Table(Deserialize::deserialize(spec)?),
        "Schema" => Spec::Schema(Deserialize::deserialize(spec)?),
        _ => Spec::Test(Deserialize::deserialize(spec)?),
    };
    Ok(Manifest { metadata, spec })
}
