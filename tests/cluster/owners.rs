//! A unit that one instance may run: who does, and what happens when it goes.

use std::thread;
use std::time::Duration;

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
