//! `vejas test` on trees of its own.

use std::fs;
use std::path::Path;

use super::{Run, vejas};

/// A flow that checks, prices, drops, splits and lets each id pass once in ten minutes.
const FLOW: &str = r#"apiVersion: vejas/v1
kind: Table
metadata: { name: vat }
spec: { rows: { DE: { rate: 0.19 } } }
---
apiVersion: vejas/v1
kind: Flow
metadata: { name: price }
spec:
  from: orders.raw
  steps:
    - filter: .cancelled != true
    - dedupe: { key: .id, within: 10m }
    - lookup: { table: vat, key: .country, into: vat, onMissing: fail }
    - map: |
        .gross = round(to_float!(.net) * (1.0 + to_float!(.vat.rate)), 2)
        .hour = format_timestamp!(%time, "%H")
        del(.vat)
    - route:
        - when: to_float!(.gross) > 1000.0
          to: orders.big
  to: orders.priced
---
"#;

fn tree(test: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("manifests")).unwrap();
    fs::write(folder.path().join("manifests/flow.yaml"), FLOW).unwrap();
    add(folder.path(), "test", test);
    folder
}

/// A Test manifest with this name and spec.
fn add(folder: &Path, name: &str, spec: &str) {
    let text = format!("apiVersion: vejas/v1\nkind: Test\nmetadata: {{ name: {name} }}\nspec:\n{spec}");
    fs::write(folder.join("manifests").join(name).with_extension("yaml"), text).unwrap();
}

fn run(folder: &Path, args: &[&str]) -> Run {
    vejas(folder, &[&["test"], args].concat(), None)
}

/// Two orders of one id, a big one, a cancelled one, one from elsewhere.
const INPUT: &str = r#"  flow: price
  clock: 2026-01-31T07:00:00Z
  input:
    - { payload: { id: A, country: DE, net: 100 }, id: a, headers: { X-Shop: vilnius } }
    - { payload: { id: A, country: DE, net: 100 } }
    - { payload: { id: A, country: DE, net: 100 }, time: "2026-01-31T07:11:00Z" }
    - { payload: { id: B, country: DE, net: 1000 } }
    - { payload: { id: C, cancelled: true } }
    - { payload: { id: D, country: XX, net: 1 }, id: d }
    - { text: "{" }
  expect:
"#;

const EXPECT: &str = r#"    output:
      - subject: orders.priced
        id: a
        headers: { X-Shop: vilnius, Vejas-Hop: "1" }
        payload: { id: A, country: DE, net: 100.0, gross: 119, hour: "07" }
      - { subject: orders.priced, id: input-3, payload: { hour: "07", id: A, country: DE, net: 100, gross: 119 } }
      - { subject: orders.big, payload: { id: B, country: DE, net: 1000, gross: 1190, hour: "07" } }
    deadLetters:
      - { code: lookup, text: table vat has no row, id: d }
      - { code: payload }
    ended: 2
"#;

#[test]
fn what_the_runtime_would_do_passes() {
    let folder = tree(&format!("{INPUT}{EXPECT}"));
    let run = run(folder.path(), &[]);
    assert_eq!(run.code, 0, "{}", run.text());
    assert!(run.stdout.starts_with("ok    test (7 messages, "), "{}", run.text());
    assert!(run.stdout.contains("\n1 test passed in "), "{}", run.text());
}

#[test]
fn each_wrong_expectation_is_shown_at_its_place() {
    for (right, wrong, place, message) in [
        ("gross: 119, hour", "gross: 120, hour", "17:9", "output 1: the payload differs"),
        ("id: input-3", "id: input-2", "21:9", "output 2: has the id `input-3`, expected `input-2`"),
        ("subject: orders.big", "subject: orders.priced", "22:9", "output 3: came out to `orders.big`"),
        ("vilnius, Vejas", "kaunas, Vejas", "17:9", "output 1: has the header `X-Shop: vilnius`, expected `kaunas`"),
        ("code: payload", "code: schema", "25:9", "dead letter 2: has the code `payload`, expected `schema`"),
        ("has no row", "has a row", "24:9", "dead letter 1: says nothing of \"table vat has a row\""),
        ("      - { code: payload }\n", "", "23:5", "message `input-7` became a dead letter: payload"),
        ("ended: 2", "ended: 3", "26:5", "2 ended, expected 3"),
    ] {
        let expect = EXPECT.replacen(right, wrong, 1);
        assert_ne!(expect, EXPECT, "{right}");
        let folder = tree(&format!("{INPUT}{expect}"));
        let run = run(folder.path(), &[]);
        assert_eq!(run.code, 1, "{}", run.text());
        let lines: Vec<&str> = run.stdout.lines().collect();
        let expected = format!("  manifests/test.yaml:{place}: {message}");
        assert!(lines[1].starts_with(&expected), "{expected}\n{}", run.text());
        assert!(lines.last().unwrap().starts_with("1 of 1 test failed in "), "{}", run.text());
    }
}

#[test]
fn a_payload_is_compared_line_by_line() {
    let folder = tree(&format!("{INPUT}{}", EXPECT.replacen("gross: 119, hour", "gross: 120, hour", 1)));
    let run = run(folder.path(), &[]);
    let diff = "        {\n          \"country\": \"DE\",\n      -   \"gross\": 120,\n      +   \"gross\": 119.0,\n          \"hour\": \"07\",\n";
    assert!(run.stdout.contains(diff), "{}", run.text());
}

#[test]
fn rows_of_a_test_take_the_place_of_the_tables() {
    let spec = "  flow: price\n  tables: { vat: { XX: { rate: 0.5 } } }\n  input:\n    - { payload: { id: A, country: XX, net: 2 } }\n    - { payload: { id: B, country: DE, net: 2 } }\n  expect:\n    output:\n      - { subject: orders.priced, payload: { id: A, country: XX, net: 2, gross: 3, hour: \"00\" } }\n    deadLetters: [{ code: lookup }]\n";
    let folder = tree(spec);
    let run = run(folder.path(), &[]);
    assert_eq!(run.code, 0, "{}", run.text());
}

#[test]
fn a_golden_file_is_written_with_update_only_and_then_compared() {
    let folder = tree(&format!("{INPUT}    golden: golden/price.json\n"));
    let golden = folder.path().join("manifests/golden/price.json");
    let missing = run(folder.path(), &[]);
    assert_eq!(missing.code, 1);
    assert!(missing.stdout.contains("there is no `golden/price.json` yet"), "{}", missing.text());
    assert!(!golden.exists());

    let written = run(folder.path(), &["--update"]);
    assert_eq!(written.code, 0, "{}", written.text());
    let contents: serde_json::Value = serde_json::from_slice(&fs::read(&golden).unwrap()).unwrap();
    assert_eq!(contents["output"][2]["subject"], "orders.big");
    assert_eq!(contents["output"][0]["headers"], serde_json::json!({ "X-Shop": "vilnius" }));
    assert_eq!(contents["deadLetters"][0], serde_json::json!({ "id": "d", "code": "lookup" }));
    assert_eq!(contents["ended"], 2);
    assert_eq!(run(folder.path(), &[]).code, 0);

    let flow = folder.path().join("manifests/flow.yaml");
    fs::write(&flow, FLOW.replace("> 1000.0", "> 10000.0")).unwrap();
    let changed = run(folder.path(), &[]);
    assert_eq!(changed.code, 1);
    assert!(changed.stdout.contains("-       \"subject\": \"orders.big\","), "{}", changed.text());
}

#[test]
fn reports_for_machines_hold_every_test() {
    let folder = tree(&format!("{INPUT}{EXPECT}"));
    add(folder.path(), "wrong", &format!("{INPUT}{}", EXPECT.replace("ended: 2", "ended: 9")));
    let json = run(folder.path(), &["--output", "json"]);
    assert_eq!(json.code, 1);
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["summary"], serde_json::json!({ "tests": 2, "failed": 1, "errors": 0 }));
    assert_eq!(report["tests"][1]["differences"][0]["message"], "2 ended, expected 9");
    assert!(report["tests"][0]["seconds"].as_f64().unwrap() > 0.0);
    let junit = run(folder.path(), &["--output", "junit"]);
    assert!(
        junit.stdout.contains("<testsuite name=\"vejas\" tests=\"2\" failures=\"1\" errors=\"0\""),
        "{}",
        junit.text()
    );
    assert!(junit.stdout.contains("<failure message=\"2 ended, expected 9\">"), "{}", junit.text());
}

#[test]
fn the_filter_takes_names_of_tests_and_flows_and_nothing_to_run_is_no_success() {
    let folder = tree(&format!("{INPUT}{EXPECT}"));
    add(folder.path(), "wrong", &format!("{INPUT}{}", EXPECT.replace("ended: 2", "ended: 9")));
    assert_eq!(run(folder.path(), &["--filter", "tes"]).code, 0);
    assert!(run(folder.path(), &["--filter", "price"]).stdout.contains("1 of 2 tests failed"));
    let none = run(folder.path(), &["--filter", "nothing"]);
    assert_eq!((none.code, none.stdout.as_str()), (1, "no tests\n"));
}

#[test]
fn an_unknown_assertion_is_an_error_and_the_other_tests_still_run() {
    let folder = tree(&format!("{INPUT}{EXPECT}"));
    add(folder.path(), "typo", &format!("{INPUT}    ouput: []\n"));
    let run = run(folder.path(), &[]);
    assert_eq!(run.code, 1, "{}", run.text());
    assert!(run.stderr.contains("error[VJ0007]") && run.stderr.contains("did you mean `output`?"), "{}", run.text());
    assert!(run.stdout.contains("ok    test"), "{}", run.text());
    assert!(run.stdout.contains("1 error in the manifests, what has one was left out"), "{}", run.text());
    let junit = vejas(folder.path(), &["test", "--output", "junit"], None);
    assert_eq!(junit.code, 1);
    assert!(
        junit.stdout.contains("<testcase name=\"check VJ0007\" classname=\"manifests/typo.yaml:"),
        "{}",
        junit.text()
    );
}

#[test]
fn the_tests_that_come_along_and_the_one_of_the_readme_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = run(root, &[]);
    assert_eq!(own.code, 0, "{}", own.text());

    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let shown = readme.split("```yaml\n").find(|block| block.contains("kind: Test\n")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("manifests")).unwrap();
    fs::copy(root.join("manifests/orders.yaml"), folder.path().join("manifests/orders.yaml")).unwrap();
    fs::write(folder.path().join("manifests/readme.yaml"), shown.split("```").next().unwrap()).unwrap();
    let run = run(folder.path(), &[]);
    assert_eq!(run.code, 0, "{}", run.text());
    assert!(run.stdout.contains("\n1 test passed in "), "{}", run.text());
}

#[test]
fn what_new_prints_passes() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("manifests")).unwrap();
    for kind in ["flow", "test"] {
        let printed = vejas(folder.path(), &["new", kind, "--name", "mine"], None);
        fs::write(folder.path().join("manifests").join(kind).with_extension("yaml"), printed.stdout).unwrap();
    }
    let run = run(folder.path(), &[]);
    assert_eq!(run.code, 0, "{}", run.text());
}

#[test]
fn update_does_not_write_through_a_link() {
    let folder = tree(&format!("{INPUT}    golden: golden/price.json\n"));
    std::os::unix::fs::symlink("../..", folder.path().join("manifests/golden")).unwrap();
    let refused = run(folder.path(), &["--update"]);
    assert_ne!(refused.code, 0, "{}", refused.text());
    fs::remove_file(folder.path().join("manifests/golden")).unwrap();
    fs::create_dir(folder.path().join("manifests/golden")).unwrap();
    std::os::unix::fs::symlink("../../elsewhere", folder.path().join("manifests/golden/price.json")).unwrap();
    let refused = run(folder.path(), &["--update"]);
    assert_eq!(refused.code, 3, "{}", refused.text());
    assert!(!folder.path().join("elsewhere").exists());
}
