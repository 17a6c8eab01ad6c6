//! `lookup`: a row of a table goes into the event.

use std::sync::Arc;

use super::pipeline::Event;
use super::{Next, Place};
use crate::flow::failure::Failure;
use crate::language::{FieldPath, Program, Table, Value};
use crate::manifest::flow::OnMissing;

#[derive(Debug)]
pub(super) struct Lookup {
    pub table: Arc<Table>,
    pub key: Arc<Program>,
    pub into: FieldPath,
    pub on_missing: OnMissing,
    pub place: Place,
}

impl Lookup {
    pub fn apply(&self, event: &mut Event) -> Result<Next, Failure> {
        let key = event.evaluate(&self.key, &self.place)?;
        let row = match (self.table.row(&key), self.on_missing) {
            (Some(row), _) => row.clone(),
            (None, OnMissing::Null) => Value::Null,
            (None, OnMissing::Drop) => return Ok(Next::Ended),
            (None, OnMissing::Fail) => {
                let message = format!("table {} has no row {key}", self.table.name);
                return Err(self.place.failure("lookup", &message, None));
            }
        };
        event.insert(&self.into, row);
        Ok(Next::On)
    }
}
