//! A compiled program and its run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};

use chrono::DateTime;
use vrl::compiler::runtime::{Runtime, Terminate};
use vrl::compiler::{TargetValueRef, TimeZone};
use vrl::path::PathPrefix;
use vrl::value::kind::Collection;
use vrl::value::{Kind, ObjectMap, Secrets};

use super::fault::RunFault;
use super::meter::{self, Operations};
use super::types::EventType;
use super::{Purpose, Value};
use crate::time::Timestamp;

/// What a program reads besides the event. Read as `%subject`, `%id`, `%time`, `%headers.<name>`.
///
/// Only looked at when [`Program::uses_meta`]; `Meta::default()` does for all others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    pub subject: String,
    pub id: String,
    pub time: Timestamp,
    pub headers: BTreeMap<String, String>,
}

impl Meta {
    pub(super) fn kind() -> Kind {
        let fields = [("subject", Kind::bytes()), ("id", Kind::bytes()), ("time", Kind::timestamp())];
        let headers = Collection::from_unknown(Kind::bytes().or_undefined());
        let fields = fields.into_iter().chain([("headers", Kind::object(headers))]);
        let known: BTreeMap<_, _> = fields.map(|(name, kind)| (name.into(), kind)).collect();
        Kind::object(Collection::from_parts(known, Kind::undefined()))
    }

    fn value(&self) -> Value {
        let headers: ObjectMap =
            self.headers.iter().map(|(name, value)| (name.as_str().into(), Value::from(value.as_str()))).collect();
        let fields = [
            ("subject", Value::from(self.subject.as_str())),
            ("id", Value::from(self.id.as_str())),
            ("time", Value::Timestamp(DateTime::from_timestamp_nanos(self.time.0))),
            ("headers", Value::Object(headers)),
        ];
        Value::Object(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }
}

/// What a program is run on. A [`Purpose::Program`] leaves the changed event in `event`.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    pub event: Value,
    pub meta: Meta,
}

/// What a run gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Of a condition or value, what it came to; null for a program, whose result is the event.
    pub value: Value,
}

impl Outcome {
    /// Whether a condition holds.
    pub fn is_true(&self) -> bool {
        self.value == Value::Boolean(true)
    }
}

/// Compiled once, run by any number of threads.
#[derive(Debug)]
pub struct Program {
    inner: vrl::compiler::Program,
    purpose: Purpose,
    output: EventType,
    uses_meta: bool,
}

thread_local! {
    /// The variables' memory, kept between runs.
    static RUNTIME: RefCell<Runtime> = RefCell::new(Runtime::default());
}

impl Program {
    pub(super) fn new(inner: vrl::compiler::Program, purpose: Purpose) -> Self {
        let end = inner.final_type_info();
        let output = match purpose {
            Purpose::Program => end.state.external.target_kind().clone(),
            Purpose::Condition | Purpose::Value => end.result.kind().union(end.result.returns().clone()),
        };
        let uses_meta = inner.info().target_queries.iter().any(|path| path.prefix == PathPrefix::Metadata);
        Program { inner, purpose, output: EventType::from_kind(output), uses_meta }
    }

    /// The type of `.` after the run, or of the value.
    pub fn output(&self) -> &EventType {
        &self.output
    }

    /// Whether the program reads anything of [`Meta`].
    pub fn uses_meta(&self) -> bool {
        self.uses_meta
    }

    /// Runs on the calling thread, without waiting for anything. After a fault the event may be half changed.
    pub fn run(&self, input: &mut Input) -> Result<Outcome, RunFault> {
        meter::start();
        // A panic in the library is this message's problem, not the process's.
        match panic::catch_unwind(AssertUnwindSafe(|| self.resolve(input))) {
            Ok(result) => result,
            Err(_) => Err(RunFault::new("the program panicked: this is a defect of the language's runtime")),
        }
    }

    fn resolve(&self, input: &mut Input) -> Result<Outcome, RunFault> {
        let mut metadata = if self.uses_meta { input.meta.value() } else { Value::Null };
        let mut target =
            TargetValueRef { value: &mut input.event, metadata: &mut metadata, secrets: &mut Secrets::new() };
        let result = RUNTIME.with(|runtime| {
            let mut runtime = runtime.borrow_mut();
            // Before, not after: a run that panicked has left its variables.
            runtime.clear();
            let zone = TimeZone::Named(chrono_tz::UTC);
            let result = runtime.resolve_with_control(&mut target, &self.inner, &zone, &mut Operations::new());
            runtime.clear();
            result
        });
        let value = result.map_err(|terminate| match terminate {
            Terminate::Interrupted => RunFault::new(meter::stopped().unwrap_or(meter::Stop::Operations).message()),
            Terminate::Abort(error) | Terminate::Error(error) => RunFault::from_expression(error),
        })?;
        let (size, value) = match self.purpose {
            Purpose::Program => (meter::size_of(&input.event), Value::Null),
            Purpose::Condition | Purpose::Value => (meter::size_of(&value), value),
        };
        size.map_err(|stop| RunFault::new(stop.message()))?;
        Ok(Outcome { value })
    }
}
