//! A flow manifest, checked, becomes a pipeline.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::pipeline::Pipeline;
use super::{Locator, Place, Verb, dedupe, filter, lookup, map, route, split, validate};
use crate::id::{Names, UnitId};
use crate::language::{FieldPath, Program, Tables};
use crate::manifest::check::CheckedProgram;
use crate::manifest::flow::{Flow, Step};

/// What `check` found for a flow: programs by where their text stands below `spec`, such as `steps.2.map`, and what they refer to.
pub struct Parts<'a> {
    pub unit: UnitId,
    pub names: &'a Names,
    pub programs: &'a BTreeMap<String, Arc<Program>>,
    pub tables: &'a Tables,
    pub validators: &'a BTreeMap<String, Arc<jsonschema::Validator>>,
    pub locate: Locator,
}

impl std::fmt::Debug for Parts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Parts({})", self.unit)
    }
}

/// The manifest was not checked, or not with these parts.
#[derive(Debug, thiserror::Error)]
#[error("{unit}: {what} is missing")]
pub struct BuildError {
    unit: UnitId,
    what: String,
}

impl BuildError {
    pub(super) fn new(unit: &UnitId, what: &str) -> Self {
        BuildError { unit: unit.clone(), what: what.to_owned() }
    }
}

/// Finds places in the checked programs of one manifest; `declared` is said of everything else.
pub fn locator(declared: String, programs: BTreeMap<String, CheckedProgram>) -> Locator {
    Arc::new(move |at, offset| match programs.get(at) {
        Some(program) => {
            let position = program.position(offset);
            format!("{}:{}:{}", program.origin.source().path, position.line, position.column)
        }
        None => declared.clone(),
    })
}

pub fn build(flow: &Flow, parts: &Parts<'_>) -> Result<Pipeline, BuildError> {
    let mut builder = Builder { parts, subjects: Vec::new() };
    let to = flow.to.as_ref().map(|subject| builder.subject(subject.as_str()));
    let verbs: Vec<Verb> =
        flow.steps.iter().enumerate().map(|(at, step)| builder.verb(at, step)).collect::<Result<_, _>>()?;
    let reads_events = verbs.iter().any(Verb::reads_event);
    let reads_meta = parts.programs.values().any(|program| program.uses_meta());
    Ok(Pipeline { unit: parts.unit.clone(), verbs, subjects: builder.subjects, to, reads_events, reads_meta })
}

struct Builder<'a> {
    parts: &'a Parts<'a>,
    subjects: Vec<Arc<str>>,
}

impl Builder<'_> {
    fn verb(&mut self, at: usize, step: &Step) -> Result<Verb, BuildError> {
        let pointer = |verb: &str| format!("steps.{at}.{verb}");
        Ok(match step {
            Step::Validate(step) => {
                let schema = step.schema.as_str();
                let validator =
                    self.parts.validators.get(schema).ok_or_else(|| self.missing(&format!("schema {schema}")))?;
                let place = self.place(at, "validate", pointer("validate.schema"), "");
                Verb::Validate(validate::Validate {
                    schema: schema.to_owned(),
                    validator: Arc::clone(validator),
                    place,
                })
            }
            Step::Filter(expression) => {
                let (condition, place) = self.program(at, "filter", pointer("filter"), &expression.0)?;
                Verb::Filter(filter::Filter { condition, place })
            }
            Step::Map(source) => {
                let (program, place) = self.program(at, "map", pointer("map"), &source.0)?;
                Verb::Map(map::Map { program, place })
            }
            Step::Split(expression) => {
                let (elements, place) = self.program(at, "split", pointer("split"), &expression.0)?;
                Verb::Split(split::Split { elements, place })
            }
            Step::Lookup(step) => {
                let (key, place) = self.program(at, "lookup", pointer("lookup.key"), &step.key.0)?;
                let name = step.table.as_str();
                let table = self.parts.tables.get(name).ok_or_else(|| self.missing(&format!("table {name}")))?;
                let into =
                    FieldPath::parse(&step.into).ok_or_else(|| self.missing(&format!("field {:?}", step.into)))?;
                Verb::Lookup(lookup::Lookup { table: Arc::clone(table), key, into, on_missing: step.on_missing, place })
            }
            Step::Dedupe(step) => {
                let (key, place) = self.program(at, "dedupe", pointer("dedupe.key"), &step.key.0)?;
                let scope = format!("{}.{at}", self.parts.unit.name);
                Verb::Dedupe(dedupe::Dedupe { key, within: step.within.0, scope, place })
            }
            Step::Route(arms) => {
                let mut built = Vec::with_capacity(arms.len());
                for (nth, arm) in arms.iter().enumerate() {
                    let when = match &arm.when {
                        Some(when) => {
                            Some(self.program(at, "route", pointer(&format!("route.{nth}.when")), &when.0)?)
                        }
                        None => None,
                    };
                    built.push(route::Arm { when, to: self.subject(arm.to.as_str()) });
                }
                Verb::Route(route::Route { arms: built })
            }
        })
    }

    fn program(
        &self,
        at: usize,
        verb: &str,
        pointer: String,
        source: &str,
    ) -> Result<(Arc<Program>, Place), BuildError> {
        let program =
            self.parts.programs.get(&pointer).ok_or_else(|| self.missing(&format!("the program at {pointer}")))?;
        Ok((Arc::clone(program), self.place(at, verb, pointer, source)))
    }

    fn place(&self, at: usize, verb: &str, pointer: String, source: &str) -> Place {
        let step = format!("step {} ({verb})", at + 1);
        Place::new(self.parts.unit.clone(), step, pointer, source.to_owned(), Arc::clone(&self.parts.locate))
    }

    fn subject(&mut self, written: &str) -> usize {
        let stored = self.parts.names.stored(written);
        match self.subjects.iter().position(|subject| **subject == *stored) {
            Some(at) => at,
            None => {
                self.subjects.push(Arc::from(stored));
                self.subjects.len() - 1
            }
        }
    }

    fn missing(&self, what: &str) -> BuildError {
        BuildError::new(&self.parts.unit, what)
    }
}
