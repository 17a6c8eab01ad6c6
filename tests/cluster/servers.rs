//! The server goes and comes back; one of three servers goes.

use std::thread;
use std::time::Duration;

use crate::load::{Load, ORDERS, settle};
use crate::nats::{Cluster, Server};
use crate::network::works_again;
use crate::world::World;

const INSTANCES: usize = 3;
const BETWEEN: usize = 40;
/// What is promised: everything works again this long after the bus is back.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// The number of the first order that a test sends by itself.
const BY_HAND: u64 = 2_000_000;
/// The server is away for this long, well below the lease time to live.
const AWAY: Duration = Duration::from_secs(2);
const SERVERS: usize = 3;

fn outage(end: impl Fn(&mut Server)) {
    let mut world = World::new(ORDERS, INSTANCES);
    world.start();
    let load = Load::start(&world);
    load.wait_for_more(&world, BETWEEN);
    let consumers = world.servers[0].held().2;
    end(&mut world.servers[0]);
    thread::sleep(AWAY);
    let before = world.instances.iter().map(crate::support::Vejas::pid).collect::<Vec<_>>();
    world.servers[0].restart();
    for number in 0..INSTANCES {
        let took = works_again(&world, number, BY_HAND + number as u64);
        println!("instance {number} worked {took:?} after the server was back");
        assert!(took < BACK_WITHIN, "{took:?}\n{}", world.instances[number].log());
    }
    let slots = world.slots("beat", "ops.beat").len();
    let going = world.within(BACK_WITHIN, || world.slots("beat", "ops.beat").len() > slots + 10);
    assert!(going.is_some(), "the source stands still\n{}", world.logs());
    assert_eq!(before, world.instances.iter().map(crate::support::Vejas::pid).collect::<Vec<_>>());
    load.wait_for_more(&world, BETWEEN);
    settle(&world, load);
    world.eventually("there are as many consumers as before", || world.servers[0].held().2 <= consumers);
}

#[test]
fn a_killed_server_that_comes_back_needs_no_restart() {
    outage(Server::kill);
}

#[test]
fn a_server_that_is_restarted_in_order_needs_no_restart_of_others() {
    outage(Server::stop);
}

#[test]
fn the_loss_of_one_of_three_servers_loses_nothing() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let mut world = World::on(cluster.servers, &url, ORDERS, INSTANCES);
    world.environment("VEJAS_REPLICAS", "3");
    world.start();
    let load = Load::start(&world);
    let victims = if std::env::var_os("VEJAS_TEST_FULL").is_some() { SERVERS } else { 1 };
    for victim in 0..victims {
        load.wait_for_more(&world, BETWEEN);
        world.servers[victim].kill();
        load.wait_for_more(&world, BETWEEN);
        let slots = world.slots("beat", "ops.beat").len();
        world.eventually("slots go on", || world.slots("beat", "ops.beat").len() > slots + 10);
        world.servers[victim].restart();
    }
    load.wait_for_more(&world, BETWEEN);
    settle(&world, load);
}
