//! What is committed runs; what cannot be read leaves what runs alone.

use std::fs;

use crate::repository::{
    ENTRANCE, NEVER, Repository, flow, follower, is_at, lines, of, revisions, until, until_not_synced,
};
use crate::support::{get, post};

#[test]
fn a_commit_takes_effect_and_its_units_go_on_where_they_were() {
    let repository = Repository::new();
    let mut vejas = of(&repository);
    vejas.start();
    let pid = vejas.pid();
    assert_eq!(post(vejas.ingress, "/in", "{\"n\":1}").0, 200);
    assert_eq!(lines(&vejas, 1), [r#"{"n":1,"v":1}"#]);

    repository.write("m/flow.yaml", &flow(".v = 2"));
    let commit = repository.commit("v is two");
    let found = until(&vejas, "the second commit", |found| is_at(found, &commit));
    assert_eq!(found["publication"]["author"], "Ada <ada@example.com>");
    assert_eq!(found["publication"]["reason"], "v is two");
    assert_eq!(post(vejas.ingress, "/in", "{\"n\":2}").0, 200);
    assert_eq!(lines(&vejas, 2)[1], r#"{"n":2,"v":2}"#);
    assert_eq!(vejas.pid(), pid);
}

#[test]
fn a_tag_a_commit_and_another_branch_can_be_followed_over_the_network() {
    let repository = Repository::new();
    let first = repository.git(&["rev-parse", "HEAD"]);
    repository.git(&["tag", "-a", "v1", "-m", "one"]);
    repository.git(&["checkout", "-q", "-b", "next"]);
    repository.write("m/flow.yaml", &flow(".v = 2"));
    let second = repository.commit("second");
    let served = repository.serve();
    for (reference, commit) in [("v1", &first), (first.as_str(), &first), ("next", &second)] {
        let mut vejas = follower(&served.url, NEVER);
        vejas.environment("VEJAS_GIT_REF", reference);
        vejas.start();
        until(&vejas, reference, |found| is_at(found, commit));
    }
}

#[test]
fn a_rewritten_history_is_followed_and_told() {
    let repository = Repository::new();
    let mut vejas = of(&repository);
    vejas.start();
    repository.write("m/flow.yaml", &flow(".v = 2"));
    repository.git(&["add", "-A"]);
    repository.git(&["commit", "-q", "--amend", "-m", "rewritten"]);
    let commit = repository.git(&["rev-parse", "HEAD"]);
    let found = until(&vejas, "the rewritten commit", |found| is_at(found, &commit));
    assert_eq!(found["sync"]["rewritten"], true);
}

#[test]
fn a_deleted_branch_and_a_missing_folder_change_nothing_and_say_so() {
    let repository = Repository::new();
    repository.git(&["branch", "gone"]);
    let mut vejas = of(&repository);
    vejas.environment("VEJAS_GIT_REF", "gone");
    vejas.start();
    repository.git(&["branch", "-D", "gone"]);
    let found = until_not_synced(&vejas, "failing", "no branch, tag or commit gone; it may have been deleted");
    assert_eq!(found["publication"]["no"], 1);
    assert_eq!(post(vejas.ingress, "/in", "{}").0, 200, "what ran runs on");
    repository.git(&["branch", "gone"]);
    until(&vejas, "the branch is back", |found| found["sync"]["state"] == "synced");

    repository.git(&["checkout", "-q", "gone"]);
    repository.git(&["mv", "m", "elsewhere"]);
    repository.commit("moved");
    let found = until_not_synced(&vejas, "refused", "has no folder \"m\"");
    assert_eq!(found["publication"]["no"], 1);
}

#[test]
fn an_empty_tree_removes_nothing() {
    let repository = Repository::new();
    let mut vejas = of(&repository);
    vejas.start();
    fs::remove_dir_all(repository.path().join("m")).unwrap();
    repository.write("m/README.md", "nothing here");
    repository.commit("all gone");
    until_not_synced(&vejas, "refused", "has no manifest below \"m\"; nothing is removed for that");
    assert_eq!(post(vejas.ingress, "/in", "{}").0, 200);
}

#[test]
fn a_manifest_with_an_error_keeps_its_last_good_version_and_the_rest_applies() {
    let repository = Repository::new();
    let mut vejas = of(&repository);
    vejas.start();
    repository.write("m/flow.yaml", &flow(".v = ("));
    repository.write("m/in.yaml", &ENTRANCE.replace("path: /in", "path: /other"));
    let commit = repository.commit("half bad");
    let found = until(&vejas, "the sound half", |found| is_at(found, &commit));
    assert!(found["sync"]["reason"].as_str().unwrap().contains("keeps its last good version"), "{found:#}");
    let place = found["sync"]["problems"][0]["place"].as_str().unwrap().to_owned();
    assert!(place.starts_with("flow.yaml:"), "{place}");
    assert_eq!(post(vejas.ingress, "/other", "{\"n\":1}").0, 200);
    assert_eq!(lines(&vejas, 1), [r#"{"n":1,"v":1}"#], "under the last good version");
}

#[test]
fn links_submodules_and_what_is_no_text_are_told_and_hurt_nothing_else() {
    let other = Repository::new();
    let repository = Repository::new();
    std::os::unix::fs::symlink("flow.yaml", repository.path().join("m/link.yaml")).unwrap();
    fs::write(repository.path().join("m/binary.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    repository.git(&["submodule", "--quiet", "add", other.path().to_str().unwrap(), "m/other"]);
    let commit = repository.commit("odd things");
    let mut vejas = of(&repository);
    vejas.start();
    let found = until(&vejas, "the commit", |found| is_at(found, &commit));
    let problems = found["sync"]["problems"].to_string();
    for part in ["link.yaml", "symbolic link", "m/other".trim_start_matches("m/"), "submodule", "binary.yaml"] {
        assert!(problems.contains(part), "{part} in {problems}");
    }
    assert_eq!(post(vejas.ingress, "/in", "{\"n\":1}").0, 200);
    assert_eq!(lines(&vejas, 1), [r#"{"n":1,"v":1}"#]);
}

#[test]
fn a_table_beside_a_manifest_comes_from_the_same_commit() {
    let repository = Repository::new();
    repository.write("m/tables/vat.csv", "country,rate\nAT,20\n");
    repository.write(
        "m/table.yaml",
        "apiVersion: vejas/v1\nkind: Table\nmetadata: { name: vat }\nspec: { file: { path: tables/vat.csv, key: country } }\n",
    );
    repository.write(
        "m/flow.yaml",
        "apiVersion: vejas/v1\nkind: Flow\nmetadata: { name: work }\nspec: { from: raw, steps: [ { lookup: { table: vat, key: '.c', into: vat, onMissing: fail } } ], to: done }\n",
    );
    repository.commit("a table");
    let mut vejas = of(&repository);
    vejas.start();
    assert_eq!(post(vejas.ingress, "/in", "{\"c\":\"AT\"}").0, 200);
    assert!(lines(&vejas, 1)[0].contains("20"), "{:?}", lines(&vejas, 1));
    repository.write("m/tables/vat.csv", "country,rate\nAT,21\n");
    let commit = repository.commit("another rate");
    until(&vejas, "the rate", |found| is_at(found, &commit));
    assert_eq!(post(vejas.ingress, "/in", "{\"c\":\"AT\"}").0, 200);
    assert!(lines(&vejas, 2)[1].contains("21"), "{:?}", lines(&vejas, 2));
}

#[test]
fn a_server_that_is_away_leaves_what_runs_alone_also_over_a_restart() {
    let repository = Repository::new();
    let served = repository.serve();
    let url = served.url.clone();
    let mut vejas = follower(&url, "500ms");
    vejas.start();
    drop(served);
    until_not_synced(&vejas, "failing", "cannot be reached");
    assert_eq!(post(vejas.ingress, "/in", "{\"n\":1}").0, 200);
    vejas.stop();
    vejas.start();
    assert_eq!(post(vejas.ingress, "/in", "{\"n\":2}").0, 200);
    lines(&vejas, 2);
    assert_eq!(revisions(&vejas)["publication"]["no"], 1);
}

#[test]
fn a_server_that_says_nothing_is_given_up_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut vejas = follower(&format!("git://{}/repo", silent.local_addr().unwrap()), "500ms");
    vejas.launch();
    // Nothing was ever published: the process serves, and is not ready.
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    loop {
        let sync = get(vejas.api, "/api/v1/revisions").ok().filter(|(status, _)| *status == 200);
        if sync.is_some_and(|(_, body)| body.contains("cannot be reached")) {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{}", vejas.log());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(get(vejas.api, "/readyz").unwrap().0, 503);
    let begun = std::time::Instant::now();
    vejas.stop();
    assert!(begun.elapsed() < std::time::Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn a_repository_of_ten_thousand_files_is_followed() {
    let repository = Repository::new();
    for n in 0..10_000 {
        repository.write(&format!("m/{}/{n}.txt", n % 100), &format!("{n}\n"));
    }
    repository.commit("ten thousand beside the three");
    let mut vejas = of(&repository);
    vejas.start();
    repository.write("m/flow.yaml", &flow(".v = 2"));
    let commit = repository.commit("a flow among them");
    let found = until(&vejas, "the commit", |found| is_at(found, &commit));
    assert_eq!(found["sync"]["problems"], serde_json::json!([]), "what is no manifest is none of our business");
}
