//! What is known in memory about a stream: its counters and its subjects.
//!
//! Two ends are told apart. `last` is what has been accepted, which is what conditions are checked against;
//! `visible` is what is durable, which is all that readers ever see.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::chunk::Builder;
use super::codec::{Damaged, Decoder, Encoder};
use crate::id::{patterns_overlap, subject_matches};
use crate::ports::bus::{Error, SETTLEMENT_RESERVE_PERCENT, StreamConfig, StreamInfo};
use crate::time::Timestamp;

/// Distinct subjects one stream may have held. Each costs about 200 bytes of memory.
pub(super) const SUBJECTS_MAX: usize = 65_536;
/// Longest subject in bytes; its length is stored in 16 bits and its name in a record of its own.
pub(super) const SUBJECT_STORED_BYTES_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Subject {
    pub name: Arc<str>,
    /// Newest accepted sequence that is still held; 0 for none.
    pub last: u64,
    /// Durables with a filter that matches.
    pub durables: Vec<u32>,
    pub dirty: bool,
}

/// What is taken for the size of a message when a stream is asked whether it is full.
const ORDINARY_MESSAGE_BYTES: u64 = 1024;

#[derive(Debug)]
pub(super) struct Stream {
    pub id: u32,
    pub name: Arc<str>,
    pub config: StreamConfig,
    pub created: Timestamp,
    pub first: u64,
    pub last: u64,
    pub visible: u64,
    pub messages: u64,
    pub bytes: u64,
    /// Of the newest chunk. Never goes back, so that times can be searched even when the clock was set back.
    pub time: Timestamp,
    pub subjects: Vec<Subject>,
    by_name: HashMap<Arc<str>, u32>,
    pub durables: BTreeMap<Arc<str>, u32>,
    /// The chunk that the open batch fills.
    pub building: Option<Builder>,
    pub dirty: bool,
}

impl Stream {
    pub fn new(id: u32, config: StreamConfig, created: Timestamp) -> Self {
        Stream {
            id,
            name: config.name.as_str().into(),
            config,
            created,
            first: 1,
            last: 0,
            visible: 0,
            messages: 0,
            bytes: 0,
            time: created,
            subjects: Vec::new(),
            by_name: HashMap::new(),
            durables: BTreeMap::new(),
            building: None,
            dirty: false,
        }
    }

    pub fn info(&self) -> StreamInfo {
        StreamInfo {
            config: self.config.clone(),
            created: self.created,
            first: self.first,
            last: self.last,
            messages: self.messages,
            bytes: self.bytes,
            refuses: self.is_full().then(|| format!("stream {} is full", self.config.name)),
        }
    }

    /// Whether a message of ordinary size would be refused, were it not part of a settlement.
    fn is_full(&self) -> bool {
        let room = self.config.bytes_max / 100 * (100 - SETTLEMENT_RESERVE_PERCENT);
        self.bytes.saturating_add(ORDINARY_MESSAGE_BYTES) > room
    }

    pub fn subject(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// The newest accepted sequence of a subject; 0 for none.
    pub fn subject_last(&self, name: &str) -> u64 {
        self.subject(name).map_or(0, |id| self.subjects[id as usize].last)
    }

    /// The number of a subject, a new one if it is stored here. `matching` tells which durables want it.
    pub fn subject_or_new(&mut self, name: &str, matching: impl FnOnce(&Stream) -> Vec<u32>) -> Result<u32, Error> {
        if let Some(id) = self.subject(name) {
            return Ok(id);
        }
        let plain = name.len() <= SUBJECT_STORED_BYTES_MAX && !name.split('.').any(|t| matches!(t, "" | "*" | ">"));
        if !plain || !self.config.subjects.iter().any(|filter| subject_matches(filter, name)) {
            return Err(Error::ForeignSubject { stream: self.config.name.clone(), subject: name.to_owned() });
        }
        if self.subjects.len() >= SUBJECTS_MAX {
            return Err(Error::Mismatch {
                what: format!("number of subjects in stream {}", self.name),
                found: (SUBJECTS_MAX + 1).to_string(),
                wanted: format!("at most {SUBJECTS_MAX}"),
            });
        }
        let durables = matching(self);
        Ok(self.add_subject(name.into(), 0, durables))
    }

    fn add_subject(&mut self, name: Arc<str>, last: u64, durables: Vec<u32>) -> u32 {
        let id = self.subjects.len() as u32;
        self.by_name.insert(Arc::clone(&name), id);
        self.subjects.push(Subject { name, last, durables, dirty: false });
        id
    }

    /// Puts back a subject read from disk. Numbers that were never stored stay as unnamed places.
    pub fn restore_subject(&mut self, id: u32, value: &[u8]) -> Result<(), Damaged> {
        let mut decoder = Decoder(value);
        let (last, name) = (decoder.u64()?, decoder.text()?);
        while self.subjects.len() < id as usize {
            self.subjects.push(Subject { name: "".into(), last: 0, durables: Vec::new(), dirty: false });
        }
        self.add_subject(name.into(), last, Vec::new());
        Ok(())
    }

    pub fn encode_subject(&self, id: u32) -> Vec<u8> {
        let subject = &self.subjects[id as usize];
        let mut encoder = Encoder::default();
        encoder.u64(subject.last).text(&subject.name);
        encoder.0
    }

    /// The numbers of the subjects that any of these filters matches; `None` when that is all of them.
    pub fn matching(&self, filters: &[String]) -> Option<Vec<u32>> {
        let wanted = |subject: &Subject| filters.iter().any(|filter| subject_matches(filter, &subject.name));
        let ids: Vec<u32> = (0_u32..).zip(&self.subjects).filter(|(_, s)| wanted(s)).map(|(id, _)| id).collect();
        (ids.len() < self.subjects.iter().filter(|s| !s.name.is_empty()).count()).then_some(ids)
    }

    /// Adds a durable to the subjects it wants.
    pub fn attach(&mut self, durable: u32, filters: &[String]) {
        for subject in &mut self.subjects {
            if filters.iter().any(|filter| subject_matches(filter, &subject.name)) {
                subject.durables.push(durable);
            }
        }
    }

    pub fn detach(&mut self, durable: u32) {
        for subject in &mut self.subjects {
            subject.durables.retain(|id| *id != durable);
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let config = &self.config;
        let mut encoder = Encoder::default();
        encoder
            .text(&config.name)
            .texts(&config.subjects)
            .varint(config.bytes_max)
            .varint(config.message_bytes_max as u64)
            .varint(nanos(config.duplicate_window))
            .time(self.created)
            .varint(self.first)
            .varint(self.last)
            .varint(self.messages)
            .varint(self.bytes)
            .time(self.time);
        encoder.0
    }

    pub fn decode(id: u32, value: &[u8]) -> Result<Self, Damaged> {
        let mut decoder = Decoder(value);
        let config = StreamConfig {
            name: decoder.text()?.to_owned(),
            subjects: decoder.texts()?,
            bytes_max: decoder.varint()?,
            message_bytes_max: usize::try_from(decoder.varint()?).unwrap_or(usize::MAX),
            duplicate_window: Duration::from_nanos(decoder.varint()?),
        };
        let mut stream = Stream::new(id, config, decoder.time()?);
        stream.first = decoder.varint()?;
        stream.last = decoder.varint()?;
        stream.visible = stream.last;
        stream.messages = decoder.varint()?;
        stream.bytes = decoder.varint()?;
        stream.time = decoder.time()?;
        Ok(stream)
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether a stream that is there can serve as the one wanted: only its limits may differ.
pub(super) fn check_subjects(found: &StreamConfig, wanted: &StreamConfig) -> Result<(), Error> {
    let sorted = |config: &StreamConfig| {
        let mut subjects = config.subjects.clone();
        subjects.sort();
        subjects
    };
    let (found, sorted_wanted) = (sorted(found), sorted(wanted));
    if found == sorted_wanted {
        return Ok(());
    }
    Err(Error::Mismatch {
        what: format!("subjects of stream {}", wanted.name),
        found: found.join(" "),
        wanted: sorted_wanted.join(" "),
    })
}

/// No two streams share a subject.
pub(super) fn check_overlap(other: &StreamConfig, wanted: &StreamConfig) -> Result<(), Error> {
    for left in &other.subjects {
        for right in &wanted.subjects {
            if patterns_overlap(left, right) {
                return Err(Error::Mismatch {
                    what: format!("subject {right} of stream {}", wanted.name),
                    found: format!("stored by stream {}", other.name),
                    wanted: "stored by no other stream".to_owned(),
                });
            }
        }
    }
    Ok(())
}
