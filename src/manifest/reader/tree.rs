//! A YAML document as a tree in which everything knows where it was written.

use std::sync::Arc;

use granit_parser::ScalarStyle;

use crate::manifest::problem::Region;

/// Children are shared, so an alias costs no copy of what it stands for.
#[derive(Debug, Clone)]
pub struct Node {
    /// For a block collection only its beginning.
    pub region: Region,
    pub value: Value,
    /// Nodes below and including this one, aliases written out.
    pub(super) nodes: u64,
    /// Bytes of text below and including this one, aliases written out.
    pub(super) bytes: u64,
    /// Levels below and including this one.
    pub(super) depth: u32,
}

#[derive(Debug, Clone)]
pub enum Value {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text { text: Arc<str>, style: ScalarStyle },
    List(Arc<[Node]>),
    Map(Arc<[Entry]>),
}

#[derive(Debug, Clone)]
pub struct Entry {
    pub key: Arc<str>,
    pub key_region: Region,
    pub value: Node,
}

impl Node {
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| &*entry.key == key),
            _ => None,
        }
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    pub fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The node that keys and positions lead to.
    pub fn at(&self, path: &[Step<'_>]) -> Option<&Node> {
        path.iter().try_fold(self, |node, step| match step {
            Step::Key(key) => node.get(key),
            Step::Item(at) => node.items().get(*at),
        })
    }

    /// In words, with an article.
    pub fn type_name(&self) -> &'static str {
        match self.value {
            Value::Null => "empty",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text { .. } => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        }
    }

    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Number(value) => Json::Number(value.clone()),
            Value::Text { text, .. } => Json::String(text.to_string()),
            Value::List(items) => items.iter().map(Node::to_json).collect(),
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|e| (e.key.to_string(), e.value.to_json())).collect())
            }
        }
    }
}

/// One step down a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    Key(&'a str),
    Item(usize),
}
