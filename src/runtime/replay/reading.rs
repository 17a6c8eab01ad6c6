//! The messages of a comparison, page by page, read from the bus by their sequence: no durable, nothing acknowledged.

use std::sync::Arc;
use std::time::Duration;

use super::view::Reason;
use crate::flow::dead_letter;
use crate::flow::message::{self, Stored};
use crate::id::{Names, UnitId};
use crate::ports::bus::{self, Bus};
use crate::ports::clock::SharedClock;
use crate::protocol::parts::Run;
use crate::runtime::versions::Versions;

/// Messages compared together.
const PAGE_MESSAGES_MAX: usize = 64;
/// How often the end of the stream is looked at when everything has been read.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// How often there is a look at which version runs, while nothing comes.
const VERSION_PERIOD: Duration = Duration::from_secs(1);
/// The wait before a bus that refuses is asked again.
const REFUSED_WAIT: Duration = Duration::from_millis(500);
/// Refusals in a row after which it is over.
const REFUSALS_MAX: u32 = 20;

/// What goes on with what comes.
pub(super) struct Live {
    /// By the monotonic clock.
    pub until: Duration,
    /// The digest of the version that runs.
    pub active: String,
}

pub(super) struct Reading {
    pub bus: Arc<dyn Bus>,
    pub versions: Arc<Versions>,
    pub names: Names,
    pub clock: SharedClock,
    pub unit: UnitId,
    pub stream: String,
    pub filters: Vec<String>,
    /// The sequence to read from.
    pub next: u64,
    /// The last one to be read, of what is stored already.
    pub through: u64,
    pub live: Option<Live>,
    pub are_letters: bool,
}

/// A message, as it comes to the flow, and its business id.
pub(super) type Read = (Stored, String);

/// What was read, and why there will be nothing more.
pub(super) type Page = (Vec<Read>, Option<(Reason, Option<String>)>);

impl Reading {
    /// At least one message, or the end.
    pub async fn page(&mut self, messages_max: u64) -> Page {
        let mut refusals = 0;
        loop {
            match self.try_page(messages_max.min(PAGE_MESSAGES_MAX as u64) as usize).await {
                Ok(page) => return page,
                Err(error) if error.is_retryable() && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    tokio::time::sleep(REFUSED_WAIT).await;
                }
                Err(error) => return (Vec::new(), Some((Reason::Bus, Some(error.to_string())))),
            }
        }
    }

    async fn try_page(&mut self, messages_max: usize) -> Result<Page, bus::Error> {
        loop {
            if self.next > self.through {
                if self.live.is_none() {
                    return Ok((Vec::new(), Some((Reason::Complete, None))));
                }
                if let Some(over) = self.look().await? {
                    return Ok((Vec::new(), Some(over)));
                }
            }
            let read = self.bus.read(&self.stream, self.next, &self.filters, messages_max).await?;
            let mut stored: Vec<Stored> =
                read.into_iter().filter(|message| self.live.is_some() || message.sequence <= self.through).collect();
            // After the reading: what a later version works on has a part of the record by then, or comes later.
            let over = self.changed().await?;
            if let Some(cut) = over {
                stored.retain(|message| message.sequence < cut);
            }
            // Nothing found means nothing up to the end that was seen before the reading.
            self.next = match (over, stored.last()) {
                (Some(cut), _) => cut,
                (None, Some(last)) => last.sequence + 1,
                (None, None) => self.through + 1,
            };
            let messages: Vec<Read> = stored.into_iter().filter_map(|message| self.taken(message)).collect();
            if over.is_some() || !messages.is_empty() {
                let changed = format!("another version of {} runs from sequence {} on", self.unit, self.next);
                return Ok((messages, over.map(|_| (Reason::VersionChanged, Some(changed)))));
            }
        }
    }

    /// Waits until there is something to read, and answers why there will not be.
    async fn look(&mut self) -> Result<Option<(Reason, Option<String>)>, bus::Error> {
        let Some(until) = self.live.as_ref().map(|live| live.until) else { return Ok(None) };
        let mut looked = self.clock.monotonic();
        loop {
            let now = self.clock.monotonic();
            if now >= until {
                return Ok(Some((Reason::Time, None)));
            }
            let info = self.bus.stream(&self.stream).await?;
            if info.last >= self.next {
                self.through = info.last;
                return Ok(None);
            }
            if now >= looked + VERSION_PERIOD {
                looked = now;
                if self.changed().await?.is_some() {
                    let detail = format!("another version of {} runs now", self.unit);
                    return Ok(Some((Reason::VersionChanged, Some(detail))));
                }
            }
            tokio::time::sleep(LOOK_PERIOD.min(until - now)).await;
        }
    }

    /// The first sequence of another version, if one runs by now.
    async fn changed(&self) -> Result<Option<u64>, bus::Error> {
        let Some(live) = &self.live else { return Ok(None) };
        let run = self.versions.run(&self.unit).await?;
        Ok(match run {
            Some((run, _)) => ends(&run, &live.active),
            None => Some(self.next),
        })
    }

    /// As the flow would meet it. `None`: it is no letter of a flow.
    fn taken(&self, stored: Stored) -> Option<Read> {
        if !self.are_letters {
            let id = dead_letter::business_id(&stored);
            return Some((stored, id));
        }
        let replay = dead_letter::replay(&self.names, &stored)?;
        let subject = replay.headers.get(message::SUBJECT)?.to_owned();
        let message = Stored { subject, headers: replay.headers, ..stored };
        let id = dead_letter::business_id(&message);
        Some((message, id))
    }
}

/// Where the part of this version ends, if another one follows it.
fn ends(run: &Run, digest: &str) -> Option<u64> {
    let is_own = |part: &crate::protocol::parts::Part| part.digest.as_deref() == Some(digest);
    match run.parts.iter().rposition(is_own) {
        Some(at) => run.parts.get(at + 1).map(|next| next.from),
        None => Some(run.parts[0].from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::parts::{Part, StreamIdentity};

    #[test]
    fn a_version_ends_where_the_next_part_begins() {
        let part = |from, digest: &str| Part {
            from,
            no: from,
            digest: Some(digest.to_owned()),
            durable: 1,
            reads: Vec::new(),
        };
        let run = |parts| Run {
            stream: StreamIdentity { name: "VEJAS".to_owned(), created: 1 },
            granted: 100,
            seen: 1,
            parts,
        };
        let rolled = run(vec![part(1, "a"), part(50, "b"), part(70, "c")]);
        assert_eq!((ends(&rolled, "a"), ends(&rolled, "b"), ends(&rolled, "c")), (Some(50), Some(70), None));
        assert_eq!(ends(&run(vec![part(60, "b")]), "a"), Some(60), "it is worked off and forgotten");
    }
}
