//! Instances that were given different manifests run one set all the same.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::load::{Load, ORDERS, numbers, settle};
use crate::world::{World, name};

/// How often an instance looks at its manifests.
const LOOK: &str = "200ms";

fn give(world: &World, number: usize, manifests: &str) {
    fs::write(world.instances[number].manifests().join("all.yaml"), manifests).unwrap();
}

/// What an instance says of itself to the others.
fn described(world: &World, number: usize) -> Value {
    let members = world.ask("/api/v1/members");
    let all = members["members"].as_array().unwrap();
    all.iter().find(|member| member["instance"] == *name(number + 1)).cloned().unwrap_or_default()
}

#[test]
fn new_manifests_take_effect_when_all_instances_have_them_and_no_order_is_worked_on_under_both() {
    let mut world = World::new(ORDERS, 3);
    world.environment("VEJAS_CHECK_INTERVAL", LOOK);
    world.start();
    let load = Load::start(&world);
    load.wait_for_more(&world, 20);
    let no = described(&world, 0)["no"].as_u64().unwrap();

    // The flow of the new set writes elsewhere, and everything behind it follows.
    let new = ORDERS.replace("to: orders.kept", "to: orders.chosen").replace("from: orders.kept", "from: orders.*");
    let new = new.replace("from: orders.*", "from: [orders.kept, orders.chosen]");
    give(&world, 0, &new);
    world.eventually("the first is degraded and says so", || {
        described(&world, 0)["degraded"]
            .as_str()
            .is_some_and(|reason| reason.contains(&name(2)) && reason.contains(&name(3)))
    });
    let status = world.ask_one(0, "/api/v1/status").unwrap();
    assert!(status.to_string().contains("this instance was given"), "{status}");
    assert!(described(&world, 1)["degraded"].is_null() && described(&world, 2)["degraded"].is_null());
    load.wait_for_more(&world, 40);
    give(&world, 1, &new);
    world.eventually("only the last is missing", || {
        described(&world, 0)["degraded"]
            .as_str()
            .is_some_and(|reason| !reason.contains(&name(2)) && reason.contains(&name(3)))
    });
    assert_eq!(described(&world, 2)["no"], no);
    assert!(numbers(&world, "orders.chosen").is_empty(), "nobody runs the new set yet");
    give(&world, 2, &new);
    world.eventually("all run the new set", || {
        (0..3).all(|number| {
            let described = described(&world, number);
            described["degraded"].is_null() && described["no"].as_u64() > Some(no)
        })
    });
    load.wait_for_more(&world, 40);
    world.eventually("orders go the new way", || numbers(&world, "orders.chosen").len() >= 20);
    let account = settle_both(&world, load);
    println!("{account} orders in all");
}

/// Every order is behind the old flow or behind the new one, once.
fn settle_both(world: &World, load: Load) -> usize {
    let orders = load.stop();
    let hops = || [numbers(world, "orders.kept"), numbers(world, "orders.chosen")];
    world.eventually("everything is through", || {
        let [old, new] = hops();
        orders.iter().all(|order| old.contains_key(order) || new.contains_key(order))
    });
    let [old, new] = hops();
    let twice: BTreeSet<u64> = old.keys().filter(|order| new.contains_key(order)).copied().collect();
    assert!(twice.is_empty(), "under both sets: {twice:?}");
    assert!(old.values().chain(new.values()).all(|count| *count == 1), "doubled");
    orders.len()
}

#[test]
fn an_instance_with_other_manifests_that_starts_later_runs_those_of_the_cluster() {
    let mut world = World::new(ORDERS, 2);
    give(&world, 1, &ORDERS.replace("to: orders.kept", "to: orders.elsewhere"));
    world.instances[0].start();
    world.instances[1].start();
    let load = Load::start(&world);
    load.wait_for_more(&world, 40);
    let described = described(&world, 1);
    assert!(described["degraded"].as_str().is_some_and(|reason| reason.contains(&name(1))), "{described}");
    assert!(numbers(&world, "orders.elsewhere").is_empty());
    settle(&world, load);
}
