//! From a text to a [`Program`], once per text and surroundings.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use vrl::compiler::state::{ExternalEnv, LocalEnv};
use vrl::compiler::{CompileConfig, TypeState};
use vrl::diagnostic::{DiagnosticList, DiagnosticMessage};
use vrl::parser::ast;
use vrl::path::OwnedTargetPath;

use super::fault::{self, Fault};
use super::functions::COMPILED;
use super::program::{Meta, Program};
use super::table::Tables;
use super::types::EventType;
use super::{guard, metered, rewrite};

/// Programs kept. The oldest is forgotten first; who holds it keeps it.
pub const PROGRAMS_CACHED_MAX: usize = 2048;

/// Stack of the thread that compiles. Parsing recurses over what a text of the allowed size and nesting can hold,
/// before the depth of its expressions is known. Only what is used is ever backed by memory.
const STACK_BYTES: usize = 256 * 1024 * 1024;

/// What a text is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// `map`: may assign; the result is `.` after the run.
    Program,
    /// `filter`, `when`: has to be boolean, changes nothing.
    Condition,
    /// `split`, keys: any value, changes nothing.
    Value,
}

/// What a program is compiled against.
#[derive(Debug, Clone, Copy)]
pub struct Environment<'a> {
    pub event: &'a EventType,
    pub tables: &'a Tables,
}

/// Compiles and remembers. Shared by all threads.
pub struct Compiler {
    cache: Mutex<Cache>,
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

impl Default for Compiler {
    fn default() -> Self {
        Self::new()
    }
}

impl Compiler {
    pub fn new() -> Self {
        Compiler { cache: Mutex::new(Cache::default()) }
    }

    /// All that is wrong at once, or the program. Takes some milliseconds the first time.
    pub fn compile(
        &self,
        source: &str,
        purpose: Purpose,
        environment: &Environment<'_>,
    ) -> Result<Arc<Program>, Vec<Fault>> {
        guard::check(source).map_err(|fault| vec![fault])?;
        let key = Key::new(source, purpose, environment);
        if let Some(program) = self.cache().get(&key, environment.event) {
            return Ok(program);
        }
        let program = Arc::new(on_large_stack(source, || compile(source, purpose, environment))?);
        self.cache().put(key, environment.event.clone(), program.clone());
        Ok(program)
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        // A panic while it was held leaves a cache that is whole: each change is one insertion.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    source: Box<str>,
    purpose: Purpose,
    tables: Vec<(Box<str>, [u8; 32])>,
}

impl Key {
    fn new(source: &str, purpose: Purpose, environment: &Environment<'_>) -> Self {
        // Only tables the text names can make a difference; a name that appears elsewhere in it does no harm.
        let named = environment.tables.iter().filter(|(name, _)| source.contains(name.as_str()));
        let tables = named.map(|(name, table)| (name.as_str().into(), table.digest())).collect();
        Key { source: source.into(), purpose, tables }
    }
}

/// By key, then by event type: types are compared, not hashed.
#[derive(Default)]
struct Cache {
    programs: HashMap<Arc<Key>, Vec<(EventType, Arc<Program>)>>,
    /// In the order they came; one entry per program.
    order: VecDeque<Arc<Key>>,
}

impl Cache {
    fn get(&self, key: &Key, event: &EventType) -> Option<Arc<Program>> {
        let programs = self.programs.get(key)?;
        programs.iter().find(|(known, _)| known == event).map(|(_, program)| program.clone())
    }

    fn put(&mut self, key: Key, event: EventType, program: Arc<Program>) {
        let key = Arc::new(key);
        let programs = self.programs.entry(key.clone()).or_default();
        if programs.iter().any(|(known, _)| *known == event) {
            return;
        }
        programs.push((event, program));
        self.order.push_back(key);
        if self.order.len() > PROGRAMS_CACHED_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(programs) = self.programs.get_mut(&oldest)
        {
            programs.remove(0);
            if programs.is_empty() {
                self.programs.remove(&oldest);
            }
        }
    }
}

/// Runs `work` where neither a deep recursion nor a panic reaches the caller.
fn on_large_stack<T: Send>(source: &str, work: impl FnOnce() -> Result<T, Vec<Fault>> + Send) -> Result<T, Vec<Fault>> {
    let whole = 0..source.len();
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("compile".to_owned()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, work) {
            Ok(running) => running.join().unwrap_or_else(|_| {
                Err(vec![Fault::new("the compiler panicked: this is a defect of the language's compiler", whole)])
            }),
            Err(error) => Err(vec![Fault::new(format!("no thread to compile on: {error}"), whole)]),
        }
    })
}

fn compile(source: &str, purpose: Purpose, environment: &Environment<'_>) -> Result<Program, Vec<Fault>> {
    let parsed = vrl::parser::parse(source).map_err(|error| {
        let error: Box<dyn DiagnosticMessage> = Box::new(error);
        fault::from_diagnostics(DiagnosticList::from(vec![error]), source)
    })?;
    let last = parsed.0.last().map_or(0..source.len(), |expr| expr.span().range());
    let with_meters = match rewrite::rewrite(parsed.clone(), environment.tables) {
        Ok(program) => program,
        Err(refused) => return Err(with_errors_of(parsed, refused, source, purpose, environment)),
    };
    match build(with_meters, purpose, environment) {
        Ok(program) => check_purpose(Program::new(program, purpose), purpose, last),
        // The messages are to speak of the program as it was written.
        Err(of_metered) if metered::take_widened() => Err(fault::from_diagnostics(of_metered, source)),
        Err(of_metered) => Err(match build(parsed, purpose, environment) {
            Err(errors) => fault::from_diagnostics(errors, source),
            Ok(_) => fault::from_diagnostics(of_metered, source),
        }),
    }
}

/// What is refused together with what the compiler finds elsewhere in the text.
fn with_errors_of(
    parsed: ast::Program,
    refused: rewrite::Refused,
    source: &str,
    purpose: Purpose,
    environment: &Environment<'_>,
) -> Vec<Fault> {
    let mut faults: Vec<Fault> = refused.faults.into_iter().map(|fault| fault.within(source)).collect();
    let compilable = !refused.unsafe_to_compile && {
        // Only the metered form is sure to be compiled in reasonable time; it tells whether the other is too.
        let _ = build(refused.metered, purpose, environment);
        !metered::take_widened()
    };
    if compilable && let Err(errors) = build(parsed, purpose, environment) {
        let overlaps =
            |fault: &Fault, other: &Fault| fault.span.start < other.span.end && other.span.start < fault.span.end;
        for fault in fault::from_diagnostics(errors, source) {
            if !faults.iter().any(|known| overlaps(known, &fault)) {
                faults.push(fault);
            }
        }
    }
    faults.sort_by_key(|fault| fault.span.start);
    faults
}

fn build(
    program: ast::Program,
    purpose: Purpose,
    environment: &Environment<'_>,
) -> Result<vrl::compiler::Program, DiagnosticList> {
    let mut config = CompileConfig::default();
    config.set_custom(environment.tables.clone());
    match purpose {
        Purpose::Program => config.set_read_only_path(OwnedTargetPath::metadata_root(), true),
        Purpose::Condition | Purpose::Value => config.set_read_only(),
    }
    let external = ExternalEnv::new_with_kind(environment.event.kind().clone(), Meta::kind());
    let state = TypeState { local: LocalEnv::default(), external };
    vrl::compiler::Compiler::compile(&COMPILED, program, &state, config).map(|result| result.program)
}

fn check_purpose(program: Program, purpose: Purpose, last: std::ops::Range<usize>) -> Result<Program, Vec<Fault>> {
    if purpose != Purpose::Condition || program.output().is_boolean() {
        return Ok(program);
    }
    let message = format!("a condition has to be true or false, this is {}", program.output());
    let help = "compare it, as in `.state == \"paid\"`, test it with `exists` or `is_null`, or convert it: `bool(.flag) ?? false`";
    Err(vec![Fault::new(message, last).help(help)])
}
