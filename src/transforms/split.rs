//! `split`: one message per element of an array.

use std::sync::Arc;

use super::pipeline::{Event, PARTS_MAX};
use super::{Next, Place};
use crate::flow::failure::Failure;
use crate::language::{Program, Value};

#[derive(Debug)]
pub(super) struct Split {
    pub elements: Arc<Program>,
    pub place: Place,
}

impl Split {
    pub fn apply(&self, event: &mut Event) -> Result<Next, Failure> {
        match event.evaluate(&self.elements, &self.place)? {
            Value::Array(elements) if elements.len() <= PARTS_MAX => Ok(Next::Many(elements)),
            Value::Array(elements) => Err(self.place.failure(
                "split",
                &format!("the array has {} elements, more than {PARTS_MAX}", elements.len()),
                None,
            )),
            other => Err(self.place.failure("split", &format!("gave {}, not an array", kind(&other)), None)),
        }
    }
}

pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Boolean(_) => "a boolean",
        Value::Integer(_) | Value::Float(_) => "a number",
        Value::Object(_) => "an object",
        Value::Array(_) => "an array",
        _ => "text",
    }
}
