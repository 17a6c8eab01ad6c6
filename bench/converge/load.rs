//! Messages stored on the flow's subject at a steady rate, whatever becomes of them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use vejas::bus::nats::Nats;
use vejas::flow::message::{HOP, Headers, ID, Outgoing, SOURCE, TIME};
use vejas::id::Names;
use vejas::ports::bus::{Batch, Bus, Settlement};
use vejas::time::Timestamp;

use crate::instances::Cluster;
use crate::judge::FROM;
use crate::support::Failure;

const BATCH_MAX: u64 = 1_000;
/// How often what is due is stored.
const PERIOD: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(300);

pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// Messages of 300 bytes, numbered.
pub async fn store(bus: &dyn Bus, numbers: Range<u64>) -> Result<(), Failure> {
    let stream: Arc<str> = Arc::from(Names::default().messages());
    for first in numbers.clone().step_by(BATCH_MAX as usize) {
        let messages = (first..numbers.end.min(first + BATCH_MAX)).map(|number| Outgoing {
            subject: Names::default().stored(FROM),
            headers: Headers::from_iter([
                (ID, number.to_string().as_str()),
                (TIME, "2026-12-07T00:00:00.000Z"),
                (SOURCE, "http-in/in"),
                (HOP, "0"),
            ]),
            payload: Bytes::from(format!(r#"{{"n":{number},"note":"{}"}}"#, "n".repeat(270))),
            transport_id: None,
        });
        let batch = Batch { stream: Arc::clone(&stream), messages: messages.collect(), expected: Vec::new() };
        bus.settle(Settlement { batches: vec![batch], ..Settlement::default() }).await?;
    }
    Ok(())
}

pub struct Load {
    /// Stored by it so far.
    stored: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    first: u64,
    began: Instant,
    thread: thread::JoinHandle<Result<(), String>>,
}

impl Load {
    /// Begins with the number `first`.
    pub fn start(cluster: &Cluster, first: u64, per_s: f64) -> Result<Self, Failure> {
        let (stored, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (bus, runtime) = (Arc::clone(&cluster.bus), cluster.runtime.handle().clone());
        let thread = thread::spawn({
            let (stored, ended) = (Arc::clone(&stored), Arc::clone(&ended));
            move || runtime.block_on(feed(&bus, first, per_s, &stored, &ended)).map_err(|failure| failure.to_string())
        });
        Ok(Load { stored, ended, first, began: Instant::now(), thread })
    }

    /// Waits until it has stored so many.
    pub fn wait_for(&self, messages: u64) -> Result<(), Failure> {
        let began = Instant::now();
        while self.stored.load(SeqCst) < messages {
            if self.thread.is_finished() || began.elapsed() > PATIENCE {
                return Err(format!("the load stopped at {}", self.stored.load(SeqCst)).into());
            }
            thread::sleep(PERIOD);
        }
        Ok(())
    }

    /// Numbers below the first are stored, and the rate at which they were.
    pub fn end(self) -> Result<(u64, f64), Failure> {
        self.ended.store(true, SeqCst);
        let seconds = self.began.elapsed().as_secs_f64();
        self.thread.join().map_err(|_| "the load broke off")??;
        let stored = self.stored.load(SeqCst);
        Ok((self.first + stored, stored as f64 / seconds))
    }
}

async fn feed(bus: &Nats, first: u64, per_s: f64, stored: &AtomicU64, ended: &AtomicBool) -> Result<(), Failure> {
    let (began, mut next) = (Instant::now(), first);
    while !ended.load(SeqCst) {
        let due = first + (began.elapsed().as_secs_f64() * per_s) as u64;
        if due > next {
            store(bus, next..due).await?;
            next = due;
            stored.store(next - first, SeqCst);
        }
        tokio::time::sleep(PERIOD).await;
    }
    Ok(())
}
