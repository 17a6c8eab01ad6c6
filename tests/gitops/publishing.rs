//! Plan, publish, roll back, suspend, over the command line.

use std::fs;

use crate::repository::{
    ENTRANCE, Repository, SINK, command, flow, is_at, lines, of, revisions, until, until_not_synced,
};
use crate::support::{Vejas, post};

/// A folder of manifests elsewhere, to be published.
fn other(vejas: &Vejas, program: &str) -> String {
    let folder = vejas.folder.path().join("other");
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in [("in.yaml", ENTRANCE), ("flow.yaml", &flow(program)), ("sink.yaml", SINK)] {
        fs::write(folder.join(name), text).unwrap();
    }
    "other".to_owned()
}

fn started(program: &str) -> Vejas {
    let mut vejas = Vejas::new(&[("in.yaml", ENTRANCE), ("flow.yaml", &flow(program)), ("sink.yaml", SINK)]);
    vejas.environment("VEJAS_CHECK_INTERVAL", "200ms");
    vejas.start();
    vejas
}

#[test]
fn a_plan_says_what_would_change_and_is_applied_exactly_or_not_at_all() {
    let vejas = started(".v = 1");
    let folder = other(&vejas, ".v = 1");
    let (text, code) = command(&vejas, &["plan", &folder]);
    assert_eq!((code, text.contains("nothing to change: 3 units")), (0, true), "{text}");

    other(&vejas, ".v = 2");
    let (text, code) = command(&vejas, &["plan", &folder, "--output", "json"]);
    assert_eq!(code, 2, "{text}");
    let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&plan["changes"][0]["unit"], &plan["changes"][0]["action"]), (&"flow/work".into(), &"in-place".into()));
    assert_eq!((plan["changes"].as_array().unwrap().len(), plan["unchanged"].as_u64()), (1, Some(2)));
    let hash = plan["hash"].as_str().unwrap()[..12].to_owned();

    // The folder has changed since the plan was made.
    other(&vejas, ".v = 3");
    let (text, code) = command(&vejas, &["apply", "--plan", &hash, &folder]);
    assert_eq!((code, text.contains("plan again")), (3, true), "{text}");
    other(&vejas, ".v = 2");
    let (text, code) = command(&vejas, &["apply", "--plan", &hash, &folder, "-m", "two"]);
    assert_eq!((code, text.contains("publication 2")), (0, true), "{text}");
    // Something else was published since.
    let (text, code) = command(&vejas, &["apply", "--plan", &hash, &folder]);
    assert_eq!((code, text.contains("plan again")), (3, true), "{text}");
    // What it says is in effect is: the next message is worked on under it.
    assert_eq!(post(vejas.ingress, "/in", "{}").0, 200);
    assert_eq!(lines(&vejas, 1), [r#"{"v":2}"#]);

    let (text, code) = command(&vejas, &["diff"]);
    assert_eq!(code, 2);
    assert!(text.contains("changed flow/work") && text.contains("- ") && text.contains(".v = 2"), "{text}");
    let (text, _) = command(&vejas, &["history"]);
    assert!(text.contains("ada") && text.contains("two") && text.contains("directory"), "{text}");
}

#[test]
fn a_plan_shows_what_waits_for_units_that_go_or_read_something_else() {
    let vejas = started(".v = 1");
    command(&vejas, &["suspend", "sink/out"]);
    for n in 0..5 {
        post(vejas.ingress, "/in", &format!("{{\"n\":{n}}}"));
    }
    let folder = other(&vejas, ".v = 1");
    fs::remove_file(vejas.folder.path().join("other/sink.yaml")).unwrap();
    fs::write(vejas.folder.path().join("other/flow.yaml"), flow(".v = 1").replace("from: raw", "from: [raw, more]"))
        .unwrap();
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    loop {
        let (text, code) = command(&vejas, &["plan", &folder, "--output", "json"]);
        assert_eq!(code, 2, "{text}");
        let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
        let of =
            |unit: &str| plan["changes"].as_array().unwrap().iter().find(|one| one["unit"] == unit).cloned().unwrap();
        assert_eq!((&of("flow/work")["action"], &of("sink/out")["action"]), (&"recreate".into(), &"remove".into()));
        if of("sink/out")["waiting"] == 5 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{text}");
    }
}

#[test]
fn what_is_told_of_revisions_is_of_the_schema_that_the_document_gives() {
    let vejas = started(".v = 1");
    let folder = other(&vejas, ".v = 2");
    assert_eq!(command(&vejas, &["publish", &folder]).1, 0);
    let document = crate::repository::ask(vejas.api, "/api/v1/openapi.json");
    for path in ["/api/v1/revisions", "/api/v1/revisions/history", "/api/v1/revisions/diff"] {
        let schema = &document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        let mut schema = schema.clone();
        assert!(schema.is_object(), "{path}");
        schema["components"] = document["components"].clone();
        let answer = crate::repository::ask(vejas.api, path);
        let validator = jsonschema::validator_for(&schema).unwrap();
        let wrong: Vec<String> = validator.iter_errors(&answer).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{path}: {wrong:?} in {answer:#}");
    }
}

#[test]
fn errors_are_refused_with_their_place_and_nothing_changes() {
    let vejas = started(".v = 1");
    let folder = other(&vejas, ".v = (");
    let (text, code) = command(&vejas, &["plan", &folder]);
    assert_eq!((code, text.contains("flow.yaml:")), (1, true), "{text}");
    assert!(text.contains("1 error: as they are, these manifests change nothing"), "{text}");
    let (text, code) = command(&vejas, &["publish", &folder]);
    assert_eq!((code, text.contains("flow.yaml:")), (3, true), "{text}");
    assert_eq!(revisions(&vejas)["publication"]["no"], 1);
    let (text, code) = command(&vejas, &["publish", "nowhere"]);
    assert_eq!((code, text.contains("nothing at nowhere")), (64, true), "{text}");
}

#[test]
fn what_was_rolled_back_does_not_come_back_by_itself_and_a_new_commit_does() {
    let repository = Repository::new();
    let mut vejas = of(&repository);
    vejas.start();
    repository.write("m/flow.yaml", &flow(".v = \"bad\""));
    let bad = repository.commit("bad");
    until(&vejas, "the bad commit", |found| is_at(found, &bad));
    let (text, code) = command(&vejas, &["rollback", "-m", "it is wrong"]);
    assert_eq!((code, text.contains("publication 3")), (0, true), "{text}");
    until_not_synced(&vejas, "refused", "set it aside");
    vejas.stop();
    vejas.start();
    let found = until_not_synced(&vejas, "refused", "set it aside");
    assert_eq!((&found["publication"]["no"], &found["publication"]["by"]), (&3.into(), &"ada".into()));
    post(vejas.ingress, "/in", "{}");
    assert_eq!(lines(&vejas, 1), [r#"{"v":1}"#]);
    repository.write("m/flow.yaml", &flow(".v = 3"));
    let good = repository.commit("good");
    until(&vejas, "the good commit", |found| is_at(found, &good));
    let (text, code) = command(&vejas, &["rollback", "99"]);
    assert_eq!((code, text.contains("there is no publication 99 yet; the newest has number 4")), (3, true), "{text}");
}

#[test]
fn a_folder_that_was_published_over_comes_back_when_it_changes() {
    let vejas = started(".v = 1");
    let folder = other(&vejas, ".v = 2");
    assert_eq!(command(&vejas, &["publish", &folder]).1, 0);
    let found = until(&vejas, "the other folder", |found| {
        found["converged"] == true && found["members"][0]["degraded"].is_string()
    });
    assert!(found["members"][0]["degraded"].as_str().unwrap().contains("no 2 of ada"), "{found:#}");
    fs::write(vejas.manifests().join("flow.yaml"), flow(".v = 3")).unwrap();
    until(&vejas, "the folder", |found| found["publication"]["no"] == 3 && found["publication"]["by"] == "directory");
}

#[test]
fn a_suspended_unit_does_nothing_until_it_is_resumed_also_over_a_restart_and_loses_nothing() {
    let mut vejas = started(".v = 1");
    let (text, code) = command(&vejas, &["suspend", "flow/work", "-m", "look at it"]);
    assert_eq!((code, text.contains("suspended")), (0, true), "{text}");
    let state = |vejas: &Vejas, unit: &str| {
        let status = vejas.status();
        let units = status["units"].as_array().unwrap().clone();
        units.into_iter().find(|one| one["unit"] == unit).unwrap()
    };
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    while state(&vejas, "flow/work")["state"] != "suspended" {
        assert!(std::time::Instant::now() < deadline);
    }
    assert!(state(&vejas, "flow/work")["reason"].as_str().unwrap().contains("look at it"));
    post(vejas.ingress, "/in", "{\"n\":1}");
    vejas.kill();
    vejas.start();
    assert_eq!(state(&vejas, "flow/work")["state"], "suspended");
    assert!(!vejas.folder.path().join("out/done.ndjson").exists());
    assert_eq!(command(&vejas, &["resume", "flow/work"]).1, 0);
    assert_eq!(lines(&vejas, 1), [r#"{"n":1,"v":1}"#]);

    command(&vejas, &["suspend", "http-in/in"]);
    let deadline = std::time::Instant::now() + crate::support::PATIENCE;
    while post(vejas.ingress, "/in", "{}").0 != 503 {
        assert!(std::time::Instant::now() < deadline);
    }
    command(&vejas, &["resume", "http-in/in"]);
    while post(vejas.ingress, "/in", "{}").0 != 200 {
        assert!(std::time::Instant::now() < deadline);
    }
    let (text, code) = command(&vejas, &["resume", "flow/none"]);
    assert_eq!((code, text.contains("no unit is called flow/none")), (3, true), "{text}");
    let (text, code) = command(&vejas, &["suspend", "flow/none"]);
    assert_eq!((code, text.contains("no unit is called flow/none")), (3, true), "{text}");
}

#[test]
fn a_removal_of_more_than_a_third_waits_until_it_is_confirmed() {
    let repository = Repository::new();
    for n in 0..9 {
        repository.write(&format!("m/f{n}.yaml"), &flow(".v = 1").replace("name: work", &format!("name: f{n}")));
    }
    repository.commit("twelve units");
    let mut vejas = of(&repository);
    vejas.start();
    for n in 0..5 {
        fs::remove_file(repository.path().join(format!("m/f{n}.yaml"))).unwrap();
    }
    let commit = repository.commit("seven units");
    let found = until_not_synced(&vejas, "refused", "removes 5 of 12 units");
    assert_eq!(found["publication"]["no"], 1);
    let reason = found["sync"]["reason"].as_str().unwrap();
    let hash = reason.split("--plan ").nth(1).unwrap().split('`').next().unwrap().to_owned();
    let (text, code) = command(&vejas, &["apply", "--plan", "0123456789ab"]);
    assert_eq!(code, 3, "{text}");
    assert!(text.contains(&hash), "it names the plan that waits: {text}");
    let (text, code) = command(&vejas, &["apply", "--plan", &hash]);
    assert_eq!(code, 0, "{text}");
    until(&vejas, "the confirmed removal", |found| is_at(found, &commit));
    let (text, code) = command(&vejas, &["apply", "--plan", &hash]);
    assert!(code == 3 && text.contains("no plan waits"), "{code} {text}");
}

#[test]
fn every_publication_is_in_the_audit_once() {
    let mut vejas = started(".v = 1");
    let folder = other(&vejas, ".v = 2");
    command(&vejas, &["publish", &folder]);
    until(&vejas, "the second", |found| found["publication"]["no"] == 2 && found["converged"] == true);
    vejas.kill();
    vejas.start();
    command(&vejas, &["rollback"]);
    until(&vejas, "the third", |found| found["publication"]["no"] == 3 && found["converged"] == true);
    vejas.stop();
    let bus = crate::support::open_bus(&vejas.data());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let records = runtime.block_on(bus.read("VEJAS_AUDIT", 1, &[], 100)).unwrap();
    let nos: Vec<u64> = records
        .iter()
        .map(|record| serde_json::from_slice::<serde_json::Value>(&record.payload).unwrap()["no"].as_u64().unwrap())
        .collect();
    assert_eq!(nos, [1, 2, 3]);
    let subjects: Vec<&str> = records.iter().map(|record| record.subject.as_str()).collect();
    assert_eq!(subjects, ["vxaudit.1", "vxaudit.2", "vxaudit.3"]);
}
