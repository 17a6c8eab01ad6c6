//! The campaign on a cluster: instances that share a nats-server, killed at random moments under load.
//!
//! Each round allows its share of the messages and kills a random instance when a random part of it is acknowledged; it starts
//! again at once, as by its supervisor. Every second kill is followed by another a moment later, which may meet messages that are
//! being redelivered after the first, or the instance that has just been started. Then the time from the last kill of the
//! round until nothing is left to do is taken.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::campaign::{CONNECTIONS, Campaign, KILL_DELAY_MICROS_MAX, Report, SUBJECTS, body, manifests, wait};
use super::instances::Cluster;
use super::support::Failure;
use super::support::ledger::{Deliveries, compare, stored_on};
use super::support::process::Process;
use super::support::producers::Producers;
use super::support::random::Random;
use super::support::receiver::Receiver;

/// A kill that follows another comes up to this long after it: longer than a message waits to be redelivered.
const NEXT_KILL_MILLIS_MAX: u64 = 4_000;
const KILLS_PER_ROUND_MAX: u32 = 3;
/// Deliveries that one instance has under way: the sink's `concurrency`.
const IN_FLIGHT: u64 = 16;

struct World {
    cluster: Cluster,
    deliveries: Arc<Deliveries>,
    producers: Producers,
    kills: u32,
    last_kill: Instant,
}

/// Runs a whole campaign; `progress` is told a line per round.
pub fn run(campaign: &Campaign<'_>, instances: usize, progress: &mut dyn FnMut(String)) -> Result<Report, Failure> {
    let mut random = Random::new(campaign.seed);
    let deliveries = Arc::new(Deliveries::default());
    let noted = Arc::clone(&deliveries);
    let receiver = Receiver::start(None, move |delivery| noted.took(delivery))?;
    let mut world = World::start(campaign, instances, &manifests(receiver.address), deliveries)?;

    let (mut allowed, mut drain) = (0, Duration::ZERO);
    for round in 1..=u64::from(campaign.rounds) {
        let share = campaign.messages * round / u64::from(campaign.rounds) - allowed;
        world.producers.allow(share);
        let kill_at = allowed + random.below(share);
        allowed += share;
        wait("acknowledgements", || world.producers.acknowledged() >= kill_at)?;
        let killed = world.kill_some(&mut random)?;
        let (loaded, drained) = world.drain()?;
        drain = drain.max(drained);
        progress(format!(
            "round {round}/{}: killed {killed}; after the last kill load for {} ms, drained in {} ms; {} delivered so far",
            campaign.rounds,
            loaded.as_millis(),
            drained.as_millis(),
            world.deliveries.distinct(),
        ));
        world.cluster.wait_ready()?;
    }
    world.end(drain)
}

impl World {
    fn start(
        campaign: &Campaign<'_>,
        instances: usize,
        manifests: &str,
        deliveries: Arc<Deliveries>,
    ) -> Result<Self, Failure> {
        let mut cluster = Cluster::new(campaign.binary, manifests)?;
        cluster.launch(instances)?;
        cluster.wait_ready()?;
        let addresses: Vec<_> = cluster.instances.iter().map(|instance| instance.ingress).collect();
        let prefix = format!("m{:x}", campaign.seed);
        let producers = Producers::start(&addresses, "/in", CONNECTIONS, &prefix, body)?;
        Ok(World { cluster, deliveries, producers, kills: 0, last_kill: Instant::now() })
    }

    /// Kills one instance or some, one after the other, and answers which.
    fn kill_some(&mut self, random: &mut Random) -> Result<String, Failure> {
        let mut killed = Vec::new();
        let mut delay = Duration::from_micros(random.below(KILL_DELAY_MICROS_MAX));
        for _ in 0..KILLS_PER_ROUND_MAX {
            thread::sleep(delay);
            let number = random.below(self.cluster.instances.len() as u64) as usize;
            self.cluster.instances[number].kill()?;
            self.last_kill = Instant::now();
            self.kills += 1;
            self.cluster.launch_again(number)?;
            killed.push(number.to_string());
            if random.below(2) == 0 {
                break;
            }
            delay = Duration::from_millis(random.below(NEXT_KILL_MILLIS_MAX));
        }
        Ok(killed.join(", "))
    }

    /// Waits until everything that was allowed has gone all the way. Answers how long after the last kill the last message was
    /// acknowledged, and how long after it nothing was left.
    fn drain(&self) -> Result<(Duration, Duration), Failure> {
        wait("the acknowledgements of a round", || self.producers.is_idle())?;
        let loaded = self.last_kill.elapsed();
        let sent = self.producers.sent();
        let done = || self.deliveries.have_all(&sent.acknowledged) && !self.is_busy();
        wait("the end of the backlog", || {
            let over = done();
            if !over {
                thread::sleep(Duration::from_millis(20));
            }
            over
        })
        .map_err(|failure| format!("{failure}\n{}", self.cluster.logs()))?;
        Ok((loaded, self.last_kill.elapsed()))
    }

    /// As the first instance says that answers; each knows the backlog of all.
    fn is_busy(&self) -> bool {
        self.cluster.instances.iter().find_map(|instance| instance.is_busy().ok()).unwrap_or(true)
    }

    fn end(mut self, drain: Duration) -> Result<Report, Failure> {
        let sent = self.producers.end()?;
        self.cluster.instances.iter_mut().try_for_each(Process::stop)?;
        let stored = self.cluster.runtime.block_on(stored_on(&*self.cluster.bus))?;
        let mut comparison = compare(&sent, &stored, &SUBJECTS, &self.deliveries);
        // A delivery does not tell which instance made it: a kill explains as many as one can have under way.
        comparison.unexplained = comparison.duplicated_sink.saturating_sub(u64::from(self.kills) * IN_FLIGHT);
        Ok(Report {
            acknowledged: sent.acknowledged.len() as u64,
            unknown: sent.unknown.len() as u64,
            kills: self.kills,
            drain,
            comparison,
        })
    }
}
