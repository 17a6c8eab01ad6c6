//! `filter`: only messages for which the expression is true go on.

use std::sync::Arc;

use super::pipeline::Event;
use super::{Next, Place};
use crate::flow::failure::Failure;
use crate::language::{Program, Value};

#[derive(Debug)]
pub(super) struct Filter {
    pub condition: Arc<Program>,
    pub place: Place,
}

impl Filter {
    pub fn apply(&self, event: &mut Event) -> Result<Next, Failure> {
        Ok(if is_true(&self.condition, &self.place, event)? { Next::On } else { Next::Ended })
    }
}

/// The value of a condition. The compiler has seen to it that it is a boolean.
pub(super) fn is_true(condition: &Program, place: &Place, event: &mut Event) -> Result<bool, Failure> {
    match event.evaluate(condition, place)? {
        Value::Boolean(answer) => Ok(answer),
        other => Err(place.failure("expression", &format!("the condition gave {other}, not true or false"), None)),
    }
}
