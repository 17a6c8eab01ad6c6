//! Cases whose files a repository cannot hold well: bytes that editors would mend, links, rights, sizes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use super::{cases, golden, vejas};

const SINK: &str = "apiVersion: vejas/v1\nkind: Sink\nmetadata: { name: out }\nspec: { from: a.b, stdout: {} }\n";
const SOURCE: &str =
    "apiVersion: vejas/v1\nkind: Source\nmetadata: { name: in }\nspec: { interval: { every: 10s }, to: a.b }\n";

fn case(name: &str, build: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    build(folder.path());
    let run = vejas(folder.path(), &["check", "."], None);
    if let Err(difference) = golden(&cases().join(name).join("expected.txt"), &run.text()) {
        panic!("{difference}");
    }
}

#[test]
fn crlf_and_a_byte_order_mark_change_nothing() {
    case("crlf", |root| {
        fs::write(root.join("a.yaml"), format!("{SOURCE}---\n{SINK}").replace('\n', "\r\n")).unwrap();
        fs::write(root.join("b.yaml"), "\u{feff}apiVersion: vejas/v1\r\nkind: Flw\r\n").unwrap();
    });
}

#[test]
fn a_program_behind_crlf_keeps_its_position() {
    case("crlf-program", |root| {
        let flow = "apiVersion: vejas/v1\nkind: Flow\nmetadata: { name: f }\nspec:\n  from: a.b\n  steps:\n    - map: |\n        .x = 1\n        .y = nope(.x)\n  to: a.c\n";
        let text = format!("{SOURCE}---\n{flow}---\n{}", SINK.replace("a.b", "a.c"));
        fs::write(root.join("a.yaml"), text.replace('\n', "\r\n")).unwrap();
    });
}

#[test]
fn bytes_that_are_not_utf8_are_named() {
    case("not-utf8", |root| {
        fs::write(root.join("a.yaml"), b"apiVersion: vejas/v1\nkind: Fl\xf6w\n").unwrap();
        fs::write(root.join("b.yaml"), format!("{SOURCE}---\n{SINK}")).unwrap();
    });
}

#[test]
fn tabs_are_said_to_be_tabs() {
    case("tabs", |root| fs::write(root.join("a.yaml"), SINK.replace("spec: {", "spec:\n\tx: {")).unwrap());
}

#[test]
fn files_without_a_document_are_no_problem() {
    case("empty", |root| {
        for (name, text) in
            [("a", ""), ("b", "# only a comment\n"), ("c", "---\n---\n# nothing\n...\n"), ("d", "\u{feff}\n")]
        {
            fs::write(root.join(name).with_extension("yaml"), text).unwrap();
        }
        fs::write(root.join("e.yaml"), format!("---\n{SOURCE}---\n---\n{SINK}---\n")).unwrap();
    });
}

#[test]
fn links_that_leave_the_tree_and_files_that_cannot_be_read_are_problems() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x.yaml"), SOURCE).unwrap();
    case("links", |root| {
        fs::create_dir(root.join("sub")).unwrap();
        fs::write(root.join("sub/a.yaml"), format!("{SOURCE}---\n{SINK}")).unwrap();
        symlink(outside.path().join("x.yaml"), root.join("out.yaml")).unwrap();
        symlink(outside.path(), root.join("out")).unwrap();
        symlink("nowhere.yaml", root.join("dangling.yaml")).unwrap();
        symlink("..", root.join("sub/up")).unwrap();
    });
}

/// The rights say nothing to root, so root cannot see this case.
#[test]
fn a_file_and_a_folder_without_rights_are_problems_and_the_rest_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("locked")).unwrap();
    fs::write(folder.path().join("a.yaml"), SOURCE).unwrap();
    fs::write(folder.path().join("b.yaml"), SINK).unwrap();
    let set = |name: &str, mode: u32| {
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(mode)).unwrap()
    };
    set("a.yaml", 0o000);
    set("locked", 0o000);
    let readable = fs::read(folder.path().join("a.yaml")).is_ok();
    let run = vejas(folder.path(), &["check", "."], None);
    set("locked", 0o755);
    if readable {
        assert_eq!(run.code, 0, "{}", run.text());
        return;
    }
    assert_eq!(run.code, 1);
    assert_eq!(run.stdout.matches("error[VJ0001]").count(), 2, "{}", run.text());
    assert!(run.stdout.contains("permission denied") && run.stdout.contains("VJ0030"), "{}", run.text());
}

#[test]
fn billion_laughs_are_refused_quickly() {
    let started = Instant::now();
    case("billion-laughs", |root| {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..100 {
            text.push_str(&format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", ")));
        }
        fs::write(root.join("a.yaml"), text).unwrap();
    });
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[test]
fn nesting_without_end_is_refused() {
    case("deep", |root| {
        fs::write(root.join("a.yaml"), format!("a: {}", "[".repeat(50_000))).unwrap();
        let blocks: String = (0..400).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
        fs::write(root.join("b.yaml"), blocks).unwrap();
    });
}
