//! From a text to a [`Program`], once per text and surroundings.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

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

/// How long one program may take to compile. Milliseconds are usual. The bounds above and in `rewrite` and `metered` leave
/// programs that take minutes, such as thousands of `. = {"self": .}`, because the compiler copies the type of the event
/// with every statement. Nothing says so beforehand that would not refuse good programs, too, and the compiler cannot be
/// interrupted: it is waited for so long, and then left to itself. Without optimisation it takes ten times as long.
pub const COMPILE_WAIT_MAX: Duration = Duration::from_secs(if cfg!(debug_assertions) { 120 } else { 10 });

/// Threads left to themselves that may still run. With so many nothing more is compiled until one of them ends.
const GIVEN_UP_MAX: usize = 4;

/// Threads of this process that were left to themselves and still run.
static GIVEN_UP: AtomicUsize = AtomicUsize::new(0);

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
        let (text, event, tables) = (source.to_owned(), environment.event.clone(), environment.tables.clone());
        let work = move || compile(&text, purpose, &Environment { event: &event, tables: &tables });
        let program = Arc::new(on_large_stack(source.len(), COMPILE_WAIT_MAX, &GIVEN_UP, work)?);
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

/// Runs `work` where neither a deep recursion nor a panic reaches the caller, and no longer than `wait_max`.
fn on_large_stack<T: Send + 'static>(
    source_bytes: usize,
    wait_max: Duration,
    given_up: &'static AtomicUsize,
    work: impl FnOnce() -> Result<T, Vec<Fault>> + Send + 'static,
) -> Result<T, Vec<Fault>> {
    let whole = |message: String| Fault::new(message, 0..source_bytes);
    let busy = given_up.load(SeqCst);
    if busy >= GIVEN_UP_MAX {
        let message = format!("{busy} programs that take too long are still being compiled, so this one is not");
        return Err(vec![whole(message).help("mend those first")]);
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    // Whoever comes second knows of the other: the thread that it was given up, the caller that it was done after all.
    let over = Arc::new(AtomicBool::new(false));
    let thread = thread::Builder::new().name("compile".to_owned()).stack_size(STACK_BYTES);
    let spawned = thread.spawn({
        let over = Arc::clone(&over);
        move || {
            // Nobody takes the answer of a thread that was given up.
            let _ = sender.send(std::panic::catch_unwind(AssertUnwindSafe(work)));
            if over.swap(true, SeqCst) {
                given_up.fetch_sub(1, SeqCst);
            }
        }
    });
    if let Err(error) = spawned {
        return Err(vec![whole(format!("no thread to compile on: {error}"))]);
    }
    let answer = receiver.recv_timeout(wait_max).or_else(|timeout| {
        given_up.fetch_add(1, SeqCst);
        if over.swap(true, SeqCst) {
            given_up.fetch_sub(1, SeqCst);
            return receiver.try_recv().map_err(|_| timeout);
        }
        Err(timeout)
    });
    match answer {
        Ok(Ok(result)) => result,
        Ok(Err(_panic)) => {
            Err(vec![whole("the compiler panicked: this is a defect of the language's compiler".to_owned())])
        }
        Err(_timeout) => {
            let message = format!("the program takes more than {} s to compile", wait_max.as_secs());
            let help = "split the work over several steps; what takes long are values put into themselves over and over, \
                        as in `. = {\"self\": .}`, and long paths assigned many times";
            Err(vec![whole(message).help(help)])
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_takes_too_long_is_given_up_and_so_many_at_once() {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let soon = Duration::from_millis(20);
        let holds: Vec<_> = (0..GIVEN_UP_MAX)
            .map(|number| {
                let (hold, held) = mpsc::channel::<()>();
                let work = move || {
                    _ = held.recv();
                    Ok(())
                };
                let faults = on_large_stack(7, soon, &COUNT, work).unwrap_err();
                assert!(faults[0].message.starts_with("the program takes more than"), "{}", faults[0].message);
                assert_eq!((faults[0].span.clone(), COUNT.load(SeqCst)), (0..7, number + 1));
                hold
            })
            .collect();
        let refused = on_large_stack(7, soon, &COUNT, || Ok(())).unwrap_err();
        assert!(refused[0].message.starts_with("4 programs"), "{}", refused[0].message);
        drop(holds);
        while COUNT.load(SeqCst) > 0 {
            thread::yield_now();
        }
        let minute = Duration::from_secs(60);
        assert_eq!(on_large_stack(7, minute, &COUNT, || Ok(5)), Ok(5));
        assert!(on_large_stack(7, minute, &COUNT, || -> Result<(), _> { panic!("no") }).is_err());
        assert_eq!(COUNT.load(SeqCst), 0);
    }
}
