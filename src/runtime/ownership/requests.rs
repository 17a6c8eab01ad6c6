//! Puts the node's questions to the stores and tells the outcomes apart.
//!
//! A call takes effect when it is made, so requests leave in the order of the effects. What had no answer in time, or met a bus that
//! was away, is Unknown; what the bus refused for another reason than its condition was not applied (Busy), and the reason is kept for
//! whoever wrote.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::records;
use crate::flow::message::{HeadersBuilder, Outgoing};
use crate::ports::bus::{self, Batch, Expected};
use crate::ports::store::{Condition, Outcome as Stored, Write};
use crate::protocol::record::{Generation, KvRevision, Sequence};
use crate::protocol::{Action, Outcome, Request, Ticket};
use crate::unit::context::Context;

/// An answer, and why the bus refused if it did.
pub(super) struct Answered {
    pub ticket: Ticket,
    pub outcome: Outcome,
    pub refused: Option<bus::Error>,
}

pub(super) struct Requests {
    pub context: Context,
    pub bucket: String,
    pub stream: Arc<str>,
    pub timeout: Duration,
}

type Found<T> = Result<T, bus::Error>;

impl Requests {
    /// Makes the request. `fence_subject` and `messages` belong to requests about a fence.
    pub fn perform(
        &self,
        request: Request,
        fence_subject: Option<&str>,
        messages: Vec<Outgoing>,
    ) -> BoxFuture<'static, Answered> {
        let Request { ticket, generation, action } = request;
        let answer = self.call(generation, action, fence_subject, messages);
        let timeout = self.timeout;
        Box::pin(async move {
            let (outcome, refused) = match tokio::time::timeout(timeout, answer).await {
                Ok(Ok(outcome)) => (outcome, None),
                Ok(Err(error @ (bus::Error::Unavailable(_) | bus::Error::Stopped(_)))) => {
                    (Outcome::Unknown, Some(error))
                }
                Ok(Err(bus::Error::WrongLast { .. })) => (Outcome::Lost, None),
                Ok(Err(error)) => (Outcome::Busy, Some(error)),
                Err(_) => (Outcome::Unknown, Some(bus::Error::Unavailable("no answer in time".to_owned()))),
            };
            Answered { ticket, outcome, refused }
        })
    }

    fn call(
        &self,
        generation: Generation,
        action: Action,
        fence_subject: Option<&str>,
        messages: Vec<Outgoing>,
    ) -> BoxFuture<'static, Found<Outcome>> {
        match action {
            Action::ReadSession(inc) => {
                let entry = self.context.store.get(&self.bucket, &records::session_key(generation, inc));
                Box::pin(async move {
                    let Some(entry) = entry.await? else { return Ok(Outcome::Session(None)) };
                    let session = records::decode_session(&entry.value).map_err(unreadable)?;
                    Ok(Outcome::Session(Some((KvRevision(entry.revision), session))))
                })
            }
            Action::PutSession { expected, session } => {
                let key = records::session_key(generation, session.inc);
                self.put(key, records::encode_session(&session), expected)
            }
            Action::ReadLease(unit) => {
                let entry = self.context.store.get(&self.bucket, &records::lease_key(generation, &unit));
                Box::pin(async move {
                    let Some(entry) = entry.await? else { return Ok(Outcome::Lease(None)) };
                    let lease = records::decode_lease(&entry.value).map_err(unreadable)?;
                    Ok(Outcome::Lease(Some((KvRevision(entry.revision), lease))))
                })
            }
            Action::PutLease { expected, lease } => {
                let key = records::lease_key(generation, &lease.unit);
                self.put(key, records::encode_lease(&lease), expected)
            }
            Action::ReadBucket => {
                let info = self.context.store.bucket(&self.bucket);
                Box::pin(async move { Ok(Outcome::Bucket(Generation(info.await?.identity))) })
            }
            Action::ReadFence(_) => {
                let Some(subject) = fence_subject else { return Box::pin(async { Ok(Outcome::Fence(None)) }) };
                let last = self.context.bus.last(&self.stream, subject);
                Box::pin(async move {
                    let Some(stored) = last.await? else { return Ok(Outcome::Fence(None)) };
                    let sequence = Sequence(stored.sequence);
                    let fence = records::decode_fence(&stored.payload, sequence).map_err(unreadable)?;
                    Ok(Outcome::Fence(Some((sequence, fence))))
                })
            }
            Action::AppendFence { expected, fence, batch: _ } => {
                let subject = fence_subject.unwrap_or_default().to_owned();
                let mut messages = messages;
                messages.push(Outgoing {
                    subject: subject.clone(),
                    headers: HeadersBuilder::default().build(),
                    payload: Bytes::from(records::encode_fence(&fence)),
                    // The condition keeps it from being stored twice; a window would only forget.
                    transport_id: None,
                });
                let expected = vec![Expected { subject, last: expected.0 }];
                let stored =
                    self.context.bus.publish_batch(Batch { stream: Arc::clone(&self.stream), messages, expected });
                Box::pin(async move {
                    let acks = stored.await?;
                    Ok(acks.last().map_or(Outcome::Unknown, |ack| Outcome::Won(ack.sequence)))
                })
            }
        }
    }

    fn put(&self, key: String, value: Vec<u8>, expected: Option<KvRevision>) -> BoxFuture<'static, Found<Outcome>> {
        let condition = expected.map_or(Condition::Absent, |revision| Condition::Revision(revision.0));
        let write = Write { bucket: self.bucket.clone(), key, value: Some(Bytes::from(value)), condition, ttl: None };
        let written = self.context.store.write(vec![write]);
        Box::pin(async move {
            Ok(match written.await?.into_iter().next() {
                Some(Stored::Won(revision)) => Outcome::Won(revision),
                Some(Stored::Lost(_)) => Outcome::Lost,
                None => Outcome::Unknown,
            })
        })
    }
}

fn unreadable(error: records::Unreadable) -> bus::Error {
    bus::Error::Mismatch {
        what: error.what,
        found: error.reason,
        wanted: "what this or an earlier version writes".to_owned(),
    }
}
