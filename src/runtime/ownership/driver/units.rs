//! The units: which there are, starting and stopping their tasks, and what these write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};

use tokio::sync::{oneshot, watch};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

use super::{Driver, Ended, Held, Running};
use crate::ports::bus;
use crate::protocol::record::{Hold, Position, Sequence, TenureNumber, Unit};
use crate::protocol::{Batch, Event, Moment, UnitSpec};
use crate::runtime::ownership::{Error, Owned, Shown};
use crate::unit::status::State;
use crate::unit::tenancy::{Asked, Stored, Tenancy};

impl Driver {
    pub(super) fn set_units(&mut self, units: BTreeMap<Unit, Owned>, stopped: oneshot::Sender<()>) {
        let same = |unit: &Unit| match (self.units.get(unit), units.get(unit)) {
            (Some(before), Some(after)) => before.spec == after.spec,
            _ => false,
        };
        let outdated = self.running.iter().filter(|(unit, _)| !same(unit));
        let outdated: BTreeSet<_> = outdated.map(|(unit, running)| (unit.clone(), running.life)).collect();
        self.units = units;
        self.awaited.push((outdated, stopped));
        self.step(Event::Units(self.specs()));
        self.release_awaited();
    }

    pub(super) fn specs(&self) -> BTreeMap<Unit, UnitSpec> {
        self.units.iter().map(|(unit, owned)| (unit.clone(), owned.spec.clone())).collect()
    }

    pub(super) fn release_awaited(&mut self) {
        let running = &self.running;
        for (lives, _) in &mut self.awaited {
            lives.retain(|(unit, life)| running.get(unit).is_some_and(|running| running.life == *life));
        }
        let awaited = std::mem::take(&mut self.awaited);
        for (lives, stopped) in awaited {
            if lives.is_empty() {
                let _ = stopped.send(());
            } else {
                self.awaited.push((lives, stopped));
            }
        }
    }

    /// For people: which member runs a unit that this one does not.
    pub(super) fn show_holder(&self, event: &Event) {
        let Event::Lease { unit, seen: Some((_, lease)) } = event else { return };
        let own = self.handle.shown.lock().unwrap_or_else(PoisonError::into_inner).inc;
        if self.leaving || lease.hold != Hold::Held || Some(lease.inc) == own || self.running.contains_key(unit) {
            return;
        }
        if let Some(line) = self.units.get(unit).and_then(|owned| owned.line.as_ref()) {
            line.set_state(State::Standby, Some(format!("{} runs it", lease.instance)));
        }
    }

    /// Kept for the unit, which learns of it with the rewind.
    pub(super) fn note_refusal(&mut self, unit: &Unit, error: &bus::Error) {
        for held in self.batches.values_mut().filter(|held| held.unit == *unit) {
            held.refused = Some(error.clone());
        }
        if !error.is_retryable()
            && let Some(line) = self.units.get(unit).and_then(|owned| owned.line.as_ref())
        {
            line.set_error("bus", &error.to_string(), self.context.clock.now());
        }
    }

    pub(super) fn write(&mut self, asked: Asked) {
        let Asked { unit, life, messages, position, answer } = asked;
        if self.running.get(&unit).is_none_or(|running| running.life != life) {
            let _ = answer.send(Stored::Over);
            return;
        }
        self.batch += 1;
        let batch = Batch(self.batch);
        self.batches.insert(self.batch, Held { unit: unit.clone(), messages: Some(messages), answer, refused: None });
        self.step(Event::Write { unit, batch, position });
        // A node that took it has asked for it.
        if self.batches.get(&batch.0).is_some_and(|held| held.messages.is_some())
            && let Some(held) = self.batches.remove(&batch.0)
        {
            let _ = held.answer.send(Stored::Over);
        }
    }

    pub(super) fn start(
        &mut self,
        unit: Unit,
        tenure: TenureNumber,
        epoch: Option<Sequence>,
        position: Option<Position>,
    ) {
        let Some(owned) = self.units.get(&unit).cloned() else {
            // It was taken away in this very step; the node hears that nothing of it runs.
            self.follows.push_back(Event::Stopped { unit });
            return;
        };
        self.lives += 1;
        let (life, stopping, progressed) = (self.lives, CancellationToken::new(), Arc::new(AtomicBool::new(true)));
        let (permit, permitted) = watch::channel(Moment::PAST);
        let tenancy = Tenancy {
            unit: unit.clone(),
            life,
            epoch,
            position,
            stopping: stopping.clone(),
            permit: permitted,
            progressed: Arc::clone(&progressed),
            writes: self.writes.clone(),
            clock: Arc::clone(&self.context.clock),
            runs: Arc::clone(&self.runs),
        };
        tracing::debug!(%unit, tenure = tenure.0, "this process runs it");
        metrics::counter!("vejas_lease_acquired_total", "unit" => unit.to_string()).increment(1);
        metrics::gauge!("vejas_lease_held", "unit" => unit.to_string()).set(1.0);
        let task = (owned.run)(tenancy);
        let named = unit.clone();
        let task = self.tasks.spawn(async move { (named, life, task.await) });
        self.shown().holds.insert(unit.clone(), tenure.0);
        self.running.insert(unit, Running { life, stopping, permit, progressed, task });
    }

    pub(super) fn shown(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.handle.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stop(&mut self, unit: &Unit) {
        let Some(running) = self.running.get(unit) else { return };
        running.permit.send_replace(Moment::PAST);
        running.stopping.cancel();
        let held: Vec<u64> =
            self.batches.iter().filter(|(_, held)| held.unit == *unit).map(|(number, _)| *number).collect();
        for number in held {
            if let Some(held) = self.batches.remove(&number) {
                let _ = held.answer.send(Stored::Over);
            }
        }
    }

    pub(super) fn rewind(&mut self, unit: &Unit, position: &Option<Position>) {
        let held: Vec<u64> =
            self.batches.iter().filter(|(_, held)| held.unit == *unit).map(|(number, _)| *number).collect();
        for number in held {
            if let Some(held) = self.batches.remove(&number) {
                let refused = held.refused.map(|error| Arc::from(error.to_string()));
                let _ = held.answer.send(Stored::Rewound { position: position.clone(), refused });
            }
        }
    }

    /// A later publication was at work on the unit. Its digest is the same here, or it will be once that publication is in effect.
    pub(super) fn raise_no(&mut self, unit: &Unit, no: u64) {
        if self.applied < no {
            return;
        }
        let applied = self.applied;
        if let Some(owned) = self.units.get_mut(unit)
            && owned.spec.no < applied
        {
            owned.spec.no = applied;
            self.follows.push_back(Event::Units(self.specs()));
        }
    }

    pub(super) fn task_ended(&mut self, ended: Result<Ended, JoinError>) -> Result<(), Error> {
        let (unit, life, result) = match ended {
            Ok(ended) => ended,
            Err(panic) if panic.is_cancelled() => return Ok(()),
            Err(panic) => {
                let unit = self.running.iter().find(|(_, running)| running.task.is_finished());
                let unit = unit.map_or_else(|| Unit::new("a unit"), |(unit, _)| unit.clone());
                return Err(Error::Unit { unit, reason: format!("it broke off: {panic}") });
            }
        };
        let Some(running) = self.running.get(&unit).filter(|running| running.life == life) else { return Ok(()) };
        let told = running.stopping.is_cancelled();
        self.running.remove(&unit);
        self.shown().holds.remove(&unit);
        metrics::gauge!("vejas_lease_held", "unit" => unit.to_string()).set(0.0);
        match result {
            Err(reason) => return Err(Error::Unit { unit, reason }),
            Ok(()) if !told => return Err(Error::Unit { unit, reason: "it ended by itself".to_owned() }),
            Ok(()) => {}
        }
        if let Some(line) = self.units.get(&unit).and_then(|owned| owned.line.as_ref()) {
            let state = if self.leaving { State::Stopped } else { State::Standby };
            line.set_state(state, None);
        }
        self.step(Event::Stopped { unit });
        self.release_awaited();
        Ok(())
    }
}
