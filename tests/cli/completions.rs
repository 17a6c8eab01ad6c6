//! Completions, and that a shell can use them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::vejas;

fn script(shell: &str) -> String {
    let run = vejas(Path::new(env!("CARGO_MANIFEST_DIR")), &["completions", shell], None);
    assert_eq!((run.code, run.stderr.as_str()), (0, ""), "{shell}");
    run.stdout
}

#[test]
fn completions_of_every_shell_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = script(shell);
        for command in ["run", "check", "status", "explain", "new", "schema", "completions"] {
            assert!(script.contains(command), "{shell} does not know {command}");
        }
        assert!(script.contains("--output") || script.contains("-l output"), "{shell} does not know flags");
    }
    let run = vejas(Path::new(env!("CARGO_MANIFEST_DIR")), &["completions", "tcsh"], None);
    assert_eq!(run.code, 64);
    assert!(run.stderr.contains("bash, zsh, fish"), "{}", run.stderr);
}

#[test]
fn bash_completes_a_command_and_its_flags() {
    let ask = |words: &str, at: usize| {
        let script = format!(
            "{}\nCOMP_WORDS=({words}); COMP_CWORD={at}; _vejas vejas \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{}]}}\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
            script("bash"),
            at - 1
        );
        let mut bash = Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        String::from_utf8(bash.wait_with_output().unwrap().stdout).unwrap()
    };
    assert_eq!(ask("vejas sta", 1).trim(), "status");
    assert_eq!(ask("vejas check --deny", 2).trim(), "--deny-warnings");
}
