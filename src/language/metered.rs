//! The functions that `rewrite` puts around parts of a program, and the wrapper around every offered function.
//!
//! Their names hold characters that no program can write. Each takes a closure whose statements are the wrapped
//! expressions, so that a wrapped expression keeps its type and its fallibility. They are evaluated directly, never
//! as a closure.
//!
//! The compiler copies an expression at every level it is nested in. What is kept here is therefore shared: copies
//! of copies would grow with the power of the depth.

use std::sync::Arc;

use vrl::compiler::expression::{Expr, Op};
use vrl::parser::ast::{Node, Opcode};
use vrl::prelude::*;

use super::meter::{self, Stop};

/// Places a type may name before it is taken to be "any object" or "any array". `x = [x, x]` doubles the type of
/// `x` as it doubles its value, and forty such lines would keep the compiler busy for ever.
const TYPE_PLACES_MAX: usize = 500;
/// Levels a type may have before it is taken likewise. `. = {"self": .}` adds one, and what the compiler does with a type
/// grows with the third power of its levels: sixty such lines took a minute.
const TYPE_DEPTH_MAX: usize = 16;
/// Largest constant the compiler may carry along, in bytes of text. They double in the same way.
const CONSTANT_BYTES_MAX: usize = 4 * 1024;

thread_local! {
    static WIDENED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether a type was widened on this thread since the last call: such a program may only be compiled with its
/// meters.
pub(super) fn take_widened() -> bool {
    WIDENED.replace(false)
}

/// Counts down the places in a type; none are left when it has too many, or too many levels.
fn places(kind: &Kind, levels: usize, left: &mut usize) {
    let objects = kind.as_object().into_iter().flat_map(|object| object.known().values());
    let arrays = kind.as_array().into_iter().flat_map(|array| array.known().values());
    for inner in objects.chain(arrays) {
        if *left == 0 {
            return;
        }
        if levels == 0 {
            *left = 0;
            return;
        }
        *left -= 1;
        places(inner, levels - 1, left);
    }
}

fn bounded(constant: Option<Value>) -> Option<Value> {
    let constant = constant?;
    if meter::size_of(&constant).is_ok_and(|size| size.text() <= CONSTANT_BYTES_MAX) {
        return Some(constant);
    }
    WIDENED.set(true);
    None
}

fn widen(info: TypeInfo) -> TypeInfo {
    let mut left = TYPE_PLACES_MAX;
    places(info.result.kind(), TYPE_DEPTH_MAX, &mut left);
    if left > 0 {
        return info;
    }
    WIDENED.set(true);
    info.map_result(|result| {
        let kind = result.kind();
        let mut wide = kind.without_object().without_array();
        if kind.contains_object() {
            wide = wide.or_object(Collection::any());
        }
        if kind.contains_array() {
            wide = wide.or_array(Collection::any());
        }
        result.with_kind(wide)
    })
}

/// What is done with the wrapped expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrap {
    /// A copy of a variable or a part of the event is made: counted.
    Read,
    /// An object or array is put together: its own places are counted.
    Build,
    /// The value of an assignment. `name`: the variable whose old value goes away; `first`: items a path may fill.
    Store,
    /// An argument. `first`: bytes it may have; `second`: the largest integer in it.
    Bound,
    Add,
    Multiply,
    Merge,
}

impl Wrap {
    pub(super) const ALL: [Wrap; 7] =
        [Wrap::Read, Wrap::Build, Wrap::Store, Wrap::Bound, Wrap::Add, Wrap::Multiply, Wrap::Merge];

    pub(super) fn name(self) -> &'static str {
        match self {
            Wrap::Read => "=read",
            Wrap::Build => "=build",
            Wrap::Store => "=store",
            Wrap::Bound => "=bound",
            Wrap::Add => "+",
            Wrap::Multiply => "*",
            Wrap::Merge => "|",
        }
    }

    pub(super) fn of(opcode: Opcode) -> Option<Wrap> {
        match opcode {
            Opcode::Add => Some(Wrap::Add),
            Opcode::Mul => Some(Wrap::Multiply),
            Opcode::Merge => Some(Wrap::Merge),
            _ => None,
        }
    }

    fn opcode(self) -> Option<Opcode> {
        match self {
            Wrap::Add => Some(Opcode::Add),
            Wrap::Multiply => Some(Opcode::Mul),
            Wrap::Merge => Some(Opcode::Merge),
            _ => None,
        }
    }
}

impl Function for Wrap {
    fn identifier(&self) -> &'static str {
        self.name()
    }

    fn usage(&self) -> &'static str {
        ""
    }

    fn category(&self) -> &'static str {
        ""
    }

    fn return_kind(&self) -> u16 {
        kind::ANY
    }

    fn examples(&self) -> &'static [Example] {
        &[]
    }

    fn parameters(&self) -> &'static [Parameter] {
        const PARAMETERS: &[Parameter] = &[
            Parameter::required("name", kind::BYTES, ""),
            Parameter::required("first", kind::INTEGER, ""),
            Parameter::required("second", kind::INTEGER, ""),
        ];
        PARAMETERS
    }

    fn closure(&self) -> Option<closure::Definition> {
        let input = closure::Input {
            parameter_keyword: "name",
            kind: Kind::any(),
            variables: vec![],
            output: closure::Output::Kind(Kind::any()),
            example: Example {
                title: "",
                source: "",
                input: None,
                result: Ok(""),
                file: "",
                line: 0,
                deterministic: true,
                skip: true,
            },
        };
        Some(closure::Definition { inputs: vec![input], is_iterator: false, supports_break: false })
    }

    fn compile(&self, state: &TypeState, ctx: &mut FunctionCompileContext, arguments: ArgumentList) -> Compiled {
        let integer = |keyword| -> Result<i64, function::Error> {
            Ok(arguments.required_literal(keyword, state)?.as_integer().unwrap_or(0))
        };
        let first = integer("first")?;
        let second = integer("second")?;
        let name = arguments.required_literal("name", state)?.to_string_lossy().into_owned();
        let mut wrapped = arguments.required_closure()?.block.into_inner().into_iter();
        // `rewrite` gives two expressions to an operator and one to everything else.
        let left = wrapped.next().unwrap_or(Expr::Noop(expression::Noop));
        let span = ctx.span();
        Ok(match self.opcode() {
            Some(opcode) => {
                let right = wrapped.next().unwrap_or(Expr::Noop(expression::Noop));
                let typed = Op::new(
                    Node::new(span, left.clone()),
                    Node::new(span, opcode),
                    Node::new(span, right.clone()),
                    state,
                )
                .map_err(|error| Box::new(error) as Box<dyn DiagnosticMessage>)?;
                let constant = typed.resolve_constant(state);
                Box::new(Operator(Arc::new(OperatorParts { wrap: *self, left, right, typed, constant })))
            }
            None => {
                let items = match &left {
                    Expr::Container(container) => items_of(container),
                    _ => 0,
                };
                let old = (!name.is_empty()).then(|| vrl::parser::ast::Ident::new(name));
                Box::new(Metered(Arc::new(MeteredParts { wrap: *self, inner: left, items, old, first, second })))
            }
        })
    }
}

fn items_of(container: &expression::Container) -> usize {
    match &container.variant {
        expression::Variant::Array(array) => array.len() + 1,
        expression::Variant::Object(object) => object.len() + 1,
        _ => 0,
    }
}

#[derive(Debug, Clone)]
struct Metered(Arc<MeteredParts>);

#[derive(Debug)]
struct MeteredParts {
    wrap: Wrap,
    inner: Expr,
    items: usize,
    old: Option<vrl::parser::ast::Ident>,
    first: i64,
    second: i64,
}

impl Expression for Metered {
    fn resolve(&self, ctx: &mut Context) -> Resolved {
        match self.0.wrap {
            Wrap::Build => {
                meter::charge_items(self.0.items)?;
                self.0.inner.resolve(ctx)
            }
            Wrap::Store => {
                let value = self.0.inner.resolve(ctx)?;
                if let Some(old) = self.0.old.as_ref().and_then(|ident| ctx.state().variable(ident)) {
                    meter::give_back(old);
                }
                meter::charge_items(usize::try_from(self.0.first).unwrap_or(usize::MAX))?;
                Ok(value)
            }
            Wrap::Bound => {
                let value = self.0.inner.resolve(ctx)?;
                let bytes_max = usize::try_from(self.0.first).unwrap_or(usize::MAX);
                if meter::size_of(&value).map_err(meter::stop)?.text() > bytes_max {
                    return Err(meter::stop(Stop::ArgumentBytes(bytes_max)));
                }
                if !meter::integers_within(&value, self.0.second) {
                    return Err(meter::stop(Stop::ArgumentInteger(self.0.second)));
                }
                Ok(value)
            }
            _ => {
                let value = self.0.inner.resolve(ctx)?;
                meter::charge(&value)?;
                Ok(value)
            }
        }
    }

    fn resolve_constant(&self, state: &TypeState) -> Option<Value> {
        bounded(self.0.inner.resolve_constant(state))
    }

    fn type_info(&self, state: &TypeState) -> TypeInfo {
        widen(self.0.inner.type_info(state))
    }
}

#[derive(Debug, Clone)]
struct Operator(Arc<OperatorParts>);

#[derive(Debug)]
struct OperatorParts {
    wrap: Wrap,
    left: Expr,
    right: Expr,
    /// Says the type; never evaluated.
    typed: Op,
    constant: Option<Value>,
}

impl Expression for Operator {
    fn resolve(&self, ctx: &mut Context) -> Resolved {
        let used = meter::used();
        let left = self.0.left.resolve(ctx)?;
        let right = self.0.right.resolve(ctx)?;
        let value = match self.0.wrap {
            Wrap::Add => left.try_add(right)?,
            Wrap::Multiply => {
                repetition_fits(&left, &right)?;
                left.try_mul(right)?
            }
            _ => left.try_merge(right)?,
        };
        // What was read to make it is gone now.
        meter::give_back_to(used);
        meter::charge(&value)?;
        Ok(value)
    }

    fn resolve_constant(&self, _: &TypeState) -> Option<Value> {
        self.0.constant.clone()
    }

    fn type_info(&self, state: &TypeState) -> TypeInfo {
        widen(self.0.typed.type_info(state))
    }
}

/// `"ab" * 3` repeats a text: the one operator whose result is not bounded by its operands.
fn repetition_fits(left: &Value, right: &Value) -> Result<(), ExpressionError> {
    let (text, times) = match (left, right) {
        (Value::Integer(times), text) | (text, Value::Integer(times)) => (text, *times),
        _ => return Ok(()),
    };
    let bytes = match text {
        Value::Bytes(text) => text.len(),
        Value::String(text) => text.len(),
        _ => return Ok(()),
    };
    let times = usize::try_from(times).unwrap_or(0);
    match bytes.checked_mul(times) {
        Some(total) if total <= meter::OUTPUT_BYTES_MAX => Ok(()),
        _ => Err(meter::stop(Stop::Value)),
    }
}

/// An offered function whose results are counted.
#[derive(Debug)]
pub(super) struct Counted(pub(super) Box<dyn Function>);

impl Function for Counted {
    fn identifier(&self) -> &'static str {
        self.0.identifier()
    }

    fn usage(&self) -> &'static str {
        self.0.usage()
    }

    fn category(&self) -> &'static str {
        self.0.category()
    }

    fn return_kind(&self) -> u16 {
        self.0.return_kind()
    }

    fn examples(&self) -> &'static [Example] {
        self.0.examples()
    }

    fn pure(&self) -> bool {
        self.0.pure()
    }

    fn parameters(&self) -> &'static [Parameter] {
        self.0.parameters()
    }

    fn closure(&self) -> Option<closure::Definition> {
        self.0.closure()
    }

    fn compile(&self, state: &TypeState, ctx: &mut FunctionCompileContext, arguments: ArgumentList) -> Compiled {
        let inner = self.0.compile(state, ctx, arguments)?;
        // `del` is the only function that changes what is known about the event. The type of any other call is
        // worked out once: asking again at each level of nested calls would double the work with every level.
        let type_def = (self.identifier() != "del").then(|| widen(inner.type_info(state)).result);
        Ok(Box::new(CountedCall { inner: inner.into(), type_def, closure: self.closure().is_some() }))
    }
}

#[derive(Debug, Clone)]
struct CountedCall {
    inner: Arc<dyn Expression>,
    type_def: Option<TypeDef>,
    closure: bool,
}

impl Expression for CountedCall {
    fn resolve(&self, ctx: &mut Context) -> Resolved {
        let used = meter::used();
        let result = self.inner.resolve(ctx);
        if !self.closure {
            // Only its arguments were counted meanwhile, and they are gone. A closure may have kept something.
            meter::give_back_to(used);
        }
        let value = result?;
        meter::charge(&value)?;
        Ok(value)
    }

    fn resolve_constant(&self, state: &TypeState) -> Option<Value> {
        bounded(self.inner.resolve_constant(state))
    }

    fn type_info(&self, state: &TypeState) -> TypeInfo {
        match &self.type_def {
            Some(type_def) => TypeInfo::new(state, type_def.clone()),
            None => self.inner.type_info(state),
        }
    }
}
