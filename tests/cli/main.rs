//! The real binary against golden files.
//!
//! `check/<case>/` holds manifests and `expected.txt`: the exact output and exit code of `vejas check .` run inside of
//! it. An `args` file replaces the arguments, a `stdin` file is the standard input. `UPDATE_GOLDEN=1` writes the
//! expected files anew; the difference is then for a person to read.

#![allow(clippy::disallowed_methods)]

mod completions;
mod explain_unit;
mod flow_tests;
mod generated;
mod scale;
mod verbs;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a run of the binary gave.
struct Run {
    stdout: String,
    stderr: String,
    code: i32,
}

fn vejas(folder: &Path, args: &[&str], stdin: Option<&[u8]>) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_vejas"))
        .current_dir(folder)
        .args(args)
        .env_clear()
        .env("VEJAS_TEST_SET", "yes")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.unwrap_or_default()).unwrap();
    let output = child.wait_with_output().unwrap();
    Run {
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code().unwrap_or(-1),
    }
}

impl Run {
    fn text(&self) -> String {
        let stderr = if self.stderr.is_empty() { String::new() } else { format!("--- stderr\n{}", self.stderr) };
        format!("{}{stderr}--- exit {}\n", self.stdout, self.code)
    }
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/check")
}

/// Compares with the golden file, or writes it. `Err` shows both.
fn golden(path: &Path, found: &str) -> Result<(), String> {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, found).unwrap();
        return Ok(());
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    match expected == found {
        true => Ok(()),
        false => Err(format!("{}\n=== expected\n{expected}=== found\n{found}", path.display())),
    }
}

#[test]
fn every_case_gives_its_expected_output() {
    let mut folders: Vec<PathBuf> = fs::read_dir(cases())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("expected.txt").exists() || is_written(path))
        .collect();
    folders.sort_unstable();
    let written: Vec<&PathBuf> = folders.iter().filter(|path| is_written(path)).collect();
    assert!(written.len() >= 40, "only {} cases", written.len());
    let mut wrong = Vec::new();
    for folder in written {
        let args = fs::read_to_string(folder.join("args")).unwrap_or_else(|_| "check .".to_owned());
        let args: Vec<&str> = args.split_whitespace().collect();
        let stdin = fs::read(folder.join("stdin")).ok();
        let run = vejas(folder, &args, stdin.as_deref());
        wrong.extend(golden(&folder.join("expected.txt"), &run.text()).err());
    }
    assert!(wrong.is_empty(), "{} cases differ\n{}", wrong.len(), wrong.join("\n"));
}

/// Cases with more than an expected output; the others are made by `generated`.
fn is_written(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.any(|entry| entry.unwrap().file_name() != "expected.txt"))
}
