//! The state of a durable for people and for the trimming chore: a look under the lock, completed from the index.

use super::db::Db;
use super::engine::{Broken, Engine};
use super::select::{self, Selection};
use crate::ports::bus::DurableInfo;

/// What is known of a durable under the lock, and what is still to be read.
pub(super) struct Look {
    info: DurableInfo,
    stream: u32,
    selection: Selection,
    oldest: Option<u64>,
    reached: u64,
    visible: u64,
}

pub(super) fn look(engine: &Engine, id: u32) -> Option<Look> {
    let durable = engine.durables[id as usize].as_ref()?;
    let stream = &engine.streams[durable.stream as usize];
    Some(Look {
        info: DurableInfo {
            config: durable.config.clone(),
            ack_floor: durable.ack_floor(),
            delivered: durable.delivered,
            in_flight: durable.in_flight(),
            redelivering: durable.redelivering(),
            pending: durable.ready() as u64,
            oldest_unacknowledged: None,
        },
        stream: stream.id,
        selection: stream.matching(&durable.config.filters).into(),
        oldest: durable.oldest(),
        reached: durable.reached,
        visible: stream.visible,
    })
}

impl Look {
    /// Adds what only the index knows.
    pub fn complete(mut self, db: &Db) -> Result<DurableInfo, Broken> {
        let behind = self.reached + 1..=self.visible;
        let mut oldest = self.oldest;
        if !behind.is_empty() {
            if oldest.is_none() {
                oldest = select::sequences(db, self.stream, &self.selection, behind.clone(), 1)?.0.first().copied();
            }
            self.info.pending += select::count(db, self.stream, &self.selection, behind)?;
        }
        if let Some(oldest) = oldest {
            self.info.oldest_unacknowledged = select::span_at(db, self.stream, oldest)?.map(|span| span.time);
        }
        Ok(self.info)
    }
}
