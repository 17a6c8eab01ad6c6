//! Checks a parsed program and puts the meters into it.
//!
//! Checked here, because the compiler would not or would say it less well: functions that are not offered, names of
//! tables, depth of expressions, numbers and regular expressions that cost memory. Put in: the functions of
//! `metered`, around everything that makes or copies a value which may live on.

use std::collections::BTreeSet;
use std::ops::Range;

use vrl::diagnostic::Span;
use vrl::parser::ast::{
    Array, Assignment, AssignmentOp, AssignmentTarget, Block, Container, Expr, FunctionArgument, FunctionCall,
    FunctionClosure, Group, Ident, IfStatement, Literal, Node, Not, Object, Op, Opcode, Predicate, Program, Query,
    QueryTarget, Return, RootExpr, Unary,
};
use vrl::path::{OwnedSegment, OwnedValuePath};

use super::fault::Fault;
use super::functions::{self, Limits};
use super::metered::Wrap;
use super::table::Tables;

/// Expressions inside one another. Evaluating takes the machine's stack, about 2 KiB for each.
pub(super) const EXPRESSION_DEPTH_MAX: usize = 160;
/// Regular expressions in one program; each may take some MiB once compiled.
const REGEXES_MAX: usize = 64;
/// Largest number in a path: assigning to `x[1000]` fills the places before it.
/// The compiler keeps a type for each of them.
const INDEX_MAX: usize = 1_000;
/// Parts of one path.
const PATH_PARTS_MAX: usize = 32;

/// What becomes of an expression's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It may be kept: assigned, put into a collection, the result of a block.
    Kept,
    /// It is looked at and dropped.
    Passing,
}

/// What is wrong with a program.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) faults: Vec<Fault>,
    /// A bound that protects the compiler is exceeded: the program must not be given to it.
    pub(super) unsafe_to_compile: bool,
    /// The program with its meters nevertheless.
    pub(super) metered: Program,
}

/// The program with its meters, or what is wrong with it.
pub(super) fn rewrite(program: Program, tables: &Tables) -> Result<Program, Refused> {
    let mut pass = Pass {
        tables,
        faults: Vec::new(),
        loop_variables: BTreeSet::new(),
        depth: 0,
        regexes: 0,
        inside: 0,
        unsafe_to_compile: false,
    };
    let rewritten = Program(
        program
            .into_iter()
            .map(|root| {
                root.map(|root| match root {
                    RootExpr::Expr(expr) => RootExpr::Expr(pass.expr(expr, Place::Kept)),
                    error @ RootExpr::Error(_) => error,
                })
            })
            .collect(),
    );
    let Pass { faults, unsafe_to_compile, .. } = pass;
    if faults.is_empty() { Ok(rewritten) } else { Err(Refused { faults, unsafe_to_compile, metered: rewritten }) }
}

struct Pass<'a> {
    tables: &'a Tables,
    faults: Vec<Fault>,
    /// Variables that some closure of the program binds, whose old values were not counted as assigned.
    loop_variables: BTreeSet<String>,
    depth: usize,
    regexes: usize,
    /// Wrapped expressions and arguments around this place: where an assignment would lose its variable.
    inside: usize,
    unsafe_to_compile: bool,
}

impl Pass<'_> {
    fn fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Refuses what the compiler could not bear either.
    fn bound(&mut self, fault: Fault) {
        self.unsafe_to_compile = true;
        self.fault(fault);
    }

    fn expr(&mut self, node: Node<Expr>, place: Place) -> Node<Expr> {
        let span = node.span();
        if self.depth == EXPRESSION_DEPTH_MAX {
            let message = format!("more than {EXPRESSION_DEPTH_MAX} expressions inside one another");
            self.bound(Fault::new(message, span.range()).help("give a part of it a name: `part = …`"));
            // Nothing below is looked at: one fault is enough, and the program will not be compiled.
            self.depth += 1;
            return node;
        }
        if self.depth > EXPRESSION_DEPTH_MAX {
            return node;
        }
        self.depth += 1;
        let expr = self.inner(node.into_inner(), span, place);
        if self.depth <= EXPRESSION_DEPTH_MAX {
            self.depth -= 1;
        }
        Node::new(span, expr)
    }

    fn inner(&mut self, expr: Expr, span: Span, place: Place) -> Expr {
        match expr {
            Expr::Literal(literal) => self.literal(literal, place),
            Expr::Container(container) => {
                let container = container.map(|container| self.container(container, place));
                match container.inner() {
                    Container::Array(_) | Container::Object(_) => {
                        wrap(Wrap::Build, span, Note::default(), vec![Expr::Container(container)])
                    }
                    _ => Expr::Container(container),
                }
            }
            Expr::IfStatement(statement) => Expr::IfStatement(statement.map(|s| self.if_statement(s, place))),
            Expr::Op(op) => self.op(op, span, place),
            Expr::Assignment(assignment) => Expr::Assignment(assignment.map(|a| self.assignment(a, span))),
            Expr::Query(query) => {
                let query = Expr::Query(query.map(|query| self.query(query)));
                self.read(query, span, place)
            }
            Expr::Variable(ident) => self.read(Expr::Variable(ident), span, place),
            Expr::FunctionCall(call) => Expr::FunctionCall(call.map(|call| self.call(call))),
            Expr::Unary(unary) => Expr::Unary(unary.map(|Unary::Not(not)| {
                Unary::Not(not.map(|not| {
                    let (mark, expr) = not.take();
                    Not::new(mark.span(), self.expr(*expr, Place::Passing))
                }))
            })),
            Expr::Abort(abort) => Expr::Abort(abort.map(|mut abort| {
                abort.message = abort.message.map(|message| Box::new(self.expr(*message, Place::Passing)));
                abort
            })),
            Expr::Return(node) => {
                Expr::Return(node.map(|r| Return { expr: Box::new(self.expr(*r.expr, Place::Kept)) }))
            }
            Expr::Break(node) => Expr::Break(node),
        }
    }

    fn read(&mut self, expr: Expr, span: Span, place: Place) -> Expr {
        match place {
            Place::Kept => wrap(Wrap::Read, span, Note::default(), vec![expr]),
            Place::Passing => expr,
        }
    }

    fn literal(&mut self, literal: Node<Literal>, place: Place) -> Expr {
        match literal.inner() {
            Literal::String(template) if template.as_literal_string().is_none() => {
                let span = literal.span();
                let spelled_out = Node::new(span, template.rewrite_to_concatenated_strings());
                self.expr(spelled_out, place).into_inner()
            }
            Literal::Regex(_) => {
                self.regexes += 1;
                if self.regexes == REGEXES_MAX + 1 {
                    let message = format!("more than {REGEXES_MAX} regular expressions");
                    self.bound(Fault::new(message, literal.span().range()));
                }
                Expr::Literal(literal)
            }
            _ => Expr::Literal(literal),
        }
    }

    fn container(&mut self, container: Container, place: Place) -> Container {
        match container {
            Container::Group(group) => {
                Container::Group(Box::new((*group).map(|group| Group(self.expr(group.into_inner(), place)))))
            }
            Container::Block(block) => Container::Block(self.block(block, place)),
            Container::Array(array) => Container::Array(
                array.map(|array| array.into_iter().map(|item| self.expr(item, Place::Kept)).collect::<Array>()),
            ),
            Container::Object(object) => Container::Object(object.map(|object| {
                object.into_iter().map(|(key, value)| (key, self.expr(value, Place::Kept))).collect::<Object>()
            })),
        }
    }

    fn block(&mut self, block: Node<Block>, place: Place) -> Node<Block> {
        block.map(|block| Block(block.into_iter().map(|expr| self.expr(expr, place)).collect()))
    }

    fn if_statement(&mut self, statement: IfStatement, place: Place) -> IfStatement {
        let IfStatement { predicate, if_node, else_node } = statement;
        let predicate = predicate.map(|predicate| match predicate {
            Predicate::One(expr) => Predicate::One(Box::new(self.expr(*expr, Place::Passing))),
            Predicate::Many(exprs) => {
                Predicate::Many(exprs.into_iter().map(|expr| self.expr(expr, Place::Passing)).collect())
            }
        });
        let if_node = self.block(if_node, place);
        let else_node = else_node.map(|block| self.block(block, place));
        IfStatement { predicate, if_node, else_node }
    }

    fn op(&mut self, op: Node<Op>, span: Span, place: Place) -> Expr {
        let Op(left, opcode, right) = op.into_inner();
        let kept = if matches!(opcode.inner(), Opcode::Err | Opcode::Or) { place } else { Place::Passing };
        let wrapped = Wrap::of(*opcode.inner()).filter(|w| !stays_a_number(*w, &left, &right));
        self.inside += usize::from(wrapped.is_some());
        let left = self.expr(*left, kept);
        let right = self.expr(*right, kept);
        self.inside -= usize::from(wrapped.is_some());
        match wrapped {
            Some(operator) => wrap(operator, span, Note::default(), vec![left.into_inner(), right.into_inner()]),
            None => Expr::Op(Node::new(span, Op(Box::new(left), opcode, Box::new(right)))),
        }
    }

    fn assignment(&mut self, assignment: Assignment, span: Span) -> Assignment {
        if self.inside > 0 {
            let fault = Fault::new("an assignment inside an operator or an argument", span.range());
            self.fault(fault.help("assign on a line of its own, before"));
        }
        match assignment {
            Assignment::Single { target, op, expr } => {
                let expr = self.assigned(&target, op, *expr);
                Assignment::Single { target, op: AssignmentOp::Assign, expr }
            }
            Assignment::Infallible { ok, err, op, expr } => {
                let expr = self.assigned(&ok, op, *expr);
                self.filled(&err);
                Assignment::Infallible { ok, err, op: AssignmentOp::Assign, expr }
            }
        }
    }

    /// The value of an assignment. `a |= b` becomes `a = a | b`, as the compiler would have it.
    fn assigned(&mut self, target: &Node<AssignmentTarget>, op: AssignmentOp, expr: Node<Expr>) -> Box<Node<Expr>> {
        let span = expr.span();
        let filled = self.filled(target);
        let expr = match op {
            AssignmentOp::Assign => expr,
            AssignmentOp::Merge => {
                let old = Node::new(target.span(), target.inner().to_expr(target.span()));
                let merge = Op(Box::new(old), Node::new(span, Opcode::Merge), Box::new(expr));
                Node::new(span, Expr::Op(Node::new(span, merge)))
            }
        };
        let expr = self.expr(expr, Place::Kept);
        let name = match target.inner() {
            AssignmentTarget::Internal(ident, None) if !self.loop_variables.contains(&**ident) => ident.to_string(),
            _ => String::new(),
        };
        if name.is_empty() && filled == 0 {
            return Box::new(expr);
        }
        let note = Note { name, first: filled, second: 0 };
        Box::new(Node::new(span, wrap(Wrap::Store, span, note, vec![expr.into_inner()])))
    }

    /// How many places assigning to this path may fill.
    fn filled(&mut self, target: &Node<AssignmentTarget>) -> i64 {
        let path = match target.inner() {
            AssignmentTarget::Query(query) => query.path.inner(),
            AssignmentTarget::Internal(_, Some(path)) => path,
            AssignmentTarget::External(Some(path)) => &path.path,
            _ => return 0,
        };
        self.path(path, target.span())
    }

    fn path(&mut self, path: &OwnedValuePath, span: Span) -> i64 {
        if path.segments.len() > PATH_PARTS_MAX {
            self.bound(Fault::new(format!("a path of more than {PATH_PARTS_MAX} parts"), span.range()));
        }
        let mut filled = 0;
        for segment in &path.segments {
            if let OwnedSegment::Index(index) = segment {
                filled += index.unsigned_abs();
                if index.unsigned_abs() > INDEX_MAX {
                    self.bound(Fault::new(format!("an index beyond {INDEX_MAX}"), span.range()));
                }
            }
        }
        i64::try_from(filled).unwrap_or(i64::MAX)
    }

    fn query(&mut self, query: Query) -> Query {
        let Query { target, path } = query;
        self.path(path.inner(), path.span());
        let target = target.map(|target| match target {
            QueryTarget::FunctionCall(call) => QueryTarget::FunctionCall(self.call(call)),
            QueryTarget::Container(container) => QueryTarget::Container(self.container(container, Place::Passing)),
            plain => plain,
        });
        Query { target, path }
    }

    fn call(&mut self, call: FunctionCall) -> FunctionCall {
        let FunctionCall { ident, abort_on_error, arguments, closure } = call;
        let name = ident.to_string();
        if let Some(fault) = functions::refusal(&name, ident.span().range()) {
            self.fault(fault);
        }
        if name == "table" {
            self.table(&arguments, ident.span().range());
        }
        let limits = functions::limits(&name);
        // These two take the path itself, not a value.
        let by_path = matches!(name.as_str(), "del" | "exists");
        self.inside += 1;
        let arguments = arguments
            .into_iter()
            .map(|argument| argument.map(|argument| self.argument(argument, limits, by_path)))
            .collect();
        self.inside -= 1;
        let closure = closure.map(|closure| closure.map(|closure| self.closure(closure)));
        FunctionCall { ident, abort_on_error, arguments, closure }
    }

    fn argument(&mut self, argument: FunctionArgument, limits: Option<Limits>, by_path: bool) -> FunctionArgument {
        let FunctionArgument { ident, expr } = argument;
        let span = expr.span();
        if let (Expr::Literal(literal), Some(limits)) = (expr.inner(), limits)
            && let Literal::Integer(number) = literal.inner()
            && number.unsigned_abs() > limits.integer.unsigned_abs()
        {
            let message = format!("a number beyond {}, the most this function takes", limits.integer);
            self.fault(Fault::new(message, span.range()));
        }
        let is_literal = matches!(expr.inner(), Expr::Literal(literal) if !is_template(literal));
        let place = if by_path { Place::Passing } else { Place::Kept };
        let expr = self.expr(expr, place);
        let expr = match limits {
            Some(limits) if !is_literal => {
                let note = Note { name: String::new(), first: limits.bytes, second: limits.integer };
                Node::new(span, wrap(Wrap::Bound, span, note, vec![expr.into_inner()]))
            }
            _ => expr,
        };
        FunctionArgument { ident, expr }
    }

    fn closure(&mut self, closure: FunctionClosure) -> FunctionClosure {
        let FunctionClosure { variables, block } = closure;
        self.loop_variables.extend(variables.iter().map(|variable| variable.to_string()));
        // Inside a closure an assignment reaches the variables outside, wherever the call stands.
        let inside = std::mem::take(&mut self.inside);
        let block = self.block(block, Place::Kept);
        self.inside = inside;
        FunctionClosure { variables, block }
    }

    fn table(&mut self, arguments: &[Node<FunctionArgument>], call: Range<usize>) {
        let name = arguments.iter().find(|a| a.ident.as_ref().is_some_and(|ident| &***ident == "name"));
        let Some(name) = name.or(arguments.first()) else { return };
        let span = name.expr.span().range();
        let literal = match name.expr.inner() {
            Expr::Literal(literal) => match literal.inner() {
                Literal::String(text) => text.as_literal_string().map(str::to_owned),
                Literal::RawString(text) => Some(text.clone()),
                _ => None,
            },
            _ => None,
        };
        match literal {
            None => {
                let fault = Fault::new("the name of a table has to be written out", span);
                self.fault(fault.help("write it as text, as in `table(\"vat\", .country)`"));
            }
            Some(name) if !self.tables.contains_key(&name) => {
                let mut fault = Fault::new(format!("there is no table `{name}`"), span);
                fault.labels.push((call, "looked up here".to_owned()));
                self.fault(fault.help(tables_help(&name, self.tables)));
            }
            Some(_) => {}
        }
    }
}

fn tables_help(name: &str, tables: &Tables) -> String {
    if let Some(near) = functions::nearest(name, tables.keys().map(String::as_str)) {
        return format!("did you mean `{near}`?");
    }
    if tables.is_empty() {
        return "no table is declared; add a manifest of kind Table".to_owned();
    }
    let names: Vec<&str> = tables.keys().map(String::as_str).take(20).collect();
    format!("tables that are declared: {}", names.join(", "))
}

fn is_template(literal: &Node<Literal>) -> bool {
    matches!(literal.inner(), Literal::String(text) if text.as_literal_string().is_none())
}

/// Whether an operand says that the result is a number, which cannot grow.
fn stays_a_number(operator: Wrap, left: &Node<Expr>, right: &Node<Expr>) -> bool {
    let number = |expr: &Node<Expr>, float_only: bool| match expr.inner() {
        Expr::Literal(literal) => match literal.inner() {
            Literal::Integer(_) => !float_only,
            Literal::Float(_) => true,
            _ => false,
        },
        _ => false,
    };
    match operator {
        Wrap::Add => number(left, false) || number(right, false),
        Wrap::Multiply => number(left, true) || number(right, true),
        _ => false,
    }
}

/// What a wrapping function is told.
#[derive(Debug, Default)]
struct Note {
    name: String,
    first: i64,
    second: i64,
}

fn wrap(wrap: Wrap, span: Span, note: Note, exprs: Vec<Expr>) -> Expr {
    let argument = |literal| {
        let expr = Node::new(span, Expr::Literal(Node::new(span, literal)));
        Node::new(span, FunctionArgument { ident: None, expr })
    };
    let block = Block(exprs.into_iter().map(|expr| Node::new(span, expr)).collect());
    let call = FunctionCall {
        ident: Node::new(span, Ident::new(wrap.name())),
        abort_on_error: false,
        arguments: vec![
            argument(Literal::RawString(note.name)),
            argument(Literal::Integer(note.first)),
            argument(Literal::Integer(note.second)),
        ],
        closure: Some(Node::new(span, FunctionClosure { variables: vec![], block: Node::new(span, block) })),
    };
    Expr::FunctionCall(Node::new(span, call))
}
