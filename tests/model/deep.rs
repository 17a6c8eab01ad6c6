//! The large worlds: `cargo model-deep` explores them and prints a table. They take minutes and gigabytes, so they are a program of their
//! own, which `tests/run --full` calls.
//!
//! A world that is not explored to its end within its steps says so in the table: no invariant broke up to there, and nothing is claimed
//! beyond.

#![allow(dead_code, reason = "the suite uses the rest")]

#[path = "../../src/id.rs"]
mod id;
#[path = "../../src/protocol/mod.rs"]
#[allow(unused_imports)]
mod protocol;

mod explore;
mod heal;
mod kept;
mod source;
mod step;
mod store;
mod world;
mod worlds;

use std::time::Instant;

use crate::world::World;
use crate::worlds::*;

/// Both cores of the reference machine.
const WORKERS: usize = 2;

/// Steps, counted with repetition, after which a world is left. Some need less, to be done in time and within 8 GiB.
const STEPS_MAX: usize = 30_000_000;

/// The worlds of the suite with more in them, smallest first.
fn worlds() -> Vec<World> {
    let named = |name, world| World { name, ..world };
    vec![
        named("D, 3 members, 3 grants, 2 pages", World { members: 3, ..source() }),
        named("D, 2 new publications, 2 pages", World { publications: 2, pages: 2, ..reopening() }),
        named("L, 1 suspicion, late writes", World { suspicions: 1, ..leave() }),
        named("Live E, nobody owns at first, late writes", healing_of_orphans()),
        named("A, replies as separate steps", slow_replies()),
        named("A, slow clocks, late writes", World { zombies: 1, ..lease_of_slow_clocks() }),
        named("A, 4 writes", World { writes: 4, ..lease() }),
        named("A, 1 crash, 1 release", World { crashes: 1, leaves: 1, ..lease() }),
        named("A, bucket made anew, late writes", World { zombies: 1, ..bucket() }),
        named("E and TTL, late writes", World { zombies: 1, ..session_by_ttl() }),
        named("L, two units, late writes", World { zombies: 1, ..leave_two_units() }),
        named("H, late writes", World { zombies: 1, ..handover() }),
        named("A, 3 members, 1 crash", World { members: 3, crashes: 1, ..lease() }),
    ]
}

#[test]
fn the_run_table() {
    println!("| world | distinct states | steps | depth | seconds | explored |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for world in worlds() {
        #[allow(clippy::disallowed_methods)] // measures the checker, not the protocol
        let begin = Instant::now();
        let seen = world.explore(WORKERS, STEPS_MAX);
        let seconds = begin.elapsed().as_secs_f64();
        let whole = if seen.whole { "to the end" } else { "bounded: nothing broke up to here" };
        println!("| {} | {} | {} | {} | {seconds:.1} | {whole} |", seen.name, seen.states, seen.steps, seen.depth);
    }
}
