//! Publishing to several instances: all run it or none, and every message under one version, whoever was paused, killed or could not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use vejas::flow::message::{self, Stored};

use crate::load::{Load, send, settle};
use crate::processes::works_again;
use crate::support::{PATIENCE, Vejas};
use crate::world::{SHORT_TTL, World, name};

/// The orders of `load`, with the version of the flow in each.
fn orders(version: &str) -> String {
    crate::load::ORDERS.replace("- filter: int!(.n) >= 0", &format!("- map: '.version = {version}'"))
}

fn publish(vejas: &Vejas, manifests: &str) -> (String, i32) {
    let folder = vejas.folder.path().join("published");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("all.yaml"), manifests).unwrap();
    let output = vejas.command(&["publish", "published"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (text, output.status.code().unwrap_or(-1))
}

fn revisions(world: &World) -> Value {
    world.ask("/api/v1/revisions")
}

/// Every input was worked on under one version, and by their place in the stream no later one under an earlier version.
fn assert_one_version_each(world: &World) {
    let number = |stored: &Stored| serde_json::from_slice::<Value>(&stored.payload).unwrap()["n"].as_u64().unwrap();
    let place: BTreeMap<u64, u64> =
        world.stored("orders.raw").iter().map(|stored| (number(stored), stored.sequence)).collect();
    let mut of_input: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for stored in world.stored("orders.kept") {
        let order: Value = serde_json::from_slice(&stored.payload).unwrap();
        of_input.entry(place[&number(&stored)]).or_default().insert(order["version"].as_u64().unwrap());
    }
    let mixed: Vec<_> = of_input.iter().filter(|(_, versions)| versions.len() > 1).collect();
    assert!(mixed.is_empty(), "under several versions: {mixed:?}");
    let in_order: Vec<(u64, u64)> =
        of_input.iter().map(|(place, versions)| (*place, *versions.first().unwrap())).collect();
    let falls: Vec<_> = in_order.windows(2).filter(|two| two[0].1 > two[1].1).collect();
    assert!(falls.is_empty(), "a later message under an earlier version: {falls:?}");
}

#[test]
fn ten_publications_under_load_lose_and_double_nothing_and_no_order_sees_two_versions() {
    let mut world = World::new(&orders("0"), 3);
    world.start();
    let load = Load::start(&world);
    load.wait_for_more(&world, 20);
    let mut slowest = Duration::ZERO;
    for version in 1..=10 {
        let begun = Instant::now();
        let (text, code) = publish(&world.instances[version % 3], &orders(&version.to_string()));
        assert_eq!(code, 0, "{text}\n{}", world.logs());
        assert!(text.contains("is in effect"), "{text}");
        let found = revisions(&world);
        assert_eq!(
            (&found["converged"], found["publication"]["no"].as_u64()),
            (&true.into(), Some(version as u64 + 1))
        );
        slowest = slowest.max(begun.elapsed());
    }
    println!("slowest publication: {} ms", slowest.as_millis());
    load.wait_for_more(&world, 40);
    settle(&world, load);
    assert_one_version_each(&world);
    let kept = world.stored("orders.kept");
    // The last one stored need not be: an order that comes again runs under the version it was granted to.
    let order = |stored: &Stored| serde_json::from_slice::<Value>(&stored.payload).unwrap();
    let newest = kept.iter().map(order).max_by_key(|order| order["version"].as_u64()).unwrap();
    assert_eq!(newest["version"], 10);
    let revisions: BTreeSet<&str> = kept.iter().filter_map(|stored| stored.headers.get(message::REVISION)).collect();
    assert!(revisions.len() >= 2, "{revisions:?}");
}

#[test]
fn a_paused_member_that_wakes_after_a_publication_works_on_nothing_under_the_old_version() {
    let mut world = World::new(&orders("1"), 3).with_short_ttl();
    world.start();
    let load = Load::start(&world);
    load.wait_for_more(&world, 40);
    // With whatever it has in hand.
    world.instances[2].signal("STOP");
    world.eventually("it is forgotten", || world.ask("/api/v1/members")["members"].as_array().unwrap().len() == 2);
    let (text, code) = publish(&world.instances[0], &orders("2"));
    assert_eq!(code, 0, "{text}\n{}", world.logs());
    // The producers wait for the paused one. The others work on, under the new version.
    for number in 1_000_000..1_000_040 {
        assert!(send(world.instances[number as usize % 2].ingress, number));
    }
    world.eventually("the new version works", || {
        let kept = world.stored("orders.kept");
        kept.iter().filter(|stored| stored.payload.windows(10).any(|part| part == b"version\":2")).count() >= 40
    });
    world.instances[2].signal("CONT");
    works_again(&mut world, 2);
    world.eventually("it is back and runs the new version", || {
        let members = world.ask("/api/v1/members");
        let members = members["members"].as_array().unwrap();
        members.len() == 3 && members.iter().all(|member| member["no"] == 2)
    });
    load.wait_for_more(&world, 40);
    let account = settle(&world, load);
    assert_one_version_each(&world);
    println!("{account:?}");
}

#[test]
fn what_one_member_cannot_run_takes_effect_on_none_and_says_which_and_why() {
    let mut world = World::new(&orders("1"), 3);
    for number in [0, 1] {
        world.instances[number].environment("ONLY_HERE", "https://erp.example");
    }
    world.start();
    let sink = "---\napiVersion: vejas/v1\nkind: Sink\nmetadata: { name: erp }\nspec: { from: orders.kept, http: { url: '${env:ONLY_HERE}' } }\n";
    let (text, code) = publish(&world.instances[0], &format!("{}{sink}", orders("2")));
    assert_eq!(code, 3, "{text}");
    assert!(text.contains(&name(3)) && text.contains("ONLY_HERE") && text.contains("nothing changed"), "{text}");
    let found = revisions(&world);
    assert_eq!((&found["publication"]["no"], &found["candidate"]), (&1.into(), &Value::Null), "{found:#}");
    assert!(found["lastAborted"].as_str().unwrap().contains("ONLY_HERE"), "{found:#}");
    let (text, code) = publish(&world.instances[0], &orders("2"));
    assert_eq!(code, 0, "{text}");
}

#[test]
fn of_two_publishers_one_wins_and_the_other_is_told_to_plan_again() {
    let mut world = World::new(&orders("1"), 2);
    world.start();
    let plan = |number: usize, version: &str| {
        let vejas = &world.instances[number];
        let folder = vejas.folder.path().join("published");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("all.yaml"), orders(version)).unwrap();
        let output = vejas.command(&["plan", "published", "--output", "json"]).output().unwrap();
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        plan["hash"].as_str().unwrap().to_owned()
    };
    let hashes = [plan(0, "2"), plan(1, "3")];
    let apply = |number: usize| -> Command {
        world.instances[number].command(&["apply", "--plan", &hashes[number], "published"])
    };
    let outcomes = thread::scope(|scope| {
        let both = [0, 1].map(|number| {
            let mut command = apply(number);
            scope.spawn(move || command.output().unwrap())
        });
        both.map(|one| one.join().unwrap())
    });
    let codes: BTreeSet<i32> = outcomes.iter().map(|output| output.status.code().unwrap()).collect();
    assert_eq!(codes, BTreeSet::from([0, 3]), "{outcomes:?}");
    let lost = outcomes.iter().find(|output| !output.status.success()).unwrap();
    let reason = String::from_utf8_lossy(&lost.stderr);
    assert!(reason.contains("plan again") || reason.contains("is being decided"), "{reason}");
    assert_eq!(revisions(&world)["publication"]["no"], 2);
}

#[test]
fn a_publisher_that_is_killed_leaves_a_candidate_that_the_others_end() {
    let mut world = World::new(&orders("1"), 3).with_short_ttl();
    world.start();
    // One member does not answer, so the publisher waits; then it is gone.
    world.instances[2].signal("STOP");
    let folder = world.instances[0].folder.path().join("published");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("all.yaml"), orders("2")).unwrap();
    let mut publishing = world.instances[0].command(&["publish", "published"]).spawn().unwrap();
    let mut seen = false;
    world.within(PATIENCE, || {
        seen |= world.ask_one(1, "/api/v1/revisions").is_some_and(|found| !found["candidate"].is_null());
        seen
    });
    assert!(seen, "the candidate was announced");
    world.instances[0].kill();
    let _ = publishing.wait();
    world.instances[2].signal("CONT");
    let ended = world.within(Duration::from_secs(30), || {
        world.ask_one(1, "/api/v1/revisions").is_some_and(|found| found["candidate"].is_null())
    });
    assert!(ended.is_some(), "{}", world.logs());
    let (text, code) = publish(&world.instances[1], &orders("3"));
    assert_eq!(code, 0, "{text}\n{}", world.logs());
}

#[test]
fn one_member_follows_the_repository_for_all_and_another_takes_over_when_it_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
        let output = Command::new("git").args(identity).args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    git(&["init", "-q", "-b", "main"]);
    let commit = |version: &str| {
        fs::write(folder.path().join("all.yaml"), orders(version)).unwrap();
        git(&["add", "-A"]);
        git(&["commit", "-q", "-m", version]);
    };
    commit("1");
    let mut world = World::new(&orders("1"), 3).with_short_ttl();
    for instance in &mut world.instances {
        fs::remove_dir_all(instance.manifests()).unwrap();
        let url = format!("file://{}", folder.path().display());
        instance.environment("VEJAS_GIT_URL", &url).environment("VEJAS_GIT_INTERVAL", "500ms");
    }
    world.start();
    let converged = |version: &str| {
        world.eventually("all run the commit", || {
            let found = revisions(&world);
            found["converged"] == true && found["publication"]["reason"] == version
        });
    };
    converged("1");
    commit("2");
    converged("2");
    let owner = world.owner("chore/sync");
    world.instances[owner].kill();
    commit("3");
    world.eventually("the others run the commit", || {
        let found = revisions(&world);
        found["publication"]["reason"] == "3" && found["sync"]["instance"] != *name(owner + 1)
    });
    assert!(
        world.within(SHORT_TTL * 4, || revisions(&world)["converged"] == true).is_some(),
        "{:#}",
        revisions(&world)
    );
}
