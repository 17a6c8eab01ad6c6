//! Commits that nobody who may has signed are not taken.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::repository::{Repository, command, flow, is_at, of, until, until_not_synced};

fn key(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]).arg(&path).status();
    assert!(made.unwrap().success());
    path.display().to_string()
}

fn signed(repository: &Repository, key: &str, subject: &str) -> String {
    repository.git(&["add", "-A"]);
    let signing = format!("user.signingkey={key}");
    repository.git(&["-c", "gpg.format=ssh", "-c", &signing, "commit", "-q", "--allow-empty", "-S", "-m", subject]);
    repository.git(&["rev-parse", "HEAD"])
}

#[test]
fn only_commits_that_an_allowed_key_has_signed_are_taken() {
    let keys = tempfile::tempdir().unwrap();
    let (ours, theirs) = (key(keys.path(), "ours"), key(keys.path(), "theirs"));
    let public = fs::read_to_string(format!("{ours}.pub")).unwrap();
    let allowed = keys.path().join("allowed");
    fs::write(&allowed, format!("ada@example.com namespaces=\"git\" {public}")).unwrap();
    let repository = Repository::new();
    let first = signed(&repository, &ours, "signed");
    let mut vejas = of(&repository);
    vejas.environment("VEJAS_GIT_VERIFY", allowed.to_str().unwrap());
    vejas.start();
    until(&vejas, "the signed commit", |found| is_at(found, &first));

    repository.write("m/flow.yaml", &flow(".v = 2"));
    repository.commit("unsigned");
    let found = until_not_synced(&vejas, "refused", "it is not signed");
    assert_eq!(found["publication"]["no"], 1);
    signed(&repository, &theirs, "signed by somebody");
    until_not_synced(&vejas, "refused", "none of the allowed signers");
    repository.git(&["config", "user.email", "eve@example.com"]);
    let signing = format!("user.signingkey={ours}");
    let as_eve = ["-c", "user.email=eve@example.com", "-c", "gpg.format=ssh", "-c", &signing];
    repository.git(&[&as_eve[..], &["commit", "-q", "--allow-empty", "-S", "-m", "by eve"]].concat());
    until_not_synced(&vejas, "refused", "may not sign for eve@example.com");
    let good = signed(&repository, &ours, "signed again");
    until(&vejas, "the commit that is signed again", |found| is_at(found, &good));
}

#[test]
fn settings_that_cannot_be_right_are_refused_at_the_start() {
    let repository = Repository::new();
    let mut vejas = of(&repository);
    vejas.environment("VEJAS_GIT_VERIFY", "/nowhere");
    let (text, code) = command(&vejas, &["run"]);
    assert_eq!((code, text.contains("VEJAS_GIT_VERIFY")), (64, true), "{text}");
    let (text, code) = command(&vejas, &["run", "--git-path", "../x"]);
    assert_eq!((code, text.contains("leads out of the repository")), (64, true), "{text}");
    let (text, code) = command(&of(&repository), &["run", "somewhere"]);
    assert_eq!((code, text.contains("name one of them")), (64, true), "{text}");
}
