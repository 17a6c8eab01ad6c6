//! A unit that one instance may run: who does, and what happens when it goes.

use std::thread;
use std::time::Duration;

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
    let members = world.ask("/api/v1/members");
    // The life that was killed is listed until it is forgotten.
    let listed = members["members"].as_array().unwrap().iter().filter(|member| member["session"] == "alive");
    let instances: Vec<&str> = listed.filter_map(|member| member["instance"].as_str()).collect();
    assert!(!instances.contains(&name(last + 1).as_str()), "{members}");
}
