//! One instance is cut from the server, shorter and longer than the lease time to live.

use std::thread;
use std::time::{Duration, Instant};

use crate::load::{Load, ORDERS, send, settle};
use crate::nats::Server;
use crate::proxy::{Cut, Proxy};
use crate::support::Vejas;
use crate::world::{SHORT_TTL, World, name};

const INSTANCES: usize = 3;
const BETWEEN: usize = 40;
/// What is promised: everything works again this long after the bus is back.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// The number of the first order that a test sends by itself: no producer comes that far.
const BY_HAND: u64 = 1_000_000;
/// "The bus went away; start me again".
pub const BUS_AWAY: i32 = 75;

/// Every instance reaches the server through a network of its own.
fn behind_proxies(server: Server) -> (World, Vec<Proxy>) {
    let proxies: Vec<Proxy> = (0..INSTANCES).map(|_| Proxy::to(server.address())).collect();
    let url = server.url();
    let mut world = World::on(vec![server], &url, ORDERS, INSTANCES).with_short_ttl();
    for (instance, proxy) in world.instances.iter_mut().zip(&proxies) {
        instance.environment("VEJAS_NATS_URL", &proxy.url());
    }
    (world, proxies)
}

/// How long until the instance takes an order and is a member with a session again.
pub fn works_again(world: &World, number: usize, order: u64) -> Duration {
    let begun = Instant::now();
    let is_member = || {
        let members = world.ask_one(number, "/api/v1/members")?;
        let own = members["members"].as_array()?.iter().find(|member| member["own"] == true)?;
        (own["instance"] == *name(number + 1) && own["session"] == "alive").then_some(())
    };
    world.eventually("the instance works again", || {
        world.is_ready(number) && send(world.instances[number].ingress, order) && is_member().is_some()
    });
    begun.elapsed()
}

fn short_cut(cut: Cut) {
    let (mut world, proxies) = behind_proxies(Server::start());
    world.start();
    let load = Load::start(&world);
    load.wait_for_more(&world, BETWEEN);
    let owner = world.owner("source/beat");
    proxies[owner].set(cut);
    thread::sleep(SHORT_TTL / 2);
    proxies[owner].set(Cut::No);
    let took = works_again(&world, owner, BY_HAND);
    println!("{cut:?} for {:?}: worked again after {took:?}", SHORT_TTL / 2);
    assert!(took < BACK_WITHIN, "{took:?}\n{}", world.instances[owner].log());
    load.wait_for_more(&world, BETWEEN);
    settle(&world, load);
}

fn long_cut(cut: Cut) {
    let (mut world, proxies) = behind_proxies(Server::start());
    world.start();
    let load = Load::start(&world);
    load.wait_for_more(&world, BETWEEN);
    let owner = world.owner("source/beat");
    proxies[owner].set(cut);
    let begun = Instant::now();
    let status = world.instances[owner].wait();
    println!("{cut:?}: ended with {status} after {:?}", begun.elapsed());
    assert_eq!(status.code(), Some(BUS_AWAY), "{}", world.instances[owner].log());
    assert!(begun.elapsed() > SHORT_TTL, "it gave up after {:?}", begun.elapsed());
    load.wait_for_more(&world, BETWEEN);
    assert_ne!(world.owner("source/beat"), owner);
    proxies[owner].set(Cut::No);
    Vejas::launch(&mut world.instances[owner]);
    let took = works_again(&world, owner, BY_HAND);
    println!("{cut:?}: worked {took:?} after the restart");
    assert!(took < BACK_WITHIN, "{took:?}\n{}", world.instances[owner].log());
    load.wait_for_more(&world, BETWEEN);
    let account = settle(&world, load);
    assert!(account.tenures >= 2, "{account:?}");
}

#[test]
fn a_refused_connection_for_less_than_the_ttl_needs_no_restart() {
    short_cut(Cut::Refused);
}

#[test]
fn a_black_hole_for_less_than_the_ttl_needs_no_restart() {
    short_cut(Cut::BlackHole);
}

#[test]
fn a_refused_connection_for_longer_than_the_ttl_ends_the_process_with_75() {
    long_cut(Cut::Refused);
}

#[test]
fn a_black_hole_for_longer_than_the_ttl_ends_the_process_with_75() {
    long_cut(Cut::BlackHole);
}
