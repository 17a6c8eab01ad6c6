//! SIGKILL at random moments under load: nothing acknowledged is lost, nothing is on the bus twice.
//!
//! Each round allows its share of the messages and kills the process when a random part of it is acknowledged, a random
//! moment later; one start in four is killed before it is ready, too: opening a data folder must be as safe as writing to it.
//! Producers go on through all of it. In the end the backlog drains, the process stops, and `ledger` compares.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::support::Failure;
use super::support::ledger::{Comparison, Deliveries, compare, stored_in};
use super::support::process::Process;
use super::support::producers::Producers;
use super::support::random::Random;
use super::support::receiver::Receiver;

pub const CONNECTIONS: usize = 16;
/// How long any step of a round may take, and the drain.
pub const STEP_WAIT_MAX: Duration = Duration::from_secs(120);
/// A kill comes up to this long after the message that it waits for: a few commits.
pub const KILL_DELAY_MICROS_MAX: u64 = 20_000;
/// The same after a start that is not waited for.
const START_DELAY_MICROS_MAX: u64 = 150_000;
/// One start in so many is killed before it is ready.
const STARTS_PER_KILL: u64 = 4;

/// Each holds every message once.
pub const SUBJECTS: [&str; 2] = ["crash.in", "crash.out"];

pub struct Campaign<'a> {
    pub binary: &'a Path,
    pub messages: u64,
    pub rounds: u32,
    pub seed: u64,
}

#[derive(Debug)]
pub struct Report {
    pub acknowledged: u64,
    /// Sent and given up: may be there or not.
    pub unknown: u64,
    /// Starts that were killed included.
    pub kills: u32,
    pub drain: Duration,
    pub comparison: Comparison,
}

pub fn manifests(receiver: SocketAddr) -> String {
    format!(
        "
apiVersion: vejas/v1
kind: HttpIn
metadata: {{ name: in }}
spec: {{ path: /in, to: crash.in }}
---
apiVersion: vejas/v1
kind: Flow
metadata: {{ name: mark }}
spec:
  from: crash.in
  steps:
    - map: .seen = true
  to: crash.out
---
apiVersion: vejas/v1
kind: Sink
metadata: {{ name: receiver }}
spec:
  from: crash.out
  http: {{ url: 'http://{receiver}/', concurrency: 16 }}
"
    )
}

/// Mostly small; some take several pages, a few are near the size at which the bus stores a message apart.
pub fn body(number: u64, id: &str) -> Vec<u8> {
    let filler = match number {
        n if n % 499 == 0 => 300_000,
        n if n % 41 == 0 => 20_000,
        n => 50 + (n % 7) as usize * 60,
    };
    format!("{{\"id\":\"{id}\",\"text\":\"{}\"}}", "x".repeat(filler)).into_bytes()
}

struct World<'a> {
    binary: &'a Path,
    process: Process,
    receiver: Receiver,
    deliveries: Arc<Deliveries>,
    kills: u32,
}

/// Runs a whole campaign; `progress` is told a line per round.
pub fn run(campaign: &Campaign<'_>, progress: &mut dyn FnMut(String)) -> Result<Report, Failure> {
    let mut random = Random::new(campaign.seed);
    let deliveries = Arc::new(Deliveries::default());
    let noted = Arc::clone(&deliveries);
    let receiver = Receiver::start(None, move |delivery| noted.took(delivery))?;
    let process = Process::new(&manifests(receiver.address))?;
    let mut world = World { binary: campaign.binary, process, receiver, deliveries, kills: 0 };
    world.process.start(campaign.binary)?;
    let prefix = format!("m{:x}", campaign.seed);
    let producers = Producers::start(&[world.process.ingress], "/in", CONNECTIONS, &prefix, body)?;

    let mut allowed = 0;
    for round in 1..=u64::from(campaign.rounds) {
        let share = campaign.messages * round / u64::from(campaign.rounds) - allowed;
        producers.allow(share);
        let kill_at = allowed + random.below(share);
        allowed += share;
        wait("acknowledgements", || producers.acknowledged() >= kill_at)?;
        let kills = world.kills;
        let line = world.round(&mut random)?;
        progress(format!(
            "round {round}/{}: killed at {} acknowledged{line}, {} kills in it, {} delivered so far",
            campaign.rounds,
            producers.acknowledged(),
            world.kills - kills,
            world.deliveries.distinct(),
        ));
    }
    wait("the last acknowledgements", || producers.is_idle())?;
    let sent = producers.end()?;
    let drain = world.process.drain(STEP_WAIT_MAX)?;
    world.process.stop()?;
    let stored = stored_in(&world.process.data())?;
    let comparison = compare(&sent, &stored, &SUBJECTS, &world.deliveries);
    Ok(Report {
        acknowledged: sent.acknowledged.len() as u64,
        unknown: sent.unknown.len() as u64,
        kills: world.kills,
        drain,
        comparison,
    })
}

impl World<'_> {
    /// Kills, starts, and perhaps kills before it is ready and starts again.
    fn round(&mut self, random: &mut Random) -> Result<String, Failure> {
        thread::sleep(Duration::from_micros(random.below(KILL_DELAY_MICROS_MAX)));
        self.kill()?;
        while random.below(STARTS_PER_KILL) == 0 {
            self.process.launch(self.binary)?;
            thread::sleep(Duration::from_micros(random.below(START_DELAY_MICROS_MAX)));
            self.kill()?;
        }
        let took = self.process.start(self.binary)?;
        Ok(format!(", ready again in {} ms", took.as_millis()))
    }

    fn kill(&mut self) -> Result<(), Failure> {
        self.process.kill()?;
        self.kills += 1;
        // What the dead process had sent is read to the end first: the next life must not be blamed for it.
        wait("the end of the connections", || self.receiver.connections() == 0)?;
        self.deliveries.next_life();
        Ok(())
    }
}

pub fn wait(what: &str, mut done: impl FnMut() -> bool) -> Result<(), Failure> {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > STEP_WAIT_MAX {
            return Err(format!("waited {STEP_WAIT_MAX:?} in vain for {what}").into());
        }
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}
