//! The reader and the check: whatever the bytes, problems with a place come out, in bounded time and memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use vejas::language::Compiler;
use vejas::manifest::check::{FileFault, Tree, TreeFile, World, check};
use vejas::manifest::problem::Problem;
use vejas::manifest::report;

use crate::fuzz;
use crate::mutate::{Text, apply, mutations};

/// For one tree: some programs at the limit of the compiler, on a machine that does other things too.
const CHECK_MAX: Duration = Duration::from_secs(150);
/// Resident at most, all fuzzing of this process included.
const RSS_MB_MAX: u64 = 1_500;

/// What manifests are made of, and what YAML stumbles over.
const DICTIONARY: &[&str] = &[
    "---\n",
    "...\n",
    ": ",
    "- ",
    "? ",
    "|\n",
    ">-\n",
    "&a ",
    "*a",
    "<<: *a",
    "!!int ",
    "!!binary ",
    "{",
    "}",
    "[",
    "]",
    "'",
    "\"",
    "# ",
    "\t",
    "\r\n",
    "\u{feff}",
    "\u{2028}",
    "~",
    "null",
    "no",
    "0o7",
    "1e400",
    "-0",
    ".nan",
    "é",
    "apiVersion: vejas/v1\n",
    "kind: Flow\n",
    "kind: Sink\n",
    "kind: Test\n",
    "metadata: { name: a }\n",
    "spec:\n",
    "  steps:\n",
    "    - map: .a = 1\n",
    "from: \"*\"",
    "from: a.>",
    "to: a.b",
    "every: 0s",
    "cron: \"* * * * *\"",
    "${env:A:-b}",
    "${secret:a/b}",
    "${file:x}",
    "${",
    "when: ",
    "route:",
    "orderBy: ",
    "split: .items",
    ". = merge(object!(.), {\"self\": .})\n",
    ".a.b.c.d.e = .\n",
    "for_each(",
    "table(\"vat\", .x)",
    "parse_json!(",
    "range(",
    "!!!!",
    "((((",
    "[[[[",
    "$ref",
    "\"$ref\": \"#\"",
    "pattern: \"(a+)+$\"",
    "jsonSchema:",
    "allOf:",
    "maxLength: -1",
    "\u{0}",
];

fn corpus() -> Vec<Vec<u8>> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for folder in ["examples", "manifests", "tests/cli/check"] {
        walk(&root.join(folder), &mut found);
    }
    found.sort();
    assert!(found.len() > 30, "{found:?}");
    found.iter().map(|path| fs::read(path).unwrap()).filter(|bytes| bytes.len() < 20_000).collect()
}

/// Checks a tree of one file; every problem has a place and can be shown in every form.
fn judge(Text(bytes): Text) -> Result<(), TestCaseError> {
    let shown = String::from_utf8_lossy(&bytes).into_owned();
    let length = bytes.len();
    let tree = Tree { files: vec![TreeFile { path: "a.yaml".to_owned(), bytes }], problems: Vec::new() };
    let compiler = Compiler::new();
    let world = World {
        compiler: &compiler,
        read_beside: &|_, _, _| Err(FileFault::Missing),
        is_set: Some(&|_| false),
        api_address: "127.0.0.1:8686".parse().ok(),
        listen_default: "127.0.0.1:8787".parse().unwrap(),
        threads: 1,
    };
    let began = Instant::now();
    let checked = check(&tree, &world);
    let took = began.elapsed();
    prop_assert!(took < CHECK_MAX, "took {took:?}:\n{shown}");
    for problem in &checked.problems {
        has_a_place(problem, length)?;
        report::human(problem, false);
        report::github(problem);
    }
    let summary = report::Summary::of(&checked.problems, checked.documents);
    let json: serde_json::Value = serde_json::from_str(&report::json(&checked.problems, summary)).unwrap();
    prop_assert!(json.is_object());
    report::sarif(&checked.problems);
    Ok(())
}

fn has_a_place(problem: &Problem, length: usize) -> Result<(), TestCaseError> {
    let at = problem.place.start();
    prop_assert!(at.is_some(), "{problem:?} has no position");
    let at = at.unwrap();
    prop_assert!(at.line >= 1 && at.column >= 1 && at.line <= length + 1 && at.column <= length + 1, "{problem:?}");
    prop_assert!(!problem.message.is_empty());
    Ok(())
}

/// The largest resident size of this process so far; `None` where the system does not tell.
fn rss_mb_max() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kilobytes| kilobytes / 1_024)
}

#[test]
fn any_bytes_are_checked_in_bounded_time_and_memory() {
    fuzz(vec(any::<u8>(), 0..600).prop_map(Text), judge);
    assert!(rss_mb_max().is_none_or(|mb| mb < RSS_MB_MAX), "{:?} MB resident", rss_mb_max());
}

#[test]
fn any_heap_of_tokens_is_checked_in_bounded_time_and_memory() {
    let tokens = vec(select(DICTIONARY), 0..80).prop_map(|tokens| tokens.concat().into_bytes());
    fuzz(tokens.prop_map(Text), judge);
    assert!(rss_mb_max().is_none_or(|mb| mb < RSS_MB_MAX), "{:?} MB resident", rss_mb_max());
}

#[test]
fn a_mutated_manifest_is_checked_in_bounded_time_and_memory() {
    let mutated = (select(corpus()), mutations(DICTIONARY)).prop_map(|(manifest, changes)| apply(manifest, &changes));
    fuzz(mutated.prop_map(Text), judge);
    assert!(rss_mb_max().is_none_or(|mb| mb < RSS_MB_MAX), "{:?} MB resident", rss_mb_max());
}

/// Found here: a place inside a character ended the check.
#[test]
fn a_fault_beside_a_wide_character_has_a_place() {
    let flow =
        "apiVersion: vejas/v1\nkind: Flow\nmetadata: { name: a }\nspec:\n  from: a\n  to: b\n  steps:\n    - map: ";
    for style in ["|\n        ", ">\n        ", ""] {
        for program in
            ["À", "Àfor_each(.items) -> |_, item| { 1 }", ".a = 1\n        Àfor_each(.a)", ".é = \"\u{2028}", "€ = é"]
        {
            judge(Text(format!("{flow}{style}{program}\n").into_bytes())).unwrap();
        }
    }
}

#[test]
fn unchanged_manifests_pass_the_same_judgement() {
    for manifest in corpus() {
        judge(Text(manifest)).unwrap();
    }
}
