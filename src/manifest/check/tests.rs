use super::*;
use crate::manifest::problem::Code;

const HEAD: &str = "apiVersion: vejas/v1\n";

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("{HEAD}kind: {kind}\nmetadata: {{ name: {name} }}\nspec:\n{spec}\n---\n")
}

fn checked(files: &[(&str, String)]) -> Checked {
    let files =
        files.iter().map(|(path, text)| TreeFile { path: (*path).to_owned(), bytes: text.clone().into_bytes() });
    let tree = Tree { files: files.collect(), problems: Vec::new() };
    let read_beside = |_: &str, path: &str, _: u64| match path {
        "vat.csv" => Ok(b"country,rate\nDE,19\n".to_vec()),
        _ => Err(FileFault::Missing),
    };
    let world = World {
        compiler: &Compiler::new(),
        read_beside: &read_beside,
        is_set: Some(&|name| name == "SET"),
        api_address: None,
        listen_default: "127.0.0.1:8787".parse().unwrap(),
        threads: 2,
    };
    check(&tree, &world)
}

fn codes(checked: &Checked) -> Vec<Code> {
    checked.problems.iter().map(|problem| problem.code).collect()
}

fn names(checked: &Checked) -> Vec<&str> {
    checked.manifests.iter().map(|manifest| manifest.manifest.name()).collect()
}

fn source(name: &str, to: &str) -> String {
    document("Source", name, &format!("  interval: {{ every: 10s }}\n  to: {to}"))
}

fn sink(name: &str, from: &str) -> String {
    document("Sink", name, &format!("  from: {from}\n  stdout: {{}}"))
}

fn flow(name: &str, steps: &str) -> String {
    document("Flow", name, &format!("  from: a.in\n  steps:\n{steps}\n  to: a.out"))
}

fn ends() -> String {
    source("in", "a.in") + &sink("out", "a.out")
}

#[test]
fn a_manifest_with_an_error_is_left_out_and_the_rest_is_not() {
    let good = flow("good", "    - filter: exists(.x)");
    let bad = flow("bad", "    - filter: nope(.x)");
    let checked = checked(&[("a.yaml", ends() + &bad + &good)]);
    assert_eq!(codes(&checked), [Code::InvalidProgram]);
    assert_eq!(names(&checked), ["in", "out", "good"]);
}

#[test]
fn what_refers_to_a_broken_manifest_is_left_out_with_it() {
    let schema = document("Schema", "order", "  jsonSchema: { type: objekt }");
    let flow = flow("f", "    - validate: { schema: order }");
    let checked = checked(&[("a.yaml", ends() + &schema + &flow)]);
    assert_eq!(codes(&checked), [Code::InvalidSchema, Code::BrokenReference]);
    assert_eq!(names(&checked), ["in", "out"]);
    assert!(checked.schemas.is_empty());
}

#[test]
fn a_broken_writer_still_counts_as_one() {
    let checked =
        checked(&[("a.yaml", sink("out", "a.in") + &document("Source", "in", "  intervall: {}\n  to: a.in"))]);
    assert_eq!(codes(&checked), [Code::UnknownKey]);
    assert_eq!(names(&checked), ["out"]);
}

#[test]
fn warnings_leave_nothing_out() {
    let checked = checked(&[("a.yaml", sink("out", "a.in"))]);
    assert_eq!(codes(&checked), [Code::NobodyWrites]);
    assert_eq!(names(&checked), ["out"]);
    assert!(!checked.has_errors());
}

#[test]
fn neither_of_two_with_one_name_runs() {
    let checked = checked(&[("a.yaml", source("in", "a.in") + &sink("out", "a.in")), ("b.yaml", source("in", "a.in"))]);
    assert_eq!(codes(&checked), [Code::DuplicateName]);
    assert_eq!(names(&checked), ["out"]);
}

#[test]
fn every_flow_of_a_cycle_is_left_out() {
    let round = |name: &str, from: &str, to: &str| document("Flow", name, &format!("  from: {from}\n  to: {to}"));
    let text = round("a", "x.a", "x.b") + &round("b", "x.b", "x.a") + &round("c", "x.a", "x.c") + &sink("out", "x.c");
    let checked = checked(&[("a.yaml", text)]);
    assert_eq!(codes(&checked), [Code::Cycle]);
    assert_eq!(names(&checked), ["c", "out"]);
}

#[test]
fn a_byte_of_a_program_is_found_in_the_file() {
    let flow = flow("f", "    - map: |\n        .x = 1\n        .y = 2");
    let checked = checked(&[("a.yaml", ends() + &flow)]);
    let flow = checked.manifests.iter().find(|manifest| manifest.manifest.name() == "f").unwrap();
    let program = &flow.programs["steps.0.map"];
    let offset = program.origin.text().find(".y").unwrap();
    let position = program.position(offset);
    let line = (ends() + "apiVersion\nkind\nmetadata\nspec\nfrom\nsteps\n- map\n.x\n.y").lines().count();
    assert_eq!(position, Position { line, column: 9 });
    assert_eq!(flow.line, ends().lines().count() + 1);
    assert_eq!(flow.document, 2);
}

/// A digest covers what a manifest means: what it refers to, by step or inside a program, and not where it stands.
#[test]
fn the_digest_follows_the_tables_and_schemas_that_are_referred_to() {
    let digest = |table: &str, steps: &str, before: &str| {
        let text = ends() + before + &document("Table", "vat", table) + &flow("f", steps);
        let checked = checked(&[("a.yaml", text)]);
        assert!(checked.problems.is_empty(), "{:?}", checked.problems);
        checked.manifests.iter().find(|manifest| manifest.manifest.name() == "f").unwrap().digest
    };
    let (de, at) = ("  rows: { DE: 19 }", "  rows: { AT: 20 }");
    let lookup = "    - lookup: { table: vat, key: string!(.c), into: vat }";
    let program = "    - map: .vat = table(\"vat\", string!(.c))";
    let neither = "    - map: .vat = 1";
    assert_eq!(digest(de, lookup, ""), digest(de, lookup, "# a comment\n---\n"));
    assert_ne!(digest(de, lookup, ""), digest(at, lookup, ""));
    assert_ne!(digest(de, program, ""), digest(at, program, ""));
    assert_eq!(digest(de, neither, ""), digest(at, neither, ""));
}

#[test]
fn a_table_from_a_file_holds_its_rows() {
    let table = document("Table", "vat", "  file: { path: vat.csv, key: country }");
    let checked = checked(&[("a.yaml", table)]);
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    assert!(checked.tables["vat"].get("DE").is_some());
    assert_eq!(checked.tables["vat"].len(), 1);
}

#[test]
fn labels_do_not_change_a_digest_and_references_enter_as_written() {
    let digest = |labels: &str, url: &str| {
        let text = format!(
            "{HEAD}kind: Sink\nmetadata: {{ name: s{labels} }}\nspec:\n  from: a.in\n  http: {{ url: \"{url}\" }}\n---\n"
        );
        let checked = checked(&[("a.yaml", text + &source("in", "a.in"))]);
        assert!(checked.problems.is_empty(), "{:?}", checked.problems);
        checked.manifests.iter().find(|manifest| manifest.manifest.name() == "s").unwrap().digest
    };
    let plain = digest("", "https://${env:SET}/");
    assert_eq!(plain, digest(", labels: { team: ops }", "https://${env:SET}/"));
    assert_ne!(plain, digest("", "https://${env:SET:-x}/"));
}

/// The same tree gives the same answer whatever the order in which threads finish.
#[test]
fn problems_come_in_the_order_of_files_and_places() {
    let bad = |n: usize| flow(&format!("f{n}"), "    - filter: nope(.x)\n    - map: .y = nada()");
    let files: Vec<(String, String)> = (0..8).map(|n| (format!("{n}.yaml"), bad(n))).collect();
    let mut files: Vec<(&str, String)> = files.iter().map(|(path, text)| (path.as_str(), text.clone())).collect();
    files.push(("z.yaml", ends()));
    let places = |checked: &Checked| checked.problems.iter().map(|p| p.place.to_string()).collect::<Vec<_>>();
    let first = places(&checked(&files));
    assert_eq!(first.len(), 16);
    assert!(first.is_sorted());
    files.reverse();
    assert_eq!(first, places(&checked(&files)));
}
