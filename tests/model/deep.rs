//! The large worlds: `cargo model-deep` explores them and prints a table. They take minutes and gigabytes, so a plain run of the tests
//! leaves them out; `tests/run --full` does not.
//!
//! A world that is not explored to its end within its steps says so in the table: no invariant broke up to there, and nothing is claimed
//! beyond.

use std::time::Instant;

use crate::protocol::Class;
use crate::world::World;
use crate::worlds::*;

/// Both cores of the reference machine.
const WORKERS: usize = 2;

/// Steps, counted with repetition, after which a world is left.
const STEPS_MAX: usize = 130_000_000;

fn worlds() -> Vec<(World, usize)> {
    let whole = |world: World, name| (World { name, ..world }, STEPS_MAX);
    let bounded = |world: World, name, steps: usize| (World { name, ..world }, steps);
    vec![
        whole(World { writes: 4, ..lease() }, "A, 4 writes"),
        whole(World { crashes: 1, leaves: 1, ..lease() }, "A, 1 crash, 1 release"),
        whole(slow_replies(), "A, replies as separate steps"),
    ]
}

#[test]
#[ignore = "minutes and gigabytes: cargo model-deep"]
fn the_run_table() {
    println!("| world | distinct states | steps | depth | seconds | explored |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (world, steps_max) in worlds() {
        #[allow(clippy::disallowed_methods)] // measures the checker, not the protocol
        let begin = Instant::now();
        let seen = world.explore(WORKERS, steps_max);
        let seconds = begin.elapsed().as_secs_f64();
        let whole = if seen.whole { "to the end" } else { "bounded: nothing broke up to here" };
        println!("| {} | {} | {} | {} | {seconds:.1} | {whole} |", seen.name, seen.states, seen.steps, seen.depth);
    }
}
