//! `orderBy`: the key whose messages are kept in order.

use std::sync::Arc;

use super::build::BuildError;
use super::pipeline::Event;
use super::{Locator, Place};
use crate::flow::failure::Failure;
use crate::flow::message::Stored;
use crate::id::UnitId;
use crate::language::{Program, Value};

/// The expression of a sink's `orderBy`, ready to run.
#[derive(Debug)]
pub struct Ordering {
    key: Arc<Program>,
    place: Place,
}

impl Ordering {
    /// `program` is what `check` made of `source`.
    pub fn build(
        unit: &UnitId,
        source: &str,
        program: Option<Arc<Program>>,
        locate: Locator,
    ) -> Result<Self, BuildError> {
        let key = program.ok_or_else(|| BuildError::new(unit, "the program at orderBy"))?;
        let place = Place::new(unit.clone(), "orderBy".to_owned(), "orderBy".to_owned(), source.to_owned(), locate);
        Ok(Ordering { key, place })
    }

    /// A failure is permanent: the message can never be put in order.
    pub fn key(&self, message: &Stored) -> Result<String, Failure> {
        let mut event =
            Event::of(message, self.key.uses_meta()).map_err(|error| self.place.failure("payload", &error, None))?;
        match event.evaluate(&self.key, &self.place)? {
            Value::Bytes(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
            Value::String(text) => Ok(text.to_string()),
            scalar @ (Value::Integer(_) | Value::Float(_) | Value::Boolean(_)) => Ok(scalar.to_string()),
            other => {
                let message = format!("the key is {}, not text, a number or a boolean", super::split::kind(&other));
                Err(self.place.failure("expression", &message, None))
            }
        }
    }
}
