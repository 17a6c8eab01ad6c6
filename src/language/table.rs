//! Lookup tables as programs see them: `table("vat", key)`.
//!
//! Where rows come from is the business of the manifest's `Table` kind.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use vrl::value::Kind;
use vrl::value::kind::Collection;

use super::Value;

/// Rows whose types are looked at one by one; beyond it a row's type is not known while compiling.
const ROWS_TYPED_MAX: usize = 100_000;
/// Fields a row's type may name.
const FIELDS_TYPED_MAX: usize = 256;

/// Rows by key. Built once, shared, never changed.
#[derive(Debug, Clone)]
pub struct Table {
    pub name: String,
    rows: HashMap<Box<str>, Value>,
    digest: [u8; 32],
    row: Kind,
}

pub type Tables = BTreeMap<String, Arc<Table>>;

impl Table {
    /// `digest` stands for the rows: two tables of one name and digest are the same. Of a repeated key the last row
    /// counts.
    pub fn new(name: impl Into<String>, rows: impl IntoIterator<Item = (String, Value)>, digest: [u8; 32]) -> Self {
        let rows: HashMap<Box<str>, Value> = rows.into_iter().map(|(key, row)| (key.into_boxed_str(), row)).collect();
        let row = row_kind(&rows);
        Table { name: name.into(), rows, digest, row }
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.rows.get(key)
    }

    /// The row of a key given as a value: text as it is, numbers and booleans as they are written in JSON.
    pub fn row(&self, key: &Value) -> Option<&Value> {
        match key {
            Value::Bytes(text) => self.get(std::str::from_utf8(text).ok()?),
            Value::String(text) => self.get(text),
            Value::Integer(number) => self.get(&number.to_string()),
            Value::Float(number) => self.get(&number.to_string()),
            Value::Boolean(flag) => self.get(if *flag { "true" } else { "false" }),
            _ => None,
        }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// The type of a looked-up row: that of all rows together, or null.
    pub(super) fn kind(&self) -> Kind {
        self.row.clone().or_null()
    }
}

fn row_kind(rows: &HashMap<Box<str>, Value>) -> Kind {
    let unknown = || Kind::any().without_undefined();
    if rows.len() > ROWS_TYPED_MAX {
        return unknown();
    }
    let mut kind = Kind::never();
    for row in rows.values() {
        // The type of a nested row is kept shallow: one field per cell is what tables are for.
        let row = match row {
            Value::Object(_) => Kind::from(row),
            Value::Array(_) => Kind::array(Collection::any()),
            scalar => Kind::from(scalar),
        };
        kind = kind.union(row);
        if kind.as_object().is_some_and(|object| object.known().len() > FIELDS_TYPED_MAX) {
            return unknown();
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, Value)]) -> Table {
        Table::new("t", rows.iter().map(|(k, v)| ((*k).to_owned(), v.clone())), [0; 32])
    }

    #[test]
    fn numbers_and_booleans_find_the_row_of_their_text() {
        let table = table(&[("7", Value::from("seven")), ("true", Value::from("yes")), ("2.5", Value::from("half"))]);
        assert_eq!(table.row(&Value::from(7)), Some(&Value::from("seven")));
        assert_eq!(table.row(&Value::from(true)), Some(&Value::from("yes")));
        assert_eq!(table.row(&crate::language::json::from_slice(b"2.5").unwrap()), Some(&Value::from("half")));
        assert_eq!(table.row(&Value::from("7")), Some(&Value::from("seven")));
        assert_eq!(table.row(&Value::Null), None);
    }

    #[test]
    fn the_row_type_is_the_union_of_all_rows_or_null() {
        let table = table(&[("a", Value::from(1)), ("b", Value::from("x"))]);
        assert_eq!(table.kind(), Kind::integer().or_bytes().or_null());
    }
}
