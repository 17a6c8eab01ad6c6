//! Which durable a unit reads from.
//!
//! The filters of a durable never change: a unit whose `from` changed between two starts gets the next number, and the old durable
//! goes once the new one exists. Where the new one starts keeps what the old one had not finished.

use std::sync::Arc;

use super::flow_worker::ACK_WAIT;
use super::units::Error;
use crate::id::UnitId;
use crate::manifest::value::{OneOrMany, Pattern, StartFrom};
use crate::ports::bus::{Durable, DurableConfig, DurableInfo, Start};
use crate::unit::context::Context;

/// The durables that exist, read once: with a thousand units each would ask for a thousand.
pub(super) struct Durables {
    context: Context,
    stream: Arc<str>,
    existing: Vec<DurableInfo>,
}

impl Durables {
    pub async fn read(context: &Context) -> Result<Self, Error> {
        let stream: Arc<str> = Arc::from(context.names.messages());
        let existing = context.bus.durables(&stream).await.map_err(Error::Durables)?;
        Ok(Durables { context: context.clone(), stream, existing })
    }

    /// The durable of a unit: made when the unit is new, found otherwise. Nothing of the unit may run yet.
    pub async fn of_unit(
        &mut self,
        id: &UnitId,
        from: &OneOrMany<Pattern>,
        start: StartFrom,
        in_flight_max: usize,
    ) -> Result<Durable, Error> {
        let names = &self.context.names;
        let mut filters: Vec<String> = from.as_slice().iter().map(|pattern| names.stored(pattern.as_str())).collect();
        filters.push(names.replay(id));
        filters.sort();
        filters.dedup();
        let failed = |source| Error::Bus { unit: id.clone(), source };
        let mut earlier = self.take(id);
        let newest = earlier.pop();
        let (number, start) = match &newest {
            None => (1, first_start(start)),
            Some((number, info)) if same_filters(info, &filters) => (*number, Start::End),
            Some((number, info)) => {
                let before = info.config.filters.join(" ");
                tracing::warn!(unit = %id, before, "`from` has changed: a new durable takes over");
                (number + 1, next_start(info))
            }
        };
        let config = DurableConfig { name: id.durable(number), filters, start, ack_wait: ACK_WAIT, in_flight_max };
        let durable = self.context.bus.ensure_durable(&self.stream, config).await.map_err(failed)?;
        // Only now: killed in between, the next start finds both and takes the newer one.
        earlier.extend(newest.filter(|(found, _)| *found != number));
        for (_, info) in earlier {
            let old = Durable { stream: Arc::clone(&self.stream), name: Arc::from(info.config.name) };
            self.context.bus.delete_durable(&old).await.map_err(failed)?;
        }
        Ok(durable)
    }

    /// The durables of one unit, by number.
    fn take(&mut self, id: &UnitId) -> Vec<(u32, DurableInfo)> {
        let number = |info: &DurableInfo| {
            let (_, number) = info.config.name.rsplit_once('_')?;
            let number = number.parse().ok()?;
            (info.config.name == id.durable(number)).then_some(number)
        };
        let mut found: Vec<_> = self
            .existing
            .extract_if(.., |info| number(info).is_some())
            .filter_map(|info| Some((number(&info)?, info)))
            .collect();
        found.sort_by_key(|(number, _)| *number);
        found
    }

    /// Those that no unit asked for, with the number of messages that wait in each.
    pub fn without_unit(&self) -> impl Iterator<Item = (&str, u64)> {
        let waiting = |info: &DurableInfo| info.pending + (info.in_flight + info.redelivering) as u64;
        self.existing.iter().map(move |info| (info.config.name.as_str(), waiting(info)))
    }
}

fn first_start(start: StartFrom) -> Start {
    match start {
        StartFrom::End => Start::End,
        StartFrom::First => Start::First,
        StartFrom::Sequence(sequence) => Start::Sequence(sequence),
        StartFrom::Time(time) => Start::Time(time),
    }
}

/// After what the old durable finished. What it had acknowledged beyond its floor comes again: at least once.
fn next_start(old: &DurableInfo) -> Start {
    if is_idle(old) { Start::End } else { Start::Sequence(old.ack_floor + 1) }
}

fn is_idle(info: &DurableInfo) -> bool {
    info.pending == 0 && info.in_flight == 0 && info.redelivering == 0
}

fn same_filters(info: &DurableInfo, sorted: &[String]) -> bool {
    let mut found = info.config.filters.clone();
    found.sort();
    found == sorted
}
