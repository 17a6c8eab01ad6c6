//! Making, adjusting and deleting streams and durables.

use std::sync::Arc;

use super::codec::meta;
use super::db::{Item, Space};
use super::durable;
use super::engine::Engine;
use super::stream::{Stream, check_overlap, check_subjects};
use crate::ports::bus::{Durable, DurableConfig, Error, Start, StreamConfig, StreamInfo};

impl Engine {
    /// Tells compactions how long ids are needed.
    pub(super) fn set_window(&self) {
        let longest = self.streams.iter().map(|stream| stream.config.duplicate_window).max();
        self.window.set(longest.unwrap_or_default());
    }

    pub(super) fn ensure_stream(&mut self, config: StreamConfig) -> Result<StreamInfo, Error> {
        if let Ok(id) = self.stream_id(&config.name) {
            let stream = &mut self.streams[id as usize];
            check_subjects(&stream.config, &config)?;
            stream.dirty |= stream.config != config;
            stream.config = config;
            self.open.sync = true;
            self.set_window();
            return Ok(self.streams[id as usize].info());
        }
        for other in &self.streams {
            check_overlap(&other.config, &config)?;
        }
        let id = self.streams.len() as u32;
        let mut stream = Stream::new(id, config, self.clock.now());
        stream.dirty = true;
        let info = stream.info();
        self.stream_ids.insert(Arc::clone(&stream.name), id);
        self.streams.push(stream);
        self.open.sync = true;
        self.set_window();
        Ok(info)
    }

    /// `reached` is where a new durable begins when its start is a time.
    pub(super) fn ensure_durable(
        &mut self,
        stream: &str,
        config: DurableConfig,
        reached: Option<u64>,
    ) -> Result<Durable, Error> {
        let stream_id = self.stream_id(stream)?;
        let stream = &mut self.streams[stream_id as usize];
        let named = Durable { stream: Arc::clone(&stream.name), name: config.name.as_str().into() };
        self.open.sync = true;
        if let Some(id) = stream.durables.get(&named.name).copied() {
            let Some(durable) = &mut self.durables[id as usize] else { return Ok(named) };
            check_filters(&durable.config, &config)?;
            durable.config.ack_wait = config.ack_wait;
            durable.config.in_flight_max = config.in_flight_max;
            durable.notify.notify_one();
            self.open.put(Item::put(Space::Records, meta::durable(id), durable.encode_config()));
            return Ok(named);
        }
        let reached = match config.start {
            Start::First => 0,
            Start::End => stream.last,
            Start::Sequence(sequence) => sequence.saturating_sub(1),
            Start::Time(_) => reached.unwrap_or(0),
        };
        // What lies before the first message held will never come.
        let reached = reached.max(stream.first - 1);
        let id = self.durables.len() as u32;
        let durable = durable::Durable::new(id, stream_id, config, reached);
        stream.attach(id, &durable.config.filters);
        stream.durables.insert(Arc::clone(&named.name), id);
        self.open.put(Item::put(Space::Records, meta::durable(id), durable.encode_config()));
        self.durables.push(Some(durable));
        Ok(named)
    }

    pub(super) fn delete_durable(&mut self, durable: &Durable) -> Result<(), Error> {
        let Ok(id) = self.durable_id(durable) else { return Ok(()) };
        let Some(deleted) = self.durables[id as usize].take() else { return Ok(()) };
        let stream = &mut self.streams[deleted.stream as usize];
        stream.durables.remove(&durable.name);
        stream.detach(id);
        self.open.put(Item::remove(Space::Records, meta::durable(id)));
        self.open.put(Item::remove(Space::Records, meta::position(id)));
        deleted.notify.notify_waiters();
        Ok(())
    }
}

fn check_filters(found: &DurableConfig, wanted: &DurableConfig) -> Result<(), Error> {
    let sorted = |config: &DurableConfig| {
        let mut filters = config.filters.clone();
        filters.sort();
        filters.join(" ")
    };
    let (found, sorted_wanted) = (sorted(found), sorted(wanted));
    if found == sorted_wanted {
        return Ok(());
    }
    Err(Error::Mismatch { what: format!("filters of durable {}", wanted.name), found, wanted: sorted_wanted })
}
