//! `route`: the first arm that matches takes the message.

use std::sync::Arc;

use super::filter::is_true;
use super::pipeline::Event;
use super::{Next, Place};
use crate::flow::failure::Failure;
use crate::language::Program;

#[derive(Debug)]
pub(super) struct Route {
    pub arms: Vec<Arm>,
}

#[derive(Debug)]
pub(super) struct Arm {
    /// `None` takes everything.
    pub when: Option<(Arc<Program>, Place)>,
    /// Index of the pipeline's subject.
    pub to: usize,
}

impl Route {
    pub fn apply(&self, event: &mut Event) -> Result<Next, Failure> {
        for arm in &self.arms {
            let takes = match &arm.when {
                Some((condition, place)) => is_true(condition, place, event)?,
                None => true,
            };
            if takes {
                return Ok(Next::Emit(arm.to));
            }
        }
        Ok(Next::On)
    }

    pub fn has_condition(&self) -> bool {
        self.arms.iter().any(|arm| arm.when.is_some())
    }
}
