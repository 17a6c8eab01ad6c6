//! A unit that one instance may run: who does, and what happens when it goes.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use vejas::flow::message::{self, Stored};

use serde_json::Value;

use crate::world::{World, assert_gapless, eventually, name};

/// A source with a slot every 100 ms that makes up for all it misses.
const BEAT: &str = "apiVersion: vejas/v1
kind: Source
metadata: { name: beat }
spec:
  interval: { every: 100ms, onMissed: fireAll }
  to: ops.beat
";

#[test]
fn a_source_runs_on_one_instance_and_moves_when_that_is_killed() {
    let mut world = World::new(BEAT, 3);
    world.start();
    eventually("slots are stored", || world.slots("beat", "ops.beat").len() >= 10);
    let owner = world.owner("source/beat");
    world.instances[owner].kill();
    let before = world.slots("beat", "ops.beat").len();
    eventually("another instance goes on", || world.slots("beat", "ops.beat").len() >= before + 20);
    let next = world.owner("source/beat");
    assert_ne!(next, owner);
    // Again, and the one that was killed comes back.
    world.instances[owner].start();
    thread::sleep(Duration::from_secs(1));
    let last = world.owner("source/beat");
    assert!(world.instances[last].stop().success(), "{}", world.logs());
    let before = world.slots("beat", "ops.beat").len();
    eventually("the unit is handed over", || world.slots("beat", "ops.beat").len() >= before + 20);
    assert_ne!(world.owner("source/beat"), last);
    assert_gapless(&world.slots("beat", "ops.beat"), 100);
    // What the killed process announced under the same name may still be there: it expires.
    let members = world.ask("/api/v1/members");
    let stays = |member: &Value| member["instance"] == *name(last + 1) && member["session"] != "gone";
    assert!(!members["members"].as_array().unwrap().iter().any(stays), "{members}");
}

/// What the source makes, once more.
const COPY: &str = "---
apiVersion: vejas/v1
kind: Flow
metadata: { name: copy }
spec:
  from: ops.beat
  to: ops.copied
";

#[test]
fn a_consumer_that_somebody_deletes_is_made_again_and_nothing_is_left_out() {
    let mut world = World::new(&format!("{BEAT}{COPY}"), 2);
    world.start();
    eventually("slots are copied", || world.stored("ops.copied").len() >= 10);
    world.delete_durable("flow_copy_1");
    let made = world.slots("beat", "ops.beat").len();
    let copied = || world.stored("ops.copied").iter().filter_map(id).collect::<BTreeSet<_>>();
    eventually("the flow goes on", || copied().len() >= made + 20);
    let copied = copied();
    let made = world.stored("ops.beat");
    // The newest may be on its way.
    let missing: Vec<_> = made[..made.len() - 20].iter().filter_map(id).filter(|id| !copied.contains(id)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

fn id(stored: &Stored) -> Option<String> {
    stored.headers.get(message::ID).map(str::to_owned)
}

#[test]
fn status_shows_the_server_and_warns_when_its_word_is_weaker_than_the_embedded_bus() {
    for (monitored, sync, warning) in [
        (true, "2m", "writes through to its disk every 2m"),
        (false, "null", "when it writes through to its disk is not known"),
    ] {
        let mut world = World::new(BEAT, 1);
        let monitor = world.servers[0].monitor_url();
        if monitored {
            world.instances[0].environment("VEJAS_NATS_MONITOR", &monitor);
        }
        world.start();
        let status = world.ask("/api/v1/status");
        let server = &status["server"];
        assert!(server["version"].as_str().is_some_and(|version| version.starts_with("2.")), "{server}");
        assert_eq!((server["connected"].clone(), server["replicas"].clone()), (true.into(), 1.into()));
        assert_eq!(server["sync"].as_str().unwrap_or("null"), sync);
        let warnings = status["warnings"].to_string();
        assert!(warnings.contains(warning), "{warnings}");
    }
}
