//! Every folder of `examples/` does what its README says.
//!
//! The real binary runs on a copy of the folder: it is sent the lines of `input.ndjson`, and what it writes below `out/`
//! has to be what stands in `expected/`, byte for byte. Its dead letters have to be those of
//! `expected-dead-letters.ndjson`, and none where there is no such file. Where there is a `mend.sh` it is run after a restart;
//! then nothing may be dead any more, and `out/` is what stands in `expected-after-mend/`.

#![allow(clippy::disallowed_methods)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use support::{Vejas, open_bus, post};
use vejas::flow::dead_letter;
use vejas::id::Names;

/// Where the entrance of each example listens; `None` where the clock is the input.
const EXAMPLES: [(&str, Option<&str>); 6] = [
    ("cron", None),
    ("dead-letters", Some("/orders")),
    ("dedupe", Some("/alarms")),
    ("split-and-route", Some("/orders")),
    ("table-lookup", Some("/readings")),
    ("webhook-to-file", Some("/webhook")),
];
/// Lines of its README at most.
const README_LINES_MAX: usize = 14;
const DEAD_LETTERS_MAX: usize = 100;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { fs::copy(&path, target).map(drop).unwrap() }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

fn run(name: &str) {
    let (_, entrance) = EXAMPLES.iter().find(|(example, _)| *example == name).unwrap();
    let example = folder(name);
    let mut vejas = Vejas::new(&[]);
    copy(&example.join("manifests"), &vejas.manifests());
    assert_says(&vejas, &["check", "--deny-warnings"], "no problems in ");
    let has_tests = names(&vejas.manifests()).iter().any(|file| file.ends_with("-test.yaml"));
    if has_tests {
        assert_says(&vejas, &["test"], " passed in ");
    }

    vejas.start();
    if let Some(path) = entrance {
        for line in fs::read_to_string(example.join("input.ndjson")).unwrap().lines() {
            let (status, answer) = post(vejas.ingress, path, line);
            assert_eq!(status, 200, "{line}: {answer}");
        }
    }
    let expected = names(&example.join("expected"));
    for file in &expected {
        let wanted = fs::read_to_string(example.join("expected").join(file)).unwrap();
        let mut lines = vejas.wait_for_lines(&Path::new("out").join(file), wanted.lines().count());
        if entrance.is_none() {
            // The clock goes on while the lines are read.
            lines.truncate(wanted.lines().count());
        }
        assert_eq!(lines.join("\n") + "\n", wanted, "{name}: {file}");
    }
    assert_eq!(names(&vejas.folder.path().join("out")), expected, "{name}: nothing else is written");
    let wanted = fs::read_to_string(example.join("expected-dead-letters.ndjson")).unwrap_or_default();
    wait_for_dead_letters(&vejas, wanted.lines().count() as u64);
    assert!(vejas.stop().success(), "{}", vejas.log());

    // Only now nothing more can come.
    if entrance.is_some() {
        for file in &expected {
            let found = fs::read_to_string(vejas.folder.path().join("out").join(file)).unwrap();
            assert_eq!(found, fs::read_to_string(example.join("expected").join(file)).unwrap(), "{name}: {file}");
        }
    }
    let wanted: Vec<Value> = wanted.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(dead_letters(&vejas), wanted, "{name}: dead letters");
    if example.join("mend.sh").exists() {
        mend(&mut vejas, &example);
    }
}

fn mend(vejas: &mut Vejas, example: &Path) {
    vejas.start();
    let own = vejas.command(&[]);
    let bin = Path::new(own.get_program()).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = std::process::Command::new("sh");
    shell.arg(example.join("mend.sh")).current_dir(vejas.folder.path()).env("PATH", path);
    shell.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = shell.output().unwrap();
    assert!(output.status.success(), "mend.sh: {output:?}");
    for file in names(&example.join("expected-after-mend")) {
        let wanted = fs::read_to_string(example.join("expected-after-mend").join(&file)).unwrap();
        let lines = vejas.wait_for_lines(&Path::new("out").join(&file), wanted.lines().count());
        assert_eq!(lines.join("\n") + "\n", wanted, "{file} after mend.sh");
    }
    assert!(vejas.stop().success(), "{}", vejas.log());
    assert_eq!(dead_letters(vejas), [] as [Value; 0]);
}

fn assert_says(vejas: &Vejas, arguments: &[&str], text: &str) {
    let output = vejas.command(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains(text),
        "{arguments:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn wait_for_dead_letters(vejas: &Vejas, count: u64) {
    let deadline = std::time::Instant::now() + support::PATIENCE;
    let dead = || {
        let status = vejas.status();
        let units = status["units"].as_array().unwrap().clone();
        units.iter().map(|unit| unit["dead"].as_u64().unwrap_or(0)).sum::<u64>()
    };
    while dead() < count {
        assert!(std::time::Instant::now() < deadline, "{} dead letters: {}", dead(), vejas.status());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn dead_letters(vejas: &Vejas) -> Vec<Value> {
    let bus = open_bus(&vejas.data());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = Names::default().dead_letters();
    let letters = runtime.block_on(bus.read(&stream, 1, &[], DEAD_LETTERS_MAX)).unwrap();
    let shown = letters.iter().map(|letter| {
        let header = |name: &str| letter.headers.get(name).unwrap_or_default().to_owned();
        let payload: Value = serde_json::from_slice(&letter.payload).unwrap();
        json!({
            "unit": header(dead_letter::UNIT), "code": header(dead_letter::CODE),
            "attempts": header(dead_letter::ATTEMPTS), "payload": payload,
        })
    });
    shown.collect()
}

#[test]
fn every_example_is_in_the_list_and_has_a_short_readme() {
    let listed: Vec<&str> = EXAMPLES.iter().map(|(name, _)| *name).collect();
    assert_eq!(names(&folder("")), listed);
    for name in listed {
        let readme = fs::read_to_string(folder(name).join("README.md")).unwrap();
        assert!(readme.starts_with("# ") && readme.contains("\nLesson: "), "{name}");
        assert!(readme.lines().count() <= README_LINES_MAX, "{name}: {} lines", readme.lines().count());
        assert!(!names(&folder(name).join("expected")).is_empty(), "{name}");
    }
}

#[test]
fn a_webhook_into_a_file() {
    run("webhook-to-file");
}

#[test]
fn rows_of_a_table_into_a_message() {
    run("table-lookup");
}

#[test]
fn one_order_many_lines_two_ways_out() {
    run("split-and-route");
}

#[test]
fn only_the_first_alarm() {
    run("dedupe");
}

#[test]
fn a_receiver_that_refuses() {
    run("dead-letters");
}

#[test]
fn by_the_clock() {
    run("cron");
}
