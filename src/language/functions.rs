//! The functions a program may call, ours among them, and what is said about the others.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::LazyLock;

use vrl::compiler::Function;

use super::catalogue::{OFFERED, WITHHELD, Withheld};
use super::fault::Fault;
use super::metered::{Counted, Wrap};
use super::own::{Join, Replace, TableLookup};

/// One offered function, for `vejas explain functions` and the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionDoc {
    pub name: &'static str,
    pub summary: &'static str,
}

/// What a program may call, by name.
pub fn functions() -> Vec<FunctionDoc> {
    OFFERED.iter().map(|&(name, summary)| FunctionDoc { name, summary }).collect()
}

/// What the compiler is given: the offered functions, counted, and the ones that `rewrite` puts in.
pub(super) static COMPILED: LazyLock<Vec<Box<dyn Function>>> = LazyLock::new(|| {
    let offered: BTreeSet<&str> = OFFERED.iter().map(|(name, _)| *name).collect();
    let own: [Box<dyn Function>; 3] = [Box::new(Join), Box::new(Replace), Box::new(TableLookup)];
    let ours: BTreeSet<&str> = own.iter().map(|f| f.identifier()).collect();
    let library = vrl::stdlib::all().into_iter();
    let taken = library.filter(|f| offered.contains(f.identifier()) && !ours.contains(f.identifier()));
    let counted = taken.chain(own).map(|function| Box::new(Counted(function)) as Box<dyn Function>);
    counted.chain(Wrap::ALL.map(|wrap| Box::new(wrap) as Box<dyn Function>)).collect()
});

/// What the arguments of one function are held to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) bytes: i64,
    pub(super) integer: i64,
}

/// Functions whose result, work or memory grows faster than their arguments.
pub(super) fn limits(name: &str) -> Option<Limits> {
    const KIB: i64 = 1024;
    let any = i64::MAX;
    let (bytes, integer) = match name {
        // A number says how large the result is.
        "range" | "set" | "format_number" | "round" | "ceil" | "floor" => (any, 10_000),
        // Each part of the result repeats a part of the argument: keys of all levels, groups of a match.
        "flatten" | "encode_key_value" | "encode_logfmt" | "parse_regex" | "parse_regex_all" | "contains_all" => {
            (64 * KIB, any)
        }
        // A few bytes of text become a value of its own, or each is looked at by a pattern.
        "split"
        | "chunks"
        | "parse_csv"
        | "parse_key_value"
        | "parse_logfmt"
        | "parse_tokens"
        | "parse_query_string"
        | "parse_influxdb"
        | "parse_cef"
        | "encode_json"
        | "match"
        | "match_any"
        | "match_array"
        | "find"
        | "parse_glog"
        | "parse_common_log"
        | "parse_apache_log"
        | "parse_nginx_log"
        | "parse_aws_alb_log"
        | "parse_aws_vpc_flow_log" => (1024 * KIB, any),
        _ => return None,
    };
    Some(Limits { bytes, integer })
}

/// What to say about a call of `name`, when it is not offered.
pub(super) fn refusal(name: &str, span: Range<usize>) -> Option<Fault> {
    if OFFERED.binary_search_by(|(offered, _)| (*offered).cmp(name)).is_ok() {
        return None;
    }
    let Some((_, why)) = WITHHELD.iter().find(|(withheld, _)| *withheld == name) else {
        let fault = Fault::new(format!("there is no function `{name}`"), span);
        return Some(match nearest(name, OFFERED.iter().map(|(offered, _)| *offered)) {
            Some(near) => fault.help(format!("did you mean `{near}`?")),
            None => fault.help("`vejas explain functions` lists what is offered"),
        });
    };
    let why = match why {
        Withheld::Changes => "programs must give the same result on every run",
        Withheld::Outside => "programs see nothing but the message and the declared tables",
        Withheld::Unbounded => "its memory or time is not bounded by its input",
        Withheld::Foreign => "it is not part of this edition of the language",
    };
    let fault = Fault::new(format!("`{name}` is not offered: {why}"), span);
    Some(match help(name) {
        Some(help) => fault.help(help),
        None => fault,
    })
}

/// What to do instead.
fn help(name: &str) -> Option<&'static str> {
    Some(match name {
        "now" => "use `%time`, the time the message entered",
        "uuid_v4" | "uuid_v7" | "random_bytes" | "random_int" => "use `%id`, the identity of the message",
        "unnest" => "use a `split` step: one message for each item",
        "log" => "use `abort` to give a message up with a reason",
        "get_env_var" => "put the value into a Table",
        "unflatten" => "use `set` or assign to the paths",
        "to_regex" => "write the pattern out: r'…'",
        "http_request" => "use a `Table` or a `lookup` step",
        "parse_grok" | "parse_groks" => "use `parse_regex` with named groups",
        _ => return None,
    })
}

/// The candidate that `name` is most likely a misspelling of.
pub(super) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const SIMILARITY_MIN: f64 = 0.84;
    candidates
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity >= SIMILARITY_MIN)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_of_the_library_is_offered_or_withheld_on_purpose() {
        let offered: BTreeSet<&str> = OFFERED.iter().map(|(name, _)| *name).collect();
        let withheld: BTreeSet<&str> = WITHHELD.iter().map(|(name, _)| *name).collect();
        assert_eq!(offered.intersection(&withheld).collect::<Vec<_>>(), Vec::<&&str>::new());
        let library = vrl::stdlib::all();
        let undecided: Vec<_> =
            library.iter().map(|f| f.identifier()).filter(|n| !offered.contains(n) && !withheld.contains(n)).collect();
        assert_eq!(undecided, Vec::<&str>::new(), "decide about these in catalogue.rs");
        let library: BTreeSet<&str> = library.iter().map(|f| f.identifier()).chain(["table"]).collect();
        let gone: Vec<_> = offered.difference(&library).collect();
        assert_eq!(gone, Vec::<&&str>::new(), "offered but not in the library");
    }

    #[test]
    fn the_offered_list_is_sorted_and_each_entry_is_compiled_once() {
        assert!(OFFERED.is_sorted_by(|left, right| left.0 < right.0));
        for (name, summary) in OFFERED {
            assert!(!summary.is_empty(), "{name}");
            assert_eq!(COMPILED.iter().filter(|f| f.identifier() == *name).count(), 1, "{name}");
        }
        assert_eq!(COMPILED.len(), OFFERED.len() + Wrap::ALL.len());
    }

    #[test]
    fn a_misspelt_name_gets_a_suggestion_and_nonsense_gets_none() {
        assert_eq!(refusal("upcse", 0..5).unwrap().help.as_deref(), Some("did you mean `upcase`?"));
        assert_eq!(nearest("zzzz", ["upcase", "downcase"].into_iter()), None);
    }
}
