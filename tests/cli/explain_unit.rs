//! `vejas explain UNIT`: what holds, for each kind, connector and setting.

use std::path::{Path, PathBuf};

use super::{golden, vejas};

const UNITS: &[&str] = &[
    "http-in/checked",
    "http-in/open",
    "source/skipping",
    "source/catching-up",
    "flow/plain",
    "flow/deduping",
    "sink/http",
    "sink/http-batch",
    "sink/file",
    "sink/file-unsynced",
    "sink/stdout",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/explain")
}

fn explain(unit: &str) -> String {
    let run = vejas(&folder(), &["explain", unit, "--manifests", "units.yaml"], None);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{unit}");
    run.stdout
}

#[test]
fn each_kind_connector_and_setting_has_its_page() {
    let pages: Vec<String> = UNITS.iter().map(|unit| explain(unit)).collect();
    for page in &pages {
        for fault in ["delivery", "order", "kill -9", "machine stops", "away", "bus full", "restart", "poison message"]
        {
            let line =
                page.lines().find(|line| line.trim_start().starts_with(fault) || line.contains(&format!("{fault} ")));
            assert!(line.is_some_and(|line| line.trim().len() > fault.len() + 5), "{fault} is not told in\n{page}");
        }
        assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    }
    golden(&folder().join("expected.txt"), &pages.join("\n")).unwrap();
}

#[test]
fn a_setting_that_weakens_or_strengthens_a_guarantee_changes_the_page() {
    // Words, however the lines are broken.
    let says =
        |unit: &str, wanted: &str| explain(unit).split_whitespace().collect::<Vec<_>>().join(" ").contains(wanted);
    for (with, without, sentence) in [
        ("sink/file-unsynced", "sink/file", "LINES MAY BE LOST"),
        ("sink/file", "sink/file-unsynced", "forced to disk (fsync: always)"),
        ("sink/http", "sink/http-batch", "with the same Idempotency-Key (sink/http/<Vejas-Id>)"),
        ("sink/http-batch", "sink/http", "sent again message by message"),
        ("sink/http-batch", "sink/http", "Kept among messages of the same key (orderBy)"),
        ("sink/http-batch", "sink/http", "is tried 9 times"),
        ("sink/http-batch", "sink/http", "After 3 failures in a row nothing is sent for 2s"),
        ("flow/deduping", "flow/plain", "Keys of dedupe are remembered for 2h"),
        ("flow/plain", "flow/deduping", "begins at the end"),
        ("http-in/checked", "http-in/open", "422 when the schema order does not allow it"),
        ("source/catching-up", "source/skipping", "the newest 1000 at most"),
    ] {
        assert!(says(with, sentence), "{with} does not say {sentence:?}");
        assert!(!says(without, sentence), "{without} says {sentence:?}");
    }
}

#[test]
fn an_unknown_unit_is_answered_with_what_was_meant() {
    let run = vejas(&folder(), &["explain", "sink/htp", "--manifests", "units.yaml"], None);
    assert_eq!(run.code, 64);
    assert!(run.stderr.contains("did you mean `sink/http`?"), "{}", run.stderr);
}
