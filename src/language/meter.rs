//! What bounds a program while it runs: the number of expressions it evaluates and the memory its values take.
//!
//! The language cannot loop but over what is there, yet doubling a text forty times is three lines. So everything
//! that makes or copies a value says so here, and a run that asks for too much ends. `rewrite` puts these
//! calls into the program; `metered` makes them. The count is per thread because the language's expressions carry
//! no state of ours; a program never leaves the thread it runs on.

use std::cell::Cell;
use std::ops::ControlFlow;

use vrl::compiler::ExpressionError;

use super::Value;

/// Largest single value, result included, in bytes of its text.
pub const OUTPUT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What all values made or copied in one run may take together, in bytes. A value that replaces the content of a
/// variable, or that was only an argument, gives its share back; nothing else does.
pub const MEMORY_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Expressions one run may evaluate. A run that uses all of them takes about a tenth of a second.
pub const OPERATIONS_MAX: u32 = 2_000_000;

/// Levels of objects and arrays inside one another; what JSON may hold on the next hop.
pub const VALUE_DEPTH_MAX: usize = 127;

/// Counted for each value besides its text: the value itself and its share of the collection around it.
const NODE_BYTES: usize = 64;

/// Why a run was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Operations,
    Memory,
    Value,
    Depth,
    ArgumentBytes(usize),
    ArgumentInteger(i64),
}

impl Stop {
    pub(super) fn message(self) -> String {
        match self {
            Stop::Operations => format!("the program evaluates more than {OPERATIONS_MAX} expressions"),
            Stop::Memory => format!("the program makes values of more than {MEMORY_BYTES_MAX} bytes"),
            Stop::Value => format!("a value is larger than {OUTPUT_BYTES_MAX} bytes"),
            Stop::Depth => format!("a value is nested deeper than {VALUE_DEPTH_MAX} levels"),
            Stop::ArgumentBytes(max) => format!("an argument is larger than the {max} bytes this function takes"),
            Stop::ArgumentInteger(max) => format!("a number is beyond the {max} this function takes"),
        }
    }
}

thread_local! {
    static USED: Cell<usize> = const { Cell::new(0) };
    static STOP: Cell<Option<Stop>> = const { Cell::new(None) };
}

/// Begins a run: nothing used, nothing stopped.
pub(super) fn start() {
    USED.set(0);
    STOP.set(None);
}

/// Why the run was interrupted.
pub(super) fn stopped() -> Option<Stop> {
    STOP.take()
}

/// The error that no `??` and no `x, err =` of the program can catch.
pub(super) fn stop(why: Stop) -> ExpressionError {
    STOP.set(Some(why));
    ExpressionError::Interrupted
}

pub(super) fn used() -> usize {
    USED.get()
}

/// Gives back what was used since `used` was read.
pub(super) fn give_back_to(used: usize) {
    USED.set(USED.get().min(used));
}

pub(super) fn give_back(value: &Value) {
    if let Ok(size) = size_of(value) {
        USED.set(USED.get().saturating_sub(size.memory()));
    }
}

/// Counts a value.
pub(super) fn charge(value: &Value) -> Result<(), ExpressionError> {
    let size = size_of(value).map_err(stop)?;
    charge_bytes(size.memory())
}

pub(super) fn charge_bytes(bytes: usize) -> Result<(), ExpressionError> {
    let used = USED.get().saturating_add(bytes);
    USED.set(used);
    if used > MEMORY_BYTES_MAX { Err(stop(Stop::Memory)) } else { Ok(()) }
}

/// Counts `items` values without looking into them.
pub(super) fn charge_items(items: usize) -> Result<(), ExpressionError> {
    charge_bytes(items.saturating_mul(NODE_BYTES))
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Size {
    items: usize,
    text: usize,
}

impl Size {
    fn memory(self) -> usize {
        self.items * NODE_BYTES + self.text
    }

    /// About the length of its JSON: every value takes a digit and a comma.
    pub(super) fn text(self) -> usize {
        self.text + 2 * self.items
    }
}

/// Measures a value, and refuses one that is too large or too deep before having walked all of it.
pub(super) fn size_of(value: &Value) -> Result<Size, Stop> {
    let mut size = Size::default();
    add(value, VALUE_DEPTH_MAX, &mut size)?;
    Ok(size)
}

fn add(value: &Value, levels: usize, size: &mut Size) -> Result<(), Stop> {
    size.items += 1;
    match value {
        Value::Bytes(text) => size.text += text.len(),
        Value::String(text) => size.text += text.len(),
        Value::Object(fields) => {
            let levels = levels.checked_sub(1).ok_or(Stop::Depth)?;
            for (key, value) in fields {
                size.text += key.len();
                add(value, levels, size)?;
            }
        }
        Value::Array(items) => {
            let levels = levels.checked_sub(1).ok_or(Stop::Depth)?;
            for value in items {
                add(value, levels, size)?;
            }
        }
        _ => {}
    }
    if size.text() > OUTPUT_BYTES_MAX { Err(Stop::Value) } else { Ok(()) }
}

/// Whether every integer in `value` is between `-max` and `max`.
pub(super) fn integers_within(value: &Value, max: i64) -> bool {
    match value {
        Value::Integer(number) => number.unsigned_abs() <= max.unsigned_abs(),
        Value::Array(items) => items.iter().all(|item| integers_within(item, max)),
        _ => true,
    }
}

/// Counts expressions; the runtime asks before each.
#[derive(Debug)]
pub(super) struct Operations(u32);

impl Operations {
    pub(super) fn new() -> Self {
        Operations(OPERATIONS_MAX)
    }
}

impl vrl::compiler::runtime::ExecutionControl for Operations {
    fn checkpoint(&mut self) -> ControlFlow<()> {
        match self.0.checked_sub(1) {
            Some(left) => {
                self.0 = left;
                ControlFlow::Continue(())
            }
            None => {
                STOP.set(Some(Stop::Operations));
                ControlFlow::Break(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(Value::Null, |inner, _| Value::Array(vec![inner]))
    }

    #[test]
    fn a_value_at_the_limit_passes_and_one_beyond_does_not() {
        assert!(size_of(&nested(VALUE_DEPTH_MAX)).is_ok());
        assert_eq!(size_of(&nested(VALUE_DEPTH_MAX + 1)), Err(Stop::Depth));
        assert!(size_of(&Value::from("x".repeat(OUTPUT_BYTES_MAX - 2))).is_ok());
        assert_eq!(size_of(&Value::from("x".repeat(OUTPUT_BYTES_MAX))), Err(Stop::Value));
    }

    #[test]
    fn what_is_given_back_can_be_used_again_and_the_sum_is_bounded() {
        start();
        let large = Value::from("x".repeat(OUTPUT_BYTES_MAX / 2));
        for _ in 0..1000 {
            charge(&large).unwrap();
            give_back(&large);
        }
        assert_eq!(used(), 0);
        let charged = (0..1000).take_while(|_| charge(&large).is_ok()).count();
        assert_eq!(charged, MEMORY_BYTES_MAX / (OUTPUT_BYTES_MAX / 2 + NODE_BYTES));
        assert_eq!(stopped(), Some(Stop::Memory));
    }
}
