//! Reading and removing. Every read is answered by the stream's leader: a replica may be behind, and what is decided on a
//! stale fence record would be wrong.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::Shared;
use super::api::{self, Held};
use super::stream::token;
use crate::flow::message::Stored;
use crate::id::{patterns_overlap, subject_matches};
use crate::ports::bus::Error;
use crate::time::Timestamp;

/// Bytes one read gives at most, about.
const READ_BYTES_MAX: usize = 1024 * 1024;
/// Requests in flight for one read.
const READS_IN_FLIGHT_MAX: usize = 64;

fn held_bytes(stored: &Stored) -> usize {
    stored.subject.len() + stored.headers.as_bytes().len() + stored.payload.len()
}

impl Shared {
    pub(super) async fn get(&self, stream: &str, which: &Value) -> Result<Option<Held>, Error> {
        let link = self.connection.link()?;
        let found = api::get(&link, token(stream)?, which, self.connection.timeout()).await;
        found.map_err(|fail| self.stream_failed(stream, fail))
    }

    pub(super) async fn last_sequence(&self, stream: &str, subject: &str) -> Result<u64, Error> {
        let held = self.get(stream, &json!({ "last_by_subj": subject })).await?;
        Ok(held.map_or(0, |held| held.stored.sequence))
    }

    pub(super) async fn last(&self, stream: &str, subject: &str) -> Result<Option<Stored>, Error> {
        // Stores are worked off in a queue of their own at the server; what was sent before is to be seen.
        self.connection.link()?.stores_are_answered().await;
        Ok(self.get(stream, &json!({ "last_by_subj": subject })).await?.map(|held| held.stored))
    }

    async fn next(&self, stream: &str, from: u64, filter: &str) -> Result<Option<Stored>, Error> {
        let held = self.get(stream, &json!({ "seq": from.max(1), "next_by_subj": filter })).await?;
        Ok(held.map(|held| held.stored))
    }

    pub(super) async fn read(
        &self,
        stream: &str,
        from: u64,
        filters: &[String],
        messages_max: usize,
    ) -> Result<Vec<Stored>, Error> {
        let last = self.stream_info(stream).await?.last;
        if filters.is_empty() {
            self.read_all(stream, from, last, messages_max).await
        } else {
            self.read_filtered(stream, from, filters, messages_max).await
        }
    }

    /// By number, many at once; a gap is jumped over.
    async fn read_all(&self, stream: &str, from: u64, last: u64, messages_max: usize) -> Result<Vec<Stored>, Error> {
        let (mut found, mut bytes, mut at) = (Vec::new(), 0, from.max(1));
        while at <= last && found.len() < messages_max && bytes < READ_BYTES_MAX {
            let count = READS_IN_FLIGHT_MAX.min(messages_max - found.len()) as u64;
            let to = (at + count - 1).min(last);
            let which: Vec<Value> = (at..=to).map(|sequence| json!({ "seq": sequence })).collect();
            let before = found.len();
            for held in join_all(which.iter().map(|which| self.get(stream, which))).await {
                if let Some(Held { stored, .. }) = held? {
                    if bytes >= READ_BYTES_MAX {
                        return Ok(found);
                    }
                    bytes += held_bytes(&stored);
                    found.push(stored);
                }
            }
            at = to + 1;
            if found.len() == before {
                match self.next(stream, at, ">").await? {
                    Some(next) => at = next.sequence,
                    None => break,
                }
            }
        }
        Ok(found)
    }

    /// The next of each filter, lowest first.
    async fn read_filtered(
        &self,
        stream: &str,
        from: u64,
        filters: &[String],
        messages_max: usize,
    ) -> Result<Vec<Stored>, Error> {
        let (mut found, mut bytes) = (Vec::new(), 0);
        let mut nexts = Vec::new();
        for next in join_all(filters.iter().map(|filter| self.next(stream, from, filter))).await {
            nexts.push(next?);
        }
        while found.len() < messages_max && bytes < READ_BYTES_MAX {
            let Some(lowest) = nexts.iter().flatten().map(|next| next.sequence).min() else { break };
            let mut taken = None;
            for (next, filter) in nexts.iter_mut().zip(filters) {
                if next.as_ref().is_some_and(|next| next.sequence == lowest) {
                    taken = next.take();
                    *next = self.next(stream, lowest + 1, filter).await?;
                }
            }
            if let Some(stored) = taken {
                bytes += held_bytes(&stored);
                found.push(stored);
            }
        }
        Ok(found)
    }

    /// Halves the range until it is found: times grow with sequences.
    pub(super) async fn sequence_at(&self, stream: &str, time: Timestamp) -> Result<u64, Error> {
        let info = self.stream_info(stream).await?;
        let (mut low, mut high, mut answer) = (info.first, info.last + 1, info.last + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.next(stream, middle, ">").await? {
                Some(next) if next.time < time => low = next.sequence + 1,
                Some(next) => {
                    answer = next.sequence.min(answer);
                    high = middle;
                }
                None => high = middle,
            }
        }
        Ok(answer)
    }

    pub(super) async fn trim(&self, stream: &str, first: u64, keep_last_of: &[String]) -> Result<u64, Error> {
        let info = self.stream_info(stream).await?;
        let first = first.min(info.last + 1);
        let mut kept: Vec<(String, u64)> = Vec::new();
        for filter in keep_last_of {
            let subjects = self.subjects(stream, filter).await?;
            for chunk in subjects.chunks(READS_IN_FLIGHT_MAX) {
                let lasts = join_all(chunk.iter().map(|subject| self.last_sequence(stream, subject))).await;
                for (subject, last) in chunk.iter().zip(lasts) {
                    kept.push((subject.clone(), last?));
                }
            }
        }
        kept.retain(|(_, last)| *last > 0);
        // Cutting off the front is cheap at the server, removing by subject is not.
        let front = kept.iter().map(|(_, last)| *last).min().unwrap_or(first).min(first);
        let mut removed = 0;
        if front > info.first {
            removed += self.purge(stream, &json!({ "seq": front })).await?;
        }
        if kept.iter().any(|(_, last)| *last < first) {
            removed += self.purge_around(stream, first, keep_last_of, &kept).await?;
        }
        self.stream_info(stream).await?;
        Ok(removed)
    }

    /// Purges below `first`, subject by subject where something has to be kept.
    async fn purge_around(
        &self,
        stream: &str,
        first: u64,
        keep_last_of: &[String],
        kept: &[(String, u64)],
    ) -> Result<u64, Error> {
        let filters = self.known(stream).await?.config.subjects.clone();
        let mut removed = 0;
        for filter in &filters {
            if !keep_last_of.iter().any(|keep| patterns_overlap(keep, filter)) {
                removed += self.purge(stream, &json!({ "filter": filter, "seq": first })).await?;
                continue;
            }
            for subject in self.subjects(stream, filter).await? {
                let last = kept.iter().find(|(kept, _)| *kept == subject).map(|(_, last)| *last);
                let is_kept = keep_last_of.iter().any(|keep| subject_matches(keep, &subject));
                // A subject that appeared after the list was made is left alone.
                let below = match (last, is_kept) {
                    (Some(last), _) => last.min(first),
                    (None, true) => continue,
                    (None, false) => first,
                };
                removed += self.purge(stream, &json!({ "filter": subject, "seq": below })).await?;
            }
        }
        Ok(removed)
    }

    async fn purge(&self, stream: &str, what: &Value) -> Result<u64, Error> {
        let answer = self.connection.ask(&format!("STREAM.PURGE.{stream}"), what).await;
        let answer = answer.map_err(|fail| self.stream_failed(stream, fail))?;
        Ok(answer["purged"].as_u64().unwrap_or(0))
    }

    /// Every subject that holds a message now.
    pub(super) async fn subjects(&self, stream: &str, filter: &str) -> Result<Vec<String>, Error> {
        let mut subjects = Vec::new();
        loop {
            let page = json!({ "subjects_filter": filter, "offset": subjects.len() });
            let answer = self.connection.ask(&format!("STREAM.INFO.{}", token(stream)?), &page).await;
            let answer = answer.map_err(|fail| self.stream_failed(stream, fail))?;
            let Some(found) = answer["state"]["subjects"].as_object().filter(|found| !found.is_empty()) else { break };
            subjects.extend(found.keys().cloned());
            if answer["total"].as_u64().is_none_or(|total| subjects.len() as u64 >= total) {
                break;
            }
        }
        Ok(subjects)
    }

    pub(super) async fn remove(self: &Arc<Self>, stream: &str, sequences: &[u64]) -> Result<u64, Error> {
        let mut removed = 0;
        let call = format!("STREAM.MSG.DELETE.{}", token(stream)?);
        for chunk in sequences.chunks(READS_IN_FLIGHT_MAX) {
            let delete = |sequence: &u64| {
                let (call, body) = (&call, json!({ "seq": sequence, "no_erase": true }));
                async move { self.connection.ask(call, &body).await }
            };
            for answer in join_all(chunk.iter().map(delete)).await {
                match answer {
                    Ok(answer) => removed += u64::from(answer["success"].as_bool().unwrap_or(false)),
                    // Not there.
                    Err(fail) if [api::NO_MESSAGE, DELETE_FAILED, NOT_FOUND].contains(&fail.code()) => {}
                    Err(fail) => return Err(self.stream_failed(stream, fail)),
                }
            }
        }
        Ok(removed)
    }
}

/// How the server calls a message to delete that is not there.
const DELETE_FAILED: u64 = 10057;
const NOT_FOUND: u64 = 10043;
