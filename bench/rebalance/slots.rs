//! Every slot of every source, as the stream holds them.

use std::collections::BTreeMap;
use std::time::Duration;

use vejas::bus::nats::Nats;
use vejas::flow::message;
use vejas::id::Names;
use vejas::ports::bus::Bus;

use super::support::Failure;

pub const PERIOD: Duration = Duration::from_secs(1);
/// Where all sources publish.
pub const SUBJECT: &str = "move.slots";
/// Messages read at once.
const READ_MESSAGES: usize = 1_000;

/// How many milliseconds after its time each slot was stored, by source and slot; a slot stored twice has two.
#[derive(Default)]
pub struct Slots {
    late: BTreeMap<String, BTreeMap<i64, Vec<i64>>>,
}

pub struct Found {
    /// Slots stored once more than once.
    pub double: usize,
    /// Slots that are not there, between the first of a source and the end.
    pub missed: usize,
    pub slots: usize,
    /// Of the slots since the first change of the members.
    pub late_p50_ms: i64,
    pub late_max_ms: i64,
}

impl Slots {
    pub async fn read(&mut self, bus: &Nats) -> Result<(), Failure> {
        let (stream, filters) = (Names::default().messages(), [Names::default().stored(SUBJECT)]);
        let mut from = 1;
        loop {
            let messages = bus.read(&stream, from, &filters, READ_MESSAGES).await?;
            let Some(last) = messages.last() else { return Ok(()) };
            from = last.sequence + 1;
            for stored in messages {
                let id = stored.headers.get(message::ID).unwrap_or_default();
                let named = id.strip_prefix("i/").and_then(|rest| rest.rsplit_once('/'));
                let (source, slot) = named.ok_or_else(|| format!("{id:?} names no slot"))?;
                let slot: i64 = slot.parse()?;
                let late = stored.time.unix_millis() - slot;
                self.late.entry(source.to_owned()).or_default().entry(slot).or_default().push(late);
            }
        }
    }

    /// Slots up to `until` have to be there; the lateness is that of the slots since `since`. Both in Unix milliseconds.
    pub fn judge(&self, sources: impl Iterator<Item = String>, since: i64, until: i64) -> Found {
        let period = PERIOD.as_millis() as i64;
        let mut found = Found { double: 0, missed: 0, slots: 0, late_p50_ms: 0, late_max_ms: 0 };
        let mut late = Vec::new();
        for source in sources {
            let slots = self.late.get(&source);
            let Some((first, slots)) = slots.and_then(|slots| Some((*slots.first_key_value()?.0, slots))) else {
                // One that never ran has missed all since.
                found.missed += usize::try_from((until - since) / period).unwrap_or(0);
                continue;
            };
            let due = (0..).map(|n| first + n * period).take_while(|slot| *slot <= until);
            found.missed += due.filter(|slot| !slots.contains_key(slot)).count();
            found.double += slots.values().map(|times| times.len() - 1).sum::<usize>();
            found.slots += slots.len();
            late.extend(slots.range(since..).map(|(_, times)| times[0]));
        }
        late.sort_unstable();
        found.late_p50_ms = late.get(late.len() / 2).copied().unwrap_or(0);
        found.late_max_ms = late.last().copied().unwrap_or(0);
        found
    }
}
