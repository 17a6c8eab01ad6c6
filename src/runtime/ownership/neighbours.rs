//! What members say to each other past the store: pings, and claims of units.
//!
//! A ping that nobody answers because nobody listens is evidence that a process has died; no answer in time is none. For a moment after
//! the bus has come back nobody is suspected: the others are still building their connections.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc, watch};

use super::{Member, Said, records};
use crate::ports::clock::SharedClock;
use crate::ports::peers::{Heard, Peers};
use crate::protocol::record::{Incarnation, TenureNumber, Unit};
use crate::protocol::{Event, Evidence};

/// How long a ping waits for its answer, in probe periods.
const PING_PERIODS: u32 = 10;
/// After the bus was away, this long nobody is suspected.
const TRUST_AFTER_AWAY: Duration = Duration::from_millis(1_500);
/// Before the subjects are listened to again.
const LISTEN_AGAIN_AFTER: Duration = Duration::from_millis(50);

fn ping_subject(inc: Incarnation) -> String {
    format!("vejas.ping.{inc}")
}

fn claim_subject(inc: Incarnation) -> String {
    format!("vejas.claim.{inc}")
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Claim,
    Refuse,
    Decline,
    Drain,
}

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    kind: Kind,
    from: String,
    #[serde(default)]
    unit: String,
    #[serde(default)]
    tenure: u64,
}

fn tell(peers: &dyn Peers, to: Incarnation, note: &Note) {
    let payload = serde_json::to_vec(note).expect("strings and numbers are JSON");
    peers.tell(&claim_subject(to), Bytes::from(payload));
}

/// From `from` to `to`.
pub(super) struct Letter<'a> {
    pub from: Incarnation,
    pub to: Incarnation,
    pub unit: &'a Unit,
    pub tenure: TenureNumber,
}

impl Letter<'_> {
    fn note(&self, kind: Kind) -> Note {
        Note { kind, from: self.from.to_string(), unit: self.unit.to_string(), tenure: self.tenure.0 }
    }

    pub fn claim(&self, peers: &dyn Peers) {
        tell(peers, self.to, &self.note(Kind::Claim));
    }

    pub fn refuse(&self, peers: &dyn Peers) {
        tell(peers, self.to, &self.note(Kind::Refuse));
    }

    pub fn decline(&self, peers: &dyn Peers) {
        tell(peers, self.to, &self.note(Kind::Decline));
    }
}

pub(super) fn tell_to_drain(peers: &dyn Peers, to: Incarnation) {
    tell(peers, to, &Note { kind: Kind::Drain, from: String::new(), unit: String::new(), tenure: 0 });
}

/// Answers pings to this incarnation and passes on what is told to it, until it is dropped.
pub(super) async fn answer(peers: Arc<dyn Peers>, inc: Incarnation, inbox: mpsc::Sender<Said>, drain: Arc<Notify>) {
    let pings = async {
        loop {
            let mut pings = peers.listen(&ping_subject(inc));
            while let Some(Ok(_)) = pings.next().await {}
            tokio::time::sleep(LISTEN_AGAIN_AFTER).await;
        }
    };
    let claims = async {
        loop {
            let mut told = peers.listen(&claim_subject(inc));
            while let Some(Ok(payload)) = told.next().await {
                match read(&payload) {
                    Some(Passed::Event(event)) => {
                        if inbox.send(Said::Event(event)).await.is_err() {
                            return;
                        }
                    }
                    Some(Passed::Drain) => drain.notify_one(),
                    None => tracing::warn!("a note of another member cannot be read"),
                }
            }
            tokio::time::sleep(LISTEN_AGAIN_AFTER).await;
        }
    };
    tokio::join!(pings, claims);
}

enum Passed {
    Event(Event),
    Drain,
}

fn read(payload: &[u8]) -> Option<Passed> {
    let note: Note = serde_json::from_slice(payload).ok()?;
    if matches!(note.kind, Kind::Drain) {
        return Some(Passed::Drain);
    }
    let (from, unit) = (records::parse_incarnation(&note.from)?, Unit::new(&note.unit));
    let tenure = TenureNumber(note.tenure);
    Some(Passed::Event(match note.kind {
        Kind::Claim => Event::Claim { from, unit, tenure },
        Kind::Refuse => Event::Refused { unit, tenure },
        Kind::Decline => Event::Declined { from, unit, tenure },
        Kind::Drain => return None,
    }))
}

/// Pings every other member once a period. Ends when the driver is gone.
pub(super) async fn probe(
    peers: Arc<dyn Peers>,
    period: Duration,
    mut members: watch::Receiver<Arc<Vec<Member>>>,
    mut own: watch::Receiver<Option<Incarnation>>,
    inbox: mpsc::Sender<Said>,
    clock: SharedClock,
) {
    let mut turns = tokio::time::interval(period);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut calls = FuturesUnordered::new();
    let mut called: Vec<Incarnation> = Vec::new();
    let mut trusted_until = Duration::ZERO;
    loop {
        tokio::select! {
            _ = turns.tick() => {
                let me = *own.borrow_and_update();
                for member in members.borrow_and_update().iter() {
                    if Some(member.inc) == me || called.contains(&member.inc) {
                        continue;
                    }
                    called.push(member.inc);
                    let (inc, call) = (member.inc, peers.call(&ping_subject(member.inc), period * PING_PERIODS));
                    calls.push(async move { (inc, call.await) });
                }
            }
            Some((inc, heard)) = calls.next() => {
                called.retain(|other| *other != inc);
                let now = clock.monotonic();
                let evidence = match heard {
                    Heard::Answered => continue,
                    Heard::Away => {
                        trusted_until = now + TRUST_AFTER_AWAY;
                        continue;
                    }
                    Heard::Silent => Evidence::TimedOut,
                    Heard::NoResponders if now < trusted_until => continue,
                    Heard::NoResponders => Evidence::NoResponders,
                };
                if inbox.send(Said::Event(Event::Suspicion { inc, evidence })).await.is_err() {
                    return;
                }
            }
        }
    }
}
