//! What a flow does with a message, one verb per file, and the pipeline that runs them.
//!
//! Everything here is a function of the message, the manifest and the tables: no clock, no bus. The one verb that
//! needs shared state, `dedupe`, stops the message and says which mark it needs; the caller answers.
//!
//! A message passes whole or not at all: when one of its parts (after a `split`) fails, nothing of it comes out.

mod build;
mod dedupe;
mod filter;
mod lookup;
mod map;
mod order;
mod passage;
mod pipeline;
mod place;
mod route;
mod split;
mod validate;
mod watch;

#[cfg(test)]
mod tests;

pub use build::{BuildError, Parts, build, locator};
pub use order::Ordering;
pub use passage::{Mark, Passage, Passed, Stamp};
pub use pipeline::{Emission, Event, PARTS_MAX, Pipeline, Progress, Waiting};
pub use place::{Locator, Place};
pub use watch::{Became, Seen, Watch};

use crate::flow::failure::Failure;

/// One step, ready to run.
#[derive(Debug)]
enum Verb {
    Validate(validate::Validate),
    Filter(filter::Filter),
    Map(map::Map),
    Split(split::Split),
    Lookup(lookup::Lookup),
    Dedupe(dedupe::Dedupe),
    Route(route::Route),
}

/// What a step made of an event.
enum Next {
    /// On to the next step.
    On,
    /// Ends here on purpose.
    Ended,
    /// Stored under this subject; no further steps.
    Emit(usize),
    /// In its place, these go on.
    Many(Vec<crate::language::Value>),
    /// Goes on if this key's mark is its own or new.
    Wait(String),
}

impl Verb {
    fn apply(&self, event: &mut Event) -> Result<Next, Failure> {
        match self {
            Verb::Validate(step) => step.apply(event),
            Verb::Filter(step) => step.apply(event),
            Verb::Map(step) => step.apply(event),
            Verb::Split(step) => step.apply(event),
            Verb::Lookup(step) => step.apply(event),
            Verb::Dedupe(step) => step.apply(event),
            Verb::Route(step) => step.apply(event),
        }
    }

    /// As manifests write it.
    fn name(&self) -> &'static str {
        match self {
            Verb::Validate(_) => "validate",
            Verb::Filter(_) => "filter",
            Verb::Map(_) => "map",
            Verb::Split(_) => "split",
            Verb::Lookup(_) => "lookup",
            Verb::Dedupe(_) => "dedupe",
            Verb::Route(_) => "route",
        }
    }

    /// Whether the step looks at the event, so that the payload has to be read as JSON.
    fn reads_event(&self) -> bool {
        match self {
            Verb::Route(route) => route.has_condition(),
            _ => true,
        }
    }
}
