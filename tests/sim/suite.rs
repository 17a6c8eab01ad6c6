//! The seeds of the suite, and the wrong rules that they catch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::faults::{ALL, FAULTS, Fault};
use crate::protocol::mutant::Mutant;
use crate::protocol::predicates::Broken;
use crate::world::{Log, Report, World};

const SEEDS: u64 = 2_000;
const SEEDS_FULL: u64 = 20_000;
/// Seeds that once found something. They run first.
const FOUND: &str = include_str!("seeds.txt");
/// Seeds after which a wrong rule should have been caught.
const SEEDS_OF_MUTANTS: u64 = 400;

fn found() -> Vec<u64> {
    let lines = FOUND.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.map(|line| line.split_whitespace().next().unwrap().parse().expect("a seed")).collect()
}

/// A panic of the node is a broken invariant as well.
fn run(seed: u64, mutant: Option<Mutant>, log: Log) -> Report {
    guarded(World::new(seed, mutant, log))
}

fn guarded(world: World) -> Report {
    let run = AssertUnwindSafe(|| world.run());
    catch_unwind(run).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().cloned().unwrap_or_default();
        let broken = Some(Broken { id: "panic", what });
        Report { broken, seen: [0; FAULTS], steps: 0, moves: 0, owned_ms: 0, settled_ms: 0, hash: 0 }
    })
}

/// Gives work to all processors. Each run of a seed has one thread.
fn on_all<T: Copy + Sync>(work: &[T], each: impl Fn(T) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(item) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    each(*item);
                }
            });
        }
    });
}

#[test]
fn every_seed_is_safe_and_heals() {
    if let Ok(seed) = std::env::var("VEJAS_SIM_SEED") {
        let report = run(seed.parse().expect("VEJAS_SIM_SEED is a number"), None, Log::Print);
        println!("{report:#?}");
        assert!(report.broken.is_none(), "seed {seed} breaks {:?}", report.broken);
        return;
    }
    let count = if std::env::var_os("VEJAS_TEST_FULL").is_some() { SEEDS_FULL } else { SEEDS };
    let seeds: Vec<u64> = found().into_iter().chain(0..count).collect();
    let total = std::sync::Mutex::new((vec![], [0u64; FAULTS], [0u64; 4]));
    on_all(&seeds, |seed| {
        let report = run(seed, None, Log::Off);
        let mut total = total.lock().unwrap();
        let (failed, seen, sums) = &mut *total;
        if let Some(broken) = report.broken {
            failed.push((seed, broken));
        }
        seen.iter_mut().zip(report.seen).for_each(|(sum, n)| *sum += n);
        sums[0] += report.steps;
        sums[1] += report.moves;
        sums[2] = sums[2].max(report.owned_ms);
        sums[3] = sums[3].max(report.settled_ms);
    });
    let (mut failed, seen, [steps, moves, owned_ms, settled_ms]) = total.into_inner().unwrap();
    failed.sort();
    println!("{} seeds: {steps} steps, {moves} starts of units", seeds.len());
    println!("slowest after healing: owned {owned_ms} ms, settled {settled_ms} ms");
    for (fault, n) in ALL.iter().zip(seen) {
        println!("{fault:?}: {n}");
    }
    for (seed, broken) in failed.iter().take(20) {
        println!("seed {seed} breaks {}: {}", broken.id, broken.what);
    }
    if let Some((seed, broken)) = failed.first() {
        panic!(
            "{} of {} seeds break something; seed {seed} breaks {}: {}\nreplay: VEJAS_SIM_SEED={seed} cargo test \
             --no-default-features --test sim every_seed -- --nocapture",
            failed.len(),
            seeds.len(),
            broken.id,
            broken.what
        );
    }
    for (fault, n) in ALL.iter().zip(seen) {
        assert!(n > 0, "{fault:?} never had an effect");
    }
}

#[test]
fn a_seed_is_the_same_run_each_time() {
    let mut hashes = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let first = run(seed, None, Log::Hash);
        let second = run(seed, None, Log::Hash);
        assert_eq!((first.hash, first.steps), (second.hash, second.steps), "seed {seed}");
        assert_ne!(first.hash, 0);
        hashes.insert(first.hash);
    }
    assert_eq!(hashes.len(), 20, "different seeds are different runs");
}

/// A wrong rule, and the faults under which it is looked for; none: those of the seed.
type Wrong = (Mutant, &'static [Fault]);

/// Which the simulator does not catch stands in `src/protocol/README.md`.
const CAUGHT: [Wrong; 24] = {
    use Fault::*;
    use Mutant::*;
    [
        (NoLeaseGate, &[BlackHole, Hang]),
        (NoSessionGate, &[]),
        (TakeOnEvidence, &[]),
        (TakeOnSuspect, &[]),
        (DeadlineFromReply, &[Pause, SlowReplies, FalseEvidence]),
        (GraceNotBoundToMark, &[SlowReplies, LostReplies, FalseEvidence]),
        (RenewUnknownIsLost, &[]),
        (SuspectIsTaken, &[]),
        (UnknownCreateIsWon, &[]),
        (AdoptByName, &[]),
        (SameIncarnationAgain, &[]),
        (NoQuietTime, &[]),
        (BusyBeatAsIdle, &[]),
        (PositionFromMemory, &[]),
        (BatchTakenAsStored, &[]),
        (OfferBeforeStop, &[Leave, SlowReplies, Restart]),
        (DeadBeforeStop, &[Leave, SlowReplies, FalseEvidence]),
        (OpenOverNewerTenure, &[FalseEvidence, SlowReplies, LostRequests, LostReplies]),
        (ReopenWithoutTenureCheck, &[FalseEvidence, SlowReplies, LostRequests, Publish]),
        (HeadNotReadFirst, &[Publish, Closed, Leave]),
        (WinNotConfirmed, &[Recreate, LateRequests, LostReplies]),
        (PositionNotReadAtOpening, &[]),
        (RetryUnderReadFence, &[]),
        (RunNamesPageOnly, &[]),
    ]
};

/// Seeds until the wrong rule is caught, and by what.
fn caught((mutant, faults): Wrong) -> Option<(u64, Broken)> {
    (0..SEEDS_OF_MUTANTS).find_map(|seed| {
        let world = World::new(seed, Some(mutant), Log::Off);
        let world = if faults.is_empty() { world } else { world.with(faults) };
        Some((seed, guarded(world).broken?))
    })
}

#[test]
fn wrong_rules_are_caught() {
    let missed = std::sync::Mutex::new(vec![]);
    on_all(&CAUGHT, |wrong| match caught(wrong) {
        Some((seed, broken)) => println!("{:?} is caught by {} at seed {seed}: {}", wrong.0, broken.id, broken.what),
        None => missed.lock().unwrap().push(wrong.0),
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not caught in {SEEDS_OF_MUTANTS} seeds: {missed:?}");
}
