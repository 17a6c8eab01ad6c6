//! Functions of ours: `table`, and `join` and `replace`, whose library form may make a result of any size from
//! small arguments.

use std::sync::Arc;

use vrl::prelude::*;

use super::meter::{self, OUTPUT_BYTES_MAX, Stop};
use super::table::{Table, Tables};

/// Names what the compiler may otherwise leave empty.
macro_rules! described {
    ($name:literal, $kind:expr, $category:expr) => {
        fn identifier(&self) -> &'static str {
            $name
        }

        fn usage(&self) -> &'static str {
            ""
        }

        fn category(&self) -> &'static str {
            $category.as_ref()
        }

        fn return_kind(&self) -> u16 {
            $kind
        }

        fn examples(&self) -> &'static [Example] {
            &[]
        }
    };
}

/// `table("vat", key)`: the row, or null.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableLookup;

impl Function for TableLookup {
    described!("table", kind::ANY, Category::Enumerate);

    fn parameters(&self) -> &'static [Parameter] {
        const PARAMETERS: &[Parameter] = &[
            Parameter::required("name", kind::BYTES, "the table's name, written out"),
            Parameter::required("key", kind::ANY, "the row's key; a value that is no scalar finds nothing"),
        ];
        PARAMETERS
    }

    fn compile(&self, state: &TypeState, ctx: &mut FunctionCompileContext, arguments: ArgumentList) -> Compiled {
        let name = arguments.required_literal("name", state)?;
        let name = name.to_string_lossy();
        // `rewrite` has reported an unknown name already, at its place in the text.
        let table = ctx.get_external_context::<Tables>().and_then(|tables| tables.get(&*name)).cloned();
        let kind = table.as_ref().map_or_else(|| Kind::any().without_undefined(), |table| table.kind());
        Ok(TableLookupCall { table, kind, key: arguments.required("key") }.as_expr())
    }
}

#[derive(Debug, Clone)]
struct TableLookupCall {
    table: Option<Arc<Table>>,
    kind: Kind,
    key: Box<dyn Expression>,
}

impl FunctionExpression for TableLookupCall {
    fn resolve(&self, ctx: &mut Context) -> Resolved {
        let key = self.key.resolve(ctx)?;
        Ok(self.table.as_ref().and_then(|table| table.row(&key)).cloned().unwrap_or(Value::Null))
    }

    fn type_def(&self, _: &TypeState) -> TypeDef {
        TypeDef::from(self.kind.clone()).infallible()
    }
}

/// `join(["a", "b"], ", ")`, its result bounded before it is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Join;

impl Function for Join {
    described!("join", kind::BYTES, Category::String);

    fn parameters(&self) -> &'static [Parameter] {
        const PARAMETERS: &[Parameter] = &[
            Parameter::required("value", kind::ARRAY, "the texts").with_element_kind(kind::BYTES),
            Parameter::optional("separator", kind::BYTES, "what is put between them"),
        ];
        PARAMETERS
    }

    fn compile(&self, _: &TypeState, _: &mut FunctionCompileContext, arguments: ArgumentList) -> Compiled {
        let value = arguments.required("value");
        Ok(JoinCall { value, separator: arguments.optional("separator") }.as_expr())
    }
}

#[derive(Debug, Clone)]
struct JoinCall {
    value: Box<dyn Expression>,
    separator: Option<Box<dyn Expression>>,
}

impl FunctionExpression for JoinCall {
    fn resolve(&self, ctx: &mut Context) -> Resolved {
        let items = self.value.resolve(ctx)?.try_array()?;
        let separator = self.separator.as_ref().map(|separator| separator.resolve(ctx)).transpose()?;
        let separator = separator.as_ref().map(|s| s.try_bytes_utf8_lossy()).transpose()?.unwrap_or_default();
        let texts: Vec<_> = items
            .iter()
            .map(|item| item.to_str_lossy().ok_or("all array items must be strings"))
            .collect::<Result<_, _>>()?;
        let between = separator.len().saturating_mul(texts.len().saturating_sub(1));
        let total = texts.iter().fold(between, |sum, text| sum.saturating_add(text.len()));
        if total > OUTPUT_BYTES_MAX {
            return Err(meter::stop(Stop::Value));
        }
        Ok(texts.join(&*separator).into())
    }

    fn type_def(&self, _: &TypeState) -> TypeDef {
        TypeDef::bytes().infallible()
    }
}

/// `replace("a b", " ", "-")`, its result bounded while it is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replace;

impl Function for Replace {
    described!("replace", kind::BYTES, Category::String);

    fn parameters(&self) -> &'static [Parameter] {
        const PARAMETERS: &[Parameter] = &[
            Parameter::required("value", kind::BYTES, "the text"),
            Parameter::required("pattern", kind::BYTES | kind::REGEX, "what is replaced"),
            Parameter::required("with", kind::BYTES, "what it is replaced with; `$name` is a group of the pattern"),
            Parameter::optional("count", kind::INTEGER, "how many are replaced at most; all when negative"),
        ];
        PARAMETERS
    }

    fn compile(&self, _: &TypeState, _: &mut FunctionCompileContext, arguments: ArgumentList) -> Compiled {
        let call = ReplaceCall {
            value: arguments.required("value"),
            pattern: arguments.required("pattern"),
            with: arguments.required("with"),
            count: arguments.optional("count"),
        };
        Ok(call.as_expr())
    }
}

#[derive(Debug, Clone)]
struct ReplaceCall {
    value: Box<dyn Expression>,
    pattern: Box<dyn Expression>,
    with: Box<dyn Expression>,
    count: Option<Box<dyn Expression>>,
}

impl FunctionExpression for ReplaceCall {
    fn resolve(&self, ctx: &mut Context) -> Resolved {
        let value = self.value.resolve(ctx)?;
        let with = self.with.resolve(ctx)?;
        let count = self.count.as_ref().map(|count| count.resolve(ctx)).transpose()?;
        let count = count.map(|count| count.try_integer()).transpose()?.unwrap_or(-1);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let (value, with) = (value.try_bytes_utf8_lossy()?, with.try_bytes_utf8_lossy()?);
        let replaced = match self.pattern.resolve(ctx)? {
            Value::Regex(pattern) => {
                // A replacement names each group it uses with a `$`, and no group is longer than its match.
                let groups = with.bytes().filter(|&b| b == b'$').count();
                let matches = pattern.captures_iter(&value).take(count).map(|captures| {
                    let found = captures.get_match();
                    (found.range(), groups.saturating_mul(found.len()), Some(captures))
                });
                build(&value, &with, matches, |captures, out| match captures {
                    Some(captures) => captures.expand(&with, out),
                    None => out.push_str(&with),
                })
            }
            pattern => {
                let pattern = pattern.try_bytes_utf8_lossy()?;
                let matches =
                    value.match_indices(&*pattern).take(count).map(|(at, found)| (at..at + found.len(), 0, ()));
                build(&value, &with, matches, |(), out| out.push_str(&with))
            }
        };
        Ok(replaced.ok_or_else(|| meter::stop(Stop::Value))?.into())
    }

    fn type_def(&self, _: &TypeState) -> TypeDef {
        TypeDef::bytes().infallible()
    }
}

/// Copies `value` with each match replaced; `None` when the result would be too large. A match comes with the bytes
/// that putting in its replacement may take besides those of `with`.
fn build<T>(
    value: &str,
    with: &str,
    matches: impl Iterator<Item = (std::ops::Range<usize>, usize, T)>,
    put: impl Fn(T, &mut String),
) -> Option<String> {
    let mut out = String::with_capacity(value.len());
    let mut from = 0;
    for (range, more, found) in matches {
        out.push_str(&value[from..range.start]);
        let after = out.len().saturating_add(with.len()).saturating_add(more);
        if after > OUTPUT_BYTES_MAX {
            return None;
        }
        put(found, &mut out);
        from = range.end;
    }
    out.push_str(&value[from..]);
    (out.len() <= OUTPUT_BYTES_MAX).then_some(out)
}
