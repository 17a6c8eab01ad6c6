//! What an operator asks of a cluster, and what it refuses.

use std::process::Output;

use crate::load::{Load, ORDERS, settle};
use crate::nats::Server;
use crate::world::{SHORT_TTL, World, name};

/// Wrong use of the command line.
const USAGE: i32 = 64;

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn command(world: &World, number: usize, arguments: &[&str]) -> String {
    let output = world.instances[number].command(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn members_leases_and_drain_work_from_any_instance() {
    let mut world = World::new(ORDERS, 3);
    world.start();
    let load = Load::start(&world);
    load.wait_for_more(&world, 20);
    let owner = world.owner("source/beat");
    let asked = (owner + 1) % 3;
    let members = command(&world, asked, &["members"]);
    let row = |number: usize| members.lines().find(|line| line.starts_with(&name(number + 1))).unwrap_or_default();
    for number in 0..3 {
        assert!(row(number).contains("alive"), "{members}");
        assert_eq!(row(number).starts_with(&format!("{}*", name(number + 1))), number == asked, "{members}");
    }
    let leases = command(&world, asked, &["leases"]);
    let beat = leases.lines().find(|line| line.starts_with("source/beat")).unwrap();
    assert!(beat.contains("held") && beat.contains(&name(owner + 1)), "{leases}");

    let drained = command(&world, asked, &["drain", &name(owner + 1)]);
    assert!(drained.contains("was told to leave"), "{drained}");
    let status = world.instances[owner].wait();
    assert!(status.success(), "{status}\n{}", world.instances[owner].log());
    assert_ne!(world.owner("source/beat"), owner);
    let members = command(&world, asked, &["members", "--output", "json"]);
    assert!(!members.contains(&format!("{:?}", name(owner + 1))), "{members}");
    let nobody = world.instances[asked].command(&["drain", "nobody"]).output().unwrap();
    assert!(!nobody.status.success() && told(&nobody).contains("nobody"), "{}", told(&nobody));
    world.instances[owner].start();
    load.wait_for_more(&world, 20);
    settle(&world, load);
}

/// Starts one instance with a setting that is refused; answers its exit code and what it says.
fn refused(world: &mut World, settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = world.instances[0].command(&["run"]);
    let output = command.envs(settings.iter().copied()).output().unwrap();
    (output.status.code(), told(&output))
}

#[test]
fn settings_that_are_not_safe_are_refused_with_what_they_break() {
    let mut world = World::new(ORDERS, 1);
    let (code, text) = refused(&mut world, &[("VEJAS_GRACE_MS", "460")]);
    assert_eq!(code, Some(USAGE), "{text}");
    assert!(
        text.contains("session gate (1 + drift) + sched <= grace (1 - drift) does not hold: 501 ms > 459 ms"),
        "{text}"
    );
    let (code, text) = refused(&mut world, &[("VEJAS_BEAT_MS", "300")]);
    assert_eq!(code, Some(USAGE), "{text}");
    assert!(
        text.contains("2 beat + commit p99 <= session gate does not hold") && text.contains("VEJAS_BEAT_MS"),
        "{text}"
    );
    let (code, text) = refused(&mut world, &[("VEJAS_REPLICAS", "2")]);
    assert_eq!(code, Some(USAGE), "{text}");
    assert!(text.contains("VEJAS_REPLICAS is 2; it can be 1, 3 or 5"), "{text}");
    let (code, text) = refused(&mut world, &[("VEJAS_LEASE_TTL_SECS", "0")]);
    assert_eq!(code, Some(USAGE), "{text}");
    assert!(text.contains("VEJAS_LEASE_TTL_SECS is 0"), "{text}");
}

#[test]
fn more_replicas_than_servers_are_refused() {
    let mut world = World::new(ORDERS, 1);
    let (code, text) = refused(&mut world, &[("VEJAS_REPLICAS", "3")]);
    assert!(code.is_some_and(|code| code != 0), "{text}");
    assert!(text.contains("replicas"), "{text}");
}

#[test]
fn another_ttl_than_that_of_the_bucket_is_refused_with_both() {
    let server = Server::start();
    let url = server.url();
    let mut world = World::on(vec![server], &url, ORDERS, 2).with_short_ttl();
    world.instances[1].environment("VEJAS_LEASE_TTL_SECS", "5");
    world.instances[0].start();
    world.instances[1].launch();
    let status = world.instances[1].wait();
    assert!(!status.success(), "{status}");
    let log = world.instances[1].log();
    let both = format!("keeps records for {} s, but this process is set to 5 s", SHORT_TTL.as_secs());
    assert!(log.contains(&both), "{log}");
    assert!(world.is_ready(0), "the first goes on");
}
