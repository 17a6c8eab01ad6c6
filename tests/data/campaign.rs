//! The damage campaign: every file of a directory truncated and with flipped bits, missing, or swapped with another.
//!
//! Each case ends in one of: it opens with everything there; or it is refused with what is lost, and after `repair` opens
//! with what is left, which together with what was reported is all that had been acknowledged. `VEJAS_TEST_FULL=1` takes
//! dense offsets instead of a sample; `VEJAS_TEST_SEED` another sample.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use vejas::bus::embedded::salvage::{Selection, Verdict, check, export, repair};
use vejas::bus::embedded::{Embedded, OpenError};

use super::ground::{
    self, Ground, JOURNAL, Shape, TABLES, contents, copy, differences, files, options, unreported, used,
};

const THREADS: usize = 2;
/// More than any case takes on a busy machine; a hang takes longer.
const CASE_TIME_MAX: Duration = Duration::from_secs(30);
/// The whole process, with all of its threads and fixtures.
const MEMORY_KIB_MAX: u64 = 1024 * 1024;

fn full() -> bool {
    std::env::var("VEJAS_TEST_FULL").is_ok()
}

/// SplitMix64: the sample is the same in every run with the same seed.
struct Chance(u64);

impl Chance {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % below.max(1)
    }
}

#[derive(Debug, Clone)]
enum Damage {
    Cut(u64),
    Flip { at: u64, bit: u8 },
    Zeros { at: u64, bytes: u64 },
    Missing,
    Swapped(PathBuf),
}

#[derive(Debug, Clone)]
struct Case {
    file: PathBuf,
    damage: Damage,
}

impl Case {
    fn apply(&self, dir: &Path) {
        let path = dir.join(&self.file);
        let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        match &self.damage {
            Damage::Cut(length) => open().set_len(*length).unwrap(),
            Damage::Flip { at, bit } => {
                let (file, mut byte) = (open(), [0]);
                file.read_exact_at(&mut byte, *at).unwrap();
                byte[0] ^= 1 << bit;
                file.write_all_at(&byte, *at).unwrap();
            }
            Damage::Zeros { at, bytes } => open().write_all_at(&vec![0; *bytes as usize], *at).unwrap(),
            Damage::Missing => fs::remove_file(path).unwrap(),
            Damage::Swapped(other) => {
                let other = dir.join(other);
                let between = dir.join("between");
                fs::rename(&path, &between).unwrap();
                fs::rename(&other, &path).unwrap();
                fs::rename(&between, &other).unwrap();
            }
        }
    }
}

fn cases(dir: &Path, chance: &mut Chance) -> Vec<Case> {
    let mut cases = Vec::new();
    let all: Vec<PathBuf> = files(dir).iter().map(|path| path.strip_prefix(dir).unwrap().to_owned()).collect();
    let is_journal = |path: &Path| path.extension().is_some_and(|extension| extension == "jnl");
    for file in &all {
        let mut add = |damage| cases.push(Case { file: file.clone(), damage });
        let length = used(&dir.join(file));
        add(Damage::Missing);
        for cut in [0, length / 2, length.saturating_sub(1)] {
            add(Damage::Cut(cut));
        }
        let (flips, cuts) = if full() {
            (length.min(60), length.min(12))
        } else {
            (if is_journal(file) { 25 } else { 3 + length / 30_000 }, 1)
        };
        for _ in 0..cuts {
            add(Damage::Cut(chance.next(length)));
        }
        for _ in 0..flips {
            if length > 0 {
                add(Damage::Flip { at: chance.next(length), bit: chance.next(8) as u8 });
            }
        }
        if length > 64 {
            add(Damage::Zeros { at: chance.next(length - 64), bytes: 64 });
            // The file's end, where tables keep what they are opened by.
            add(Damage::Flip { at: length - 1 - chance.next(60), bit: chance.next(8) as u8 });
        }
    }
    let kin = |a: &Path, b: &Path| a.parent().map(|p| p.file_name()) == b.parent().map(|p| p.file_name()) && a != b;
    let mut swaps = 0;
    for (at, file) in all.iter().enumerate() {
        for other in all[at + 1..]
            .iter()
            .filter(|other| kin(file, other) && other.starts_with("bus/keyspaces") || is_journal(other))
        {
            swaps += 1;
            // A table of the same number in another keyspace looks most like the right one.
            let namesake = file.file_name() == other.file_name() && file.parent() != other.parent();
            if full() || swaps % 16 == 0 || namesake || is_journal(file) {
                cases.push(Case { file: file.clone(), damage: Damage::Swapped(other.clone()) });
            }
        }
    }
    cases
}

/// How a case ended, or what is wrong with that.
fn outcome(ground: &Ground, case: &Case, runtime: &tokio::runtime::Runtime) -> Result<&'static str, String> {
    let dir = tempfile::tempdir().unwrap();
    copy(ground.dir.path(), dir.path());
    case.apply(dir.path());
    let refused = match Embedded::open(options(dir.path())) {
        Ok(bus) => {
            let found = runtime.block_on(contents(&bus));
            bus.close();
            let wrong = differences(&ground.acknowledged, &found);
            return if wrong.is_empty() {
                Ok("opens whole")
            } else {
                Err(format!("opened short: {}", wrong.join("; ")))
            };
        }
        Err(OpenError::Damaged { reason, .. }) => reason,
        Err(other) => return Err(format!("refused for another reason: {other}")),
    };
    let report = check(dir.path(), &mut |_, _, _| {}).map_err(|error| format!("check: {error}"))?;
    if report.verdict != Verdict::Damaged || report.faults.is_empty() {
        return Err(format!("refused ({refused}), but check says {report}"));
    }
    let mut exported = 0;
    let mut count = |_: vejas::bus::embedded::salvage::Exported<'_>| {
        exported += 1;
        Ok(())
    };
    export(dir.path(), &Selection::default(), &mut count, &mut |_, _, _| {})
        .map_err(|error| format!("export: {error}"))?;
    let repaired = repair(&options(dir.path()), true, &mut |_| true, &mut |_, _, _| {});
    let repaired = repaired.map_err(|error| format!("repair: {error}"))?.expect("agreed");
    let bus = Embedded::open(options(dir.path())).map_err(|error| format!("after the repair: {error}"))?;
    let found = runtime.block_on(contents(&bus));
    bus.close();
    let mut wrong = unreported(&ground.acknowledged, &found, &repaired.report);
    if exported != found.messages.len() {
        wrong.push(format!("export gave {exported} messages, repair kept {}", found.messages.len()));
    }
    let after = check(dir.path(), &mut |_, _, _| {}).map_err(|error| format!("check after repair: {error}"))?;
    if after.verdict == Verdict::Damaged {
        wrong.push(format!("still damaged: {after}"));
    }
    if !wrong.is_empty() {
        return Err(format!("{}\n{}", wrong.join("; "), repaired.report));
    }
    let lost = &repaired.report.lost;
    Ok(match (lost.is_nothing(), lost.is_fully_named()) {
        (true, _) => "refused, nothing lost",
        (_, true) => "refused, loss named record by record",
        _ => "refused, loss named by records and commits",
    })
}

fn run(name: &str, ground: &Ground, cases: &[Case]) {
    let (next, outcomes, failures) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let runtime =
                    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begin = Instant::now();
                    let ended = catch_unwind(AssertUnwindSafe(|| outcome(ground, case, &runtime)));
                    let mut ended = ended.unwrap_or_else(|_| Err("panicked".to_owned()));
                    if begin.elapsed() > CASE_TIME_MAX {
                        ended = Err(format!("took {:?}", begin.elapsed()));
                    }
                    match ended {
                        Ok(outcome) => *outcomes.lock().unwrap().entry(outcome).or_insert(0) += 1,
                        Err(wrong) => failures.lock().unwrap().push(format!("{case:?}: {wrong}")),
                    }
                }
            });
        }
    });
    println!("{name}: {} cases", cases.len());
    for (outcome, count) in outcomes.into_inner().unwrap() {
        println!("  {count:5}  {outcome}");
    }
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches("kB").trim().parse().unwrap();
    assert!(peak < MEMORY_KIB_MAX, "the process grew to {peak} KiB");
}

fn campaign(name: &str, shape: Shape, prepare: impl FnOnce(&Path), only: &str) {
    let seed = std::env::var("VEJAS_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ground = runtime.block_on(ground::make(shape));
    prepare(ground.dir.path());
    let whole = check(ground.dir.path(), &mut |_, _, _| {}).unwrap();
    assert_eq!(whole.verdict, Verdict::Sound, "{whole}");
    let mut cases = cases(ground.dir.path(), &mut Chance(seed));
    cases.retain(|case| case.file.to_string_lossy().ends_with(only));
    println!("{name}: seed {seed}");
    run(name, &ground, &cases);
}

/// Divides the journal into three, as rotating leaves it: sealed ones that are not written out yet, and the active one.
fn divide_journal(dir: &Path) {
    let first = dir.join("bus/0.jnl");
    let mut bytes = vec![0; used(&first) as usize];
    fs::File::open(&first).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    // Each batch ends in these four bytes and begins with a one.
    let ends: Vec<usize> = (4..bytes.len()).filter(|at| &bytes[at - 4..*at] == b"FJL\x03" && bytes[*at] == 1).collect();
    let (one, two) = (ends[ends.len() / 3], ends[ends.len() * 2 / 3]);
    for (number, part) in [&bytes[..one], &bytes[one..two], &bytes[two..]].into_iter().enumerate() {
        fs::write(dir.join(format!("bus/{number}.jnl")), part).unwrap();
    }
}

#[test]
fn no_damage_to_a_journal_goes_unnoticed_or_unreported() {
    campaign("journal", JOURNAL, |_| {}, "");
}

#[test]
fn no_damage_to_one_of_several_journals_goes_unnoticed_or_unreported() {
    campaign("journals", JOURNAL, divide_journal, ".jnl");
}

#[test]
fn no_damage_to_tables_goes_unnoticed_or_unreported() {
    campaign("tables", TABLES, |_| {}, "");
}
