//! `dedupe`: the first message of a key passes, the others end for a time.
//!
//! The window is kept in the store, so it survives a restart and is shared by all instances. A mark names the origin of
//! the message that set it: a redelivery, move or replay of that very message passes its own mark.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::pipeline::Event;
use super::{Next, Place};
use crate::flow::failure::Failure;
use crate::language::{Program, Value};

#[derive(Debug)]
pub(super) struct Dedupe {
    pub key: Arc<Program>,
    pub within: Duration,
    /// Sets the marks of one step of one flow apart from all others.
    pub scope: String,
    pub place: Place,
}

impl Dedupe {
    pub fn apply(&self, event: &mut Event) -> Result<Next, Failure> {
        let key = match event.evaluate(&self.key, &self.place)? {
            Value::Bytes(text) => format!("t{}", String::from_utf8_lossy(&text)),
            Value::String(text) => format!("t{}", &*text),
            scalar @ (Value::Integer(_) | Value::Float(_) | Value::Boolean(_)) => format!("s{scalar}"),
            other => {
                let message = format!("the key is {}, not text, a number or a boolean", super::split::kind(&other));
                return Err(self.place.failure("dedupe", &message, None));
            }
        };
        let digest: String = Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Next::Wait(format!("{}.{digest}", self.scope)))
    }
}
