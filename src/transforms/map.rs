//! `map`: a program changes the event.

use std::sync::Arc;

use super::pipeline::Event;
use super::{Next, Place};
use crate::flow::failure::Failure;
use crate::language::Program;

#[derive(Debug)]
pub(super) struct Map {
    pub program: Arc<Program>,
    pub place: Place,
}

impl Map {
    pub fn apply(&self, event: &mut Event) -> Result<Next, Failure> {
        event.change(&self.program, &self.place)?;
        Ok(Next::On)
    }
}
