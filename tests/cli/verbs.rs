//! `new`, `explain`, `schema`, and the pages of the codes.

use std::fs;
use std::path::Path;

use super::vejas;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn codes_of(output: &str) -> Vec<String> {
    let json: serde_json::Value = serde_json::from_str(output).unwrap();
    let mut codes: Vec<String> = json["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| problem["code"].as_str().unwrap().to_owned())
        .collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

#[test]
fn the_example_of_every_page_gives_just_its_code() {
    use vejas::manifest::codes::Code;
    let folder = tempfile::tempdir().unwrap();
    for code in Code::ALL {
        let Some(example) = code.example() else {
            // Rights, links, bytes and rows of a file: `generated` and the table cases show them.
            assert!(matches!(code.as_str(), "VJ0001" | "VJ0002" | "VJ0003" | "VJ0061"), "{code} has no example");
            continue;
        };
        let run = vejas(folder.path(), &["check", "--output", "json", "-"], Some(example.as_bytes()));
        let mut expected = vec![code.as_str().to_owned()];
        if *code == Code::BrokenReference {
            // What is referred to has to be broken itself.
            expected.push("VJ0060".to_owned());
        }
        assert_eq!(codes_of(&run.stdout), expected, "{code}\n{example}");
    }
}

#[test]
fn explain_prints_the_page_of_a_code_in_any_case() {
    let run = vejas(here(), &["explain", "vj0007"], None);
    assert_eq!(run.code, 0);
    assert!(run.stdout.starts_with("# VJ0007: unknown key\n"), "{}", run.stdout);
    let run = vejas(here(), &["explain", "VJ9999"], None);
    assert_eq!((run.code, run.stdout.as_str()), (64, ""));
}

#[test]
fn a_check_of_nothing_says_so() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "").unwrap();
    let run = vejas(folder.path(), &["check", "."], None);
    assert_eq!(run.stdout, "no problems in 0 manifests\n");
    assert_eq!(run.stderr, "warning: there are no manifests (.yaml, .yml) in .\n");
    assert_eq!(run.code, 0);
}

#[test]
fn explain_knows_functions_kinds_and_fields() {
    let run = vejas(here(), &["explain", "functions"], None);
    assert!(run.stdout.lines().any(|line| line.starts_with("table ")), "{}", run.stdout);
    assert!(!run.stdout.lines().any(|line| line.starts_with("now ")));
    let run = vejas(here(), &["explain", "Sink.http.url"], None);
    assert!(run.stdout.contains("Where to send."), "{}", run.stdout);
    let run = vejas(here(), &["explain", "Sink.htp"], None);
    assert_eq!(run.stderr, "error: `Sink` has no field `htp`; did you mean `http`?\n");
    assert_eq!(run.code, 64);
    let run = vejas(here(), &["explain"], None);
    assert!(run.stdout.contains("VJ0032  cycle"), "{}", run.stdout);
}

#[test]
fn what_new_prints_passes_check_alone_and_together() {
    let folder = tempfile::tempdir().unwrap();
    let kinds = ["http-in", "flow", "sink", "table", "schema"];
    for kind in kinds.iter().chain(&["source"]) {
        let run = vejas(here(), &["new", kind], None);
        assert_eq!(run.code, 0, "{}", run.text());
        let checked = vejas(here(), &["check", "-"], Some(run.stdout.as_bytes()));
        assert_eq!(checked.code, 0, "{}", checked.text());
    }
    // A test names a flow, so it is checked together with one.
    let kinds = kinds.iter().chain(&["test"]);
    for kind in kinds {
        let run = vejas(here(), &["new", kind, "--name", "mine"], None);
        fs::write(folder.path().join(kind).with_extension("yaml"), run.stdout).unwrap();
    }
    let run = vejas(folder.path(), &["check", "--deny-warnings", "."], None);
    assert_eq!(run.text(), "no problems in 6 manifests\n--- exit 0\n");
}

#[test]
fn the_manifests_that_come_along_have_no_problems() {
    let run = vejas(here(), &["check", "--deny-warnings"], None);
    assert_eq!(run.code, 0, "{}", run.text());
}

#[test]
fn wrong_use_ends_with_2_and_help_names_the_codes() {
    assert_eq!(vejas(here(), &["check", "--outptu"], None).code, 64);
    assert_eq!(vejas(here(), &["new", "flwo"], None).stderr, "error: there is no kind `flwo`; did you mean `Flow`?\n");
    let help = vejas(here(), &["--help"], None);
    assert_eq!(help.code, 0);
    assert!(help.stdout.contains("75  the bus went away"), "{}", help.stdout);
}

#[test]
fn schema_prints_one_kind_or_all() {
    let one: serde_json::Value = serde_json::from_str(&vejas(here(), &["schema", "http-in"], None).stdout).unwrap();
    assert_eq!(one["title"], "HttpIn");
    let all: serde_json::Value = serde_json::from_str(&vejas(here(), &["schema"], None).stdout).unwrap();
    assert_eq!(all["properties"]["kind"]["enum"].as_array().unwrap().len(), 7);
}

#[test]
fn the_manifest_of_the_readme_checks_clean() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```yaml\n").unwrap();
    let (yaml, _) = rest.split_once("```").unwrap();
    let run = vejas(Path::new("."), &["check", "--deny-warnings", "-"], Some(yaml.as_bytes()));
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
}
