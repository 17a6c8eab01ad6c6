//! `validate`: the event matches a JSON Schema, or the message is permanently bad.

use std::sync::Arc;

use super::pipeline::Event;
use super::{Next, Place};
use crate::flow::failure::Failure;

/// Mismatches named in one failure.
const REASONS_MAX: usize = 5;

pub(super) struct Validate {
    pub schema: String,
    pub validator: Arc<jsonschema::Validator>,
    pub place: Place,
}

impl std::fmt::Debug for Validate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Validate({})", self.schema)
    }
}

impl Validate {
    pub fn apply(&self, event: &mut Event) -> Result<Next, Failure> {
        let instance = event.to_json(&self.place)?;
        if self.validator.is_valid(&instance) {
            return Ok(Next::On);
        }
        let reasons: Vec<String> = self
            .validator
            .iter_errors(&instance)
            .take(REASONS_MAX)
            .map(|error| {
                let at = error.instance_path().to_string();
                if at.is_empty() { error.to_string() } else { format!("{at}: {error}") }
            })
            .collect();
        let message = format!("does not match schema {}: {}", self.schema, reasons.join("; "));
        Err(self.place.failure("schema", &message, None))
    }
}
