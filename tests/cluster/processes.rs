//! Processes that are killed, paused and restarted while orders run through them.

use std::thread;
use std::time::{Duration, Instant};

use crate::load::{Load, ORDERS, settle};
use crate::network::BUS_AWAY;
use crate::support::PATIENCE;
use crate::world::{SHORT_TTL, World, name, text};

const INSTANCES: usize = 3;
/// Orders taken between two faults.
const BETWEEN: usize = 60;
/// How long a process that woke may take to see what time it is.
const WAKE: Duration = Duration::from_millis(500);

/// Rounds of a campaign.
fn rounds(short: usize, full: usize) -> usize {
    if std::env::var_os("VEJAS_TEST_FULL").is_some() { full } else { short }
}

/// Waits until an instance that woke is at work again: by itself, or started again when it says that the bus was away for too long.
pub fn works_again(world: &mut World, number: usize) {
    let deadline = Instant::now() + PATIENCE;
    // What it was when it was paused it still says at first.
    thread::sleep(WAKE);
    while !world.is_ready(number) {
        assert!(Instant::now() < deadline, "it does not work again\n{}", world.instances[number].log());
        if let Some(status) = world.instances[number].ended() {
            assert_eq!(status.code(), Some(BUS_AWAY), "{}", world.instances[number].log());
            world.instances[number].launch();
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn kill_9_of_each_instance_in_turn_loses_nothing() {
    let mut world = World::new(ORDERS, INSTANCES);
    world.start();
    let load = Load::start(&world);
    for victim in (0..INSTANCES).cycle().take(rounds(INSTANCES, 10 * INSTANCES)) {
        load.wait_for_more(&world, BETWEEN);
        world.instances[victim].kill();
        load.wait_for_more(&world, BETWEEN);
        world.instances[victim].start();
    }
    load.wait_for_more(&world, BETWEEN);
    settle(&world, load);
}

#[test]
fn an_owner_that_was_paused_for_longer_than_the_ttl_writes_nothing_more() {
    let mut world = World::new(ORDERS, INSTANCES).with_short_ttl();
    world.start();
    let load = Load::start(&world);
    for _ in 0..rounds(1, 6) {
        load.wait_for_more(&world, BETWEEN);
        let owner = world.owner("source/beat");
        world.instances[owner].signal("STOP");
        thread::sleep(SHORT_TTL);
        let others: Vec<usize> = (0..INSTANCES).filter(|number| *number != owner).collect();
        world.eventually("another instance took the source", || {
            let leases = world.ask_one(others[0], "/api/v1/leases").unwrap_or_default();
            let leases = leases["leases"].as_array().cloned().unwrap_or_default();
            let beat = leases.iter().find(|lease| lease["unit"] == "source/beat" && lease["state"] == "held");
            beat.is_some_and(|lease| text(&lease["instance"]) != name(owner + 1))
        });
        world.instances[owner].signal("CONT");
        works_again(&mut world, owner);
    }
    let account = settle(&world, load);
    assert!(account.tenures >= 2, "{account:?}");
}

#[test]
fn a_rolling_restart_loses_nothing_and_misses_no_slot() {
    let mut world = World::new(ORDERS, INSTANCES);
    world.start();
    let load = Load::start(&world);
    for number in (0..INSTANCES).cycle().take(rounds(INSTANCES, 10 * INSTANCES)) {
        load.wait_for_more(&world, BETWEEN);
        let status = world.instances[number].stop();
        assert!(status.success(), "{status}\n{}", world.instances[number].log());
        let members = world.ask("/api/v1/members");
        let stays = members["members"].as_array().unwrap().iter().any(|member| member["instance"] == *name(number + 1));
        assert!(!stays, "it left: {members}\n{}", world.instances[number].log());
        world.instances[number].start();
    }
    load.wait_for_more(&world, BETWEEN);
    let account = settle(&world, load);
    assert_eq!(account.doubled[2], 0, "an orderly end leaves nothing to do again: {account:?}");
}

#[test]
fn all_instances_killed_at_once_and_started_again_lose_nothing() {
    let mut world = World::new(ORDERS, INSTANCES);
    world.start();
    let load = Load::start(&world);
    for _ in 0..rounds(2, 10) {
        load.wait_for_more(&world, BETWEEN);
        for instance in &mut world.instances {
            instance.kill();
        }
        thread::sleep(Duration::from_millis(300));
        world.start();
    }
    load.wait_for_more(&world, BETWEEN);
    settle(&world, load);
}
