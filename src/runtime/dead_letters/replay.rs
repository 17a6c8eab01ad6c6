//! Back to the unit that failed, and to no other.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;

use super::selection::pace;
use super::view::{Letter, Refused, Replay, Replayed};
use super::{DeadLetters, Error, Unfinished};
use crate::flow::dead_letter;
use crate::flow::message::Outgoing;
use crate::id::{Names, UnitId};
use crate::manifest::value::Rate;
use crate::ports::bus::{self, SETTLEMENT_RESERVE_PERCENT};
use crate::unit::status::{Registry, State};

/// Letters settled together: their commits share a sync.
const TOGETHER_MAX: usize = 64;
/// The same in bytes.
const TOGETHER_BYTES_MAX: usize = 8 << 20;
/// Bytes of one page: a request has to end while the client still waits.
const PAGE_BYTES_MAX: usize = 64 << 20;

impl DeadLetters {
    /// Replays one page of what is selected, in the order of failure; with a rate one burst of it.
    ///
    /// Another client may replay the same letters at the same time: each goes to one of the two. What somebody else took
    /// is passed over, unless it was asked for by its sequence.
    pub async fn replay(&self, replay: &Replay) -> Result<Replayed, Error> {
        let select = &replay.select;
        if select.is_everything() && !replay.all {
            return Err(Error::Everything);
        }
        let rate = replay.rate.as_deref().map(Rate::parse).transpose();
        let rate = rate.map_err(|error| Error::Selection(error.to_string()))?;
        let (letters_max, pause_each) = pace(rate.as_ref(), select.page_letters());
        let letters_max = if replay.dry_run { select.page_letters() } else { letters_max };
        let page = self.select(select, letters_max).await?;
        let readers = Readers::of(self).await?;
        let mut done = Replayed {
            letters: Vec::new(),
            refused: Vec::new(),
            next: page.next,
            through: page.through,
            pause_seconds: 0.0,
        };
        let mut together = Vec::new();
        let (mut bytes, mut page_bytes) = (0, 0);
        for letter in page.letters {
            if page_bytes >= PAGE_BYTES_MAX {
                done.next = Some(letter.sequence);
                break;
            }
            if let Err(reason) = readers.check(&letter.unit) {
                done.refused.push(Refused { sequence: letter.sequence, unit: letter.unit, reason });
                continue;
            }
            if replay.dry_run {
                done.letters.push(letter);
                continue;
            }
            // Read again: what is stored has to be what is settled, and the page may be a while old.
            let message = match self.letter(letter.sequence).await {
                Ok(stored) => dead_letter::replay(&self.names, &stored),
                Err(Error::NotFound { .. }) if select.sequence.is_none() => continue,
                Err(error) => return Err(error),
            };
            let Some(message) = message else {
                let reason = "this is no dead letter: it does not say which message failed".to_owned();
                done.refused.push(Refused { sequence: letter.sequence, unit: letter.unit, reason });
                continue;
            };
            bytes += message.size_bytes();
            page_bytes += message.size_bytes();
            together.push((letter, message));
            if together.len() >= TOGETHER_MAX || bytes >= TOGETHER_BYTES_MAX {
                let (letters, bytes) = (std::mem::take(&mut together), std::mem::take(&mut bytes));
                if !self.send(letters, bytes, &mut done).await? {
                    return Ok(done);
                }
            }
        }
        if !self.send(together, bytes, &mut done).await? {
            return Ok(done);
        }
        let gone = select.sequence.filter(|_| done.letters.is_empty() && done.refused.is_empty());
        if let Some(sequence) = gone.filter(|_| !replay.dry_run) {
            return Err(Error::Gone { sequence });
        }
        if !replay.dry_run {
            done.pause_seconds = pause_each.as_secs_f64() * done.letters.len() as f64;
        }
        Ok(done)
    }

    /// Answers whether to go on. When the bus refuses after some letters of the page went, what went is told, and the
    /// refusal is left to the next request: it begins with what did not.
    async fn send(&self, together: Vec<(Letter, Outgoing)>, bytes: usize, done: &mut Replayed) -> Result<bool, Error> {
        let Some(first) = together.first().map(|(letter, _)| letter.sequence) else { return Ok(true) };
        let sent = match self.check_room(bytes as u64).await {
            Ok(()) => self.settle_all(together, done).await,
            Err(error) => Err(error),
        };
        match sent {
            Ok(()) => Ok(true),
            Err(error) if done.letters.is_empty() => Err(error),
            Err(error) => {
                tracing::warn!("a replay stops: {error}");
                done.next = Some(first);
                Ok(false)
            }
        }
    }

    async fn settle_all(&self, together: Vec<(Letter, Outgoing)>, done: &mut Replayed) -> Result<(), Error> {
        let messages: Arc<str> = Arc::from(self.names.messages());
        let unfinished = Unfinished::new(self);
        let settling: Vec<_> = together
            .into_iter()
            .map(|(letter, message)| {
                let settled = self.succeed(letter.sequence, &messages, message);
                async move { (settled.await, letter) }
            })
            .collect();
        let mut settled = Vec::new();
        let mut failed = None;
        for (result, letter) in join_all(settling).await {
            match result {
                Ok(_) => {
                    let unit = letter.unit.clone();
                    metrics::counter!("vejas_dead_letters_replayed_total", "unit" => unit).increment(1);
                    settled.push(letter.sequence);
                    done.letters.push(letter);
                }
                Err(Error::Gone { .. }) => {}
                Err(Error::Bus(error @ bus::Error::TooLarge { .. })) => {
                    let (sequence, unit, reason) = (letter.sequence, letter.unit, error.to_string());
                    done.refused.push(Refused { sequence, unit, reason });
                }
                Err(error) => failed = Some(error),
            }
        }
        tracing::info!(letters = settled.len(), "dead letters replayed");
        unfinished.finish(&settled).await;
        failed.map_or(Ok(()), Err)
    }

    /// The reserve of the stream is for those who work it off; a replay brings new work.
    async fn check_room(&self, bytes: u64) -> Result<(), Error> {
        let info = self.bus.stream(&self.names.messages()).await?;
        let bytes_max = info.config.bytes_max;
        if info.bytes.saturating_add(bytes) > bytes_max / 100 * (100 - SETTLEMENT_RESERVE_PERCENT) {
            return Err(Error::Bus(bus::Error::Full { stream: info.config.name, bytes_max }));
        }
        Ok(())
    }
}

/// Who reads replays. A message stored for nobody would lie there until it is trimmed.
enum Readers<'a> {
    /// Of the units that run, those with a durable: it reads replays as well.
    Running(&'a Registry),
    /// Without a process the bus has to say: the filters of every durable.
    Known(&'a Names, BTreeSet<String>),
}

impl<'a> Readers<'a> {
    async fn of(letters: &'a DeadLetters) -> Result<Self, Error> {
        if let Some(units) = &letters.units {
            return Ok(Readers::Running(units));
        }
        let durables = letters.bus.durables(&letters.names.messages()).await?;
        let filters = durables.into_iter().flat_map(|durable| durable.config.filters).collect();
        Ok(Readers::Known(&letters.names, filters))
    }

    fn check(&self, unit: &str) -> Result<(), String> {
        let Some(id) = UnitId::parse(unit) else { return Err(format!("{unit:?} is no name of a unit")) };
        let reads = match self {
            Readers::Running(units) => {
                units.get(&id).is_some_and(|unit| unit.durable().is_some() && unit.state() != State::Parked)
            }
            Readers::Known(names, filters) => filters.contains(&names.replay(&id)),
        };
        if reads {
            return Ok(());
        }
        Err(format!("there is no unit {unit} any more: bring its manifest back, or purge the letter"))
    }
}
