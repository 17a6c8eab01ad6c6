//! Parser events in, trees out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, Span, StructureStyle, Tag};

use super::scalar::{self, Plain};
use super::tree::{Entry, Node, Value};
use super::{ALIAS_BYTES_MAX, ALIAS_NODES_MAX, DEPTH_MAX, Document, PROBLEMS_MAX};
use crate::manifest::problem::{Code, Place, Problem, Region, Source};

pub(super) fn documents(source: &Arc<Source>) -> (Vec<Document>, Vec<Problem>) {
    let mut options = granit_parser::Options::default();
    options.set_emit_comments(false);
    let mut parser = Parser::new_from_str_with_options(&source.text, options);
    let mut composer = Composer::new(source);
    while let Some(next) = parser.next_event() {
        match next {
            Ok((event, span)) => composer.event(event, span),
            Err(error) => {
                composer.syntax_error(&error);
                match parser.proceed_next_document() {
                    Ok(true) => composer.abandon(),
                    Ok(false) | Err(_) => break,
                }
            }
        }
        if composer.exhausted {
            break;
        }
    }
    (composer.documents, composer.problems)
}

struct Composer<'s> {
    source: &'s Arc<Source>,
    documents: Vec<Document>,
    problems: Vec<Problem>,
    open: Vec<Frame>,
    anchors: HashMap<usize, Node>,
    root: Option<Node>,
    /// Documents begun so far.
    begun: usize,
    damaged: bool,
    alias_nodes: u64,
    alias_bytes: u64,
    /// A budget is used up: nothing more of this file is read.
    exhausted: bool,
}

enum Frame {
    List { region: Region, block: bool, anchor: usize, items: Vec<Node> },
    Map { region: Region, block: bool, anchor: usize, map: Map },
}

#[derive(Default)]
struct Map {
    key: Option<(Arc<str>, Region, bool)>,
    /// The key was none: its value is left out.
    skip: bool,
    entries: Vec<Entry>,
    /// Where each key stands in `entries`; only kept for mappings that are long.
    index: HashMap<Arc<str>, usize>,
    merged: Vec<Entry>,
}

impl Map {
    const INDEXED_FROM: usize = 16;

    fn find(&self, key: &str) -> Option<&Entry> {
        if self.entries.len() < Self::INDEXED_FROM {
            return self.entries.iter().find(|entry| &*entry.key == key);
        }
        self.index.get(key).map(|at| &self.entries[*at])
    }

    fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
        let added = if self.entries.len() == Self::INDEXED_FROM { 0 } else { self.entries.len() - 1 };
        if self.entries.len() >= Self::INDEXED_FROM {
            self.index.extend(self.entries.iter().enumerate().skip(added).map(|(at, e)| (Arc::clone(&e.key), at)));
        }
    }
}

impl<'s> Composer<'s> {
    fn new(source: &'s Arc<Source>) -> Self {
        Composer {
            source,
            documents: Vec::new(),
            problems: Vec::new(),
            open: Vec::new(),
            anchors: HashMap::new(),
            root: None,
            begun: 0,
            damaged: false,
            alias_nodes: 0,
            alias_bytes: 0,
            exhausted: false,
        }
    }

    fn place(&self, region: Region) -> Place {
        Place::new(self.source, region)
    }

    fn report(&mut self, problem: Problem) {
        self.damaged = true;
        self.problems.push(problem);
        self.exhausted |= self.problems.len() >= PROBLEMS_MAX;
    }

    fn abandon(&mut self) {
        self.open.clear();
        self.root = None;
    }

    fn event(&mut self, event: Event<'_>, span: Span) {
        let region = region_of(&span);
        match event {
            Event::DocumentStart(..) => {
                self.abandon();
                self.anchors.clear();
                self.begun += 1;
                self.damaged = false;
            }
            Event::DocumentEnd => self.end_document(),
            Event::Scalar(text, style, anchor, tag) => self.scalar(&text, style, anchor, tag.as_deref(), region),
            Event::Alias(id) => self.alias(id, region),
            Event::SequenceStart(style, anchor, tag) => {
                self.collection_tag(tag.as_deref(), "seq", region);
                let block = style == StructureStyle::Block;
                self.open.push(Frame::List { region, block, anchor, items: Vec::new() });
            }
            Event::MappingStart(style, anchor, tag) => {
                self.collection_tag(tag.as_deref(), "map", region);
                let block = style == StructureStyle::Block;
                self.open.push(Frame::Map { region, block, anchor, map: Map::default() });
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(region),
            _ => {}
        }
    }

    fn end_document(&mut self) {
        let Some(root) = self.root.take() else { return };
        let empty = matches!(root.value, Value::Null) && root.region.start == root.region.end;
        if !empty {
            self.documents.push(Document { index: self.begun - 1, root, damaged: self.damaged });
        }
    }

    fn syntax_error(&mut self, error: &granit_parser::ScanError) {
        let at = error.marker().byte_offset().unwrap_or(self.source.text.len());
        let region = Region::new(at, at + 1);
        let problem = match error.kind() {
            ErrorKind::RecursionLimitExceeded => too_deep(self.place(region)),
            _ => {
                let problem =
                    Problem::error(Code::Syntax, self.place(region), format!("invalid YAML: {}", error.info()));
                let line = &self.source.text[self.source.line_range(self.source.line_of(at))];
                let indent = &line[..line.len() - line.trim_start().len()];
                match indent.contains('\t') {
                    true => problem.help("a tab stands where indentation is expected: indent with spaces"),
                    false => problem,
                }
            }
        };
        self.report(problem);
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, anchor: usize, tag: Option<&Tag>, region: Region) {
        let shared: Arc<str> = Arc::from(text);
        if self.expects_key() {
            let plain = style == ScalarStyle::Plain && tag.is_none();
            if plain && text != "<<" {
                self.find_trap(text, region);
            }
            if anchor != 0 {
                let value = Value::Text { text: Arc::clone(&shared), style };
                self.anchors.insert(anchor, leaf(region, value, text.len()));
            }
            self.set_key(shared, region, plain);
            return;
        }
        let as_text = Value::Text { text: shared, style };
        let value = match tag.map(|tag| (tag, tag.core_suffix())) {
            None if style != ScalarStyle::Plain => as_text,
            None => {
                self.find_trap(text, region);
                self.plain(text, as_text, region)
            }
            Some((_, Some("str"))) => as_text,
            Some((_, Some("null" | "bool" | "int" | "float"))) => self.plain(text, as_text, region),
            Some((tag, _)) => {
                self.refuse_tag(tag, region);
                as_text
            }
        };
        self.attach(leaf(region, value, text.len()), anchor);
    }

    fn plain(&mut self, text: &str, as_text: Value, region: Region) -> Value {
        match scalar::resolve(text) {
            Plain::Null => Value::Null,
            Plain::Bool(value) => Value::Bool(value),
            Plain::Number(number) => Value::Number(number),
            Plain::Text => as_text,
            Plain::NoNumber(why) => {
                let problem = Problem::error(Code::Unsupported, self.place(region), format!("`{text}` {why}"));
                self.report(problem.help(format!("quote it to have it as text: \"{text}\"")));
                as_text
            }
        }
    }

    fn find_trap(&mut self, text: &str, region: Region) {
        let Some(other) = scalar::trap(text) else { return };
        let message = format!("`{text}` is {other} to tools that read YAML 1.1");
        let problem = Problem::error(Code::Trap, self.place(region), message);
        self.report(problem.help(format!("quote it, \"{text}\", or write the value that is meant")));
    }

    fn collection_tag(&mut self, tag: Option<&Tag>, wanted: &str, region: Region) {
        if let Some(tag) = tag.filter(|tag| tag.core_suffix() != Some(wanted)) {
            self.refuse_tag(tag, region);
        }
    }

    fn refuse_tag(&mut self, tag: &Tag, region: Region) {
        let message = format!("the tag `{}` has no meaning here", tag.original());
        let problem = Problem::error(Code::Unsupported, self.place(region), message);
        self.report(problem.help("leave the tag out"));
    }

    fn alias(&mut self, id: usize, region: Region) {
        let Some(node) = self.anchors.get(&id).cloned() else {
            let problem = Problem::error(Code::Unsupported, self.place(region), "an alias stands inside what it names");
            self.report(problem.help("write the value out"));
            self.attach(leaf(region, Value::Null, 0), 0);
            return;
        };
        self.alias_nodes = self.alias_nodes.saturating_add(node.nodes);
        self.alias_bytes = self.alias_bytes.saturating_add(node.bytes);
        if self.alias_nodes > ALIAS_NODES_MAX || self.alias_bytes > ALIAS_BYTES_MAX {
            let message = format!(
                "aliases blow this file up by more than {ALIAS_NODES_MAX} values or {} MiB",
                ALIAS_BYTES_MAX >> 20
            );
            self.report(
                Problem::error(Code::TooMuch, self.place(region), message).help("use fewer aliases of aliases"),
            );
            self.exhausted = true;
            return;
        }
        match node.text() {
            Some(text) if self.expects_key() => self.set_key(Arc::from(text), region, false),
            _ => self.attach(node, 0),
        }
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some(Frame::Map { map, .. }) if map.key.is_none())
    }

    fn set_key(&mut self, key: Arc<str>, key_region: Region, plain: bool) {
        if let Some(Frame::Map { map, .. }) = self.open.last_mut() {
            map.key = Some((key, key_region, plain));
        }
    }

    fn close(&mut self, end: Region) {
        let (node, anchor) = match self.open.pop() {
            Some(Frame::List { region, block, anchor, items }) => {
                let region = if block { region } else { Region::new(region.start, end.end) };
                (collection(region, Value::List(Arc::from(items))), anchor)
            }
            Some(Frame::Map { region, block, anchor, map }) => {
                let mut entries = map.entries;
                // Keys that are written win over merged ones, earlier merges over later ones.
                let mut known: HashSet<Arc<str>> = match map.merged.is_empty() {
                    true => HashSet::new(),
                    false => entries.iter().map(|entry| Arc::clone(&entry.key)).collect(),
                };
                entries.extend(map.merged.into_iter().filter(|merged| known.insert(Arc::clone(&merged.key))));
                let region = match entries.first() {
                    Some(first) if block => first.key_region,
                    _ if block => region,
                    _ => Region::new(region.start, end.end),
                };
                (collection(region, Value::Map(Arc::from(entries))), anchor)
            }
            None => return,
        };
        if node.depth > DEPTH_MAX {
            self.report(too_deep(self.place(node.region)));
            self.exhausted = true;
            return;
        }
        self.attach(node, anchor);
    }

    fn attach(&mut self, node: Node, anchor: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let region = node.region;
        let refused = match self.open.last_mut() {
            None => {
                self.root = Some(node);
                return;
            }
            Some(Frame::List { items, .. }) => {
                items.push(node);
                return;
            }
            Some(Frame::Map { map, .. }) => match map.key.take() {
                None => {
                    map.key = Some((Arc::from(""), region, false));
                    map.skip = true;
                    Some(
                        Problem::error(Code::Unsupported, Place::new(self.source, region), "a key has to be text")
                            .help("write the key as text"),
                    )
                }
                Some(_) if std::mem::take(&mut map.skip) => None,
                Some((key, key_region, true)) if &*key == "<<" => merge(self.source, map, node, key_region),
                Some((key, key_region, _)) => add(self.source, map, Entry { key, key_region, value: node }),
            },
        };
        if let Some(problem) = refused {
            self.report(problem);
        }
    }
}

fn add(source: &Arc<Source>, map: &mut Map, entry: Entry) -> Option<Problem> {
    if let Some(first) = map.find(&entry.key) {
        let message = format!("the key `{}` is there twice", entry.key);
        let problem = Problem::error(Code::DuplicateKey, Place::new(source, entry.key_region), message)
            .label("again here")
            .and(Place::new(source, first.key_region), "first here")
            .help("keep one of the two");
        return Some(problem);
    }
    map.push(entry);
    None
}

fn merge(source: &Arc<Source>, map: &mut Map, node: Node, key_region: Region) -> Option<Problem> {
    let merged: Option<Vec<&[Entry]>> = match &node.value {
        Value::Map(entries) => Some(vec![entries]),
        Value::List(items) => items
            .iter()
            .map(|item| if let Value::Map(entries) = &item.value { Some(&**entries) } else { None })
            .collect(),
        _ => None,
    };
    let Some(merged) = merged else {
        let message = format!("`<<` merges mappings, this is {}", node.type_name());
        let problem = Problem::error(Code::Unsupported, Place::new(source, key_region), message);
        return Some(problem.help("write `<<: *anchor` with an anchor on a mapping, or quote the key"));
    };
    map.merged.extend(merged.into_iter().flatten().cloned());
    None
}

fn too_deep(place: Place) -> Problem {
    Problem::error(Code::TooMuch, place, format!("values are nested more than {DEPTH_MAX} levels deep"))
        .help("flatten the document")
}

fn region_of(span: &Span) -> Region {
    span.byte_range().map_or(Region::default(), |range| Region::new(range.start, range.end))
}

fn leaf(region: Region, value: Value, bytes: usize) -> Node {
    Node { region, value, nodes: 1, bytes: bytes as u64, depth: 1 }
}

fn collection(region: Region, value: Value) -> Node {
    let (mut nodes, mut bytes, mut depth) = (1u64, 0u64, 0);
    let mut count = |node: &Node, key_bytes: usize| {
        nodes = nodes.saturating_add(node.nodes);
        bytes = bytes.saturating_add(node.bytes).saturating_add(key_bytes as u64);
        depth = node.depth.max(depth);
    };
    match &value {
        Value::List(items) => items.iter().for_each(|item| count(item, 0)),
        Value::Map(entries) => entries.iter().for_each(|entry| count(&entry.value, entry.key.len())),
        _ => {}
    }
    Node { region, value, nodes, bytes, depth: depth + 1 }
}
