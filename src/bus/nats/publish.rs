//! Storing messages: each answered by the server, many in flight, in the order of the calls.
//!
//! Several messages that have to be stored together are one atomic batch. A batch in which an id is known already is refused by
//! the server as a whole; without conditions it is then stored message by message, which the ids make safe to repeat.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::{HeaderMap, Message, Subject};

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::oneshot;

use super::Shared;
use super::api::{self, Fail, Refusal};
use super::header;
use super::link::{Lane, Link};
use super::stream::Known;
use crate::flow::message::Outgoing;
use crate::ports::bus::{BATCH_MESSAGES_MAX, Batch, Error, Expected, PubAck};

/// How long a store is tried again that the server had no place for at that moment.
const BUSY_WAITS: [Duration; 7] = [
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
];

/// Nothing happened and the same may succeed in a moment.
pub(super) fn is_busy(fail: &Fail) -> bool {
    [api::BUSY, api::TOO_MANY_REQUESTS, api::TOO_MANY_BATCHES].contains(&fail.code())
}

/// One message on its way.
pub(super) struct Single {
    known: Arc<Known>,
    message: Outgoing,
    expected: Option<Expected>,
    link: Arc<Link>,
    sent: oneshot::Receiver<Message>,
}

/// A batch on its way.
pub(super) struct Atomic {
    known: Arc<Known>,
    batch: Batch,
    link: Arc<Link>,
    /// The server answers the first message too, so that a refusal of it is heard.
    first: oneshot::Receiver<Message>,
    commit: oneshot::Receiver<Message>,
}

pub(super) enum Sent {
    Singles(Vec<Single>),
    Atomic(Box<Atomic>),
}

/// Why nothing was sent.
pub(super) enum NotSent {
    /// The stream was never asked for by this process.
    Stranger,
    /// Only a settlement would be stored now; a look at the server may show otherwise.
    Full(Arc<Known>, usize),
    Refused(Error),
}

impl From<Error> for NotSent {
    fn from(error: Error) -> Self {
        NotSent::Refused(error)
    }
}

impl Shared {
    /// Sends one message that was checked, at the time of the call.
    fn send_checked(
        self: &Arc<Self>,
        link: &Arc<Link>,
        known: &Arc<Known>,
        message: Outgoing,
        expected: Option<Expected>,
        headers: HeaderMap,
        settlement: bool,
    ) -> Result<Single, NotSent> {
        let (link, known) = (Arc::clone(link), Arc::clone(known));
        if !self.admits(&known, message.size_bytes(), settlement) {
            return Err(NotSent::Full(known, message.size_bytes()));
        }
        let sent = self.put_on_wire(&link, &message, headers)?;
        Ok(Single { known, message, expected, link, sent })
    }

    fn put_on_wire(
        &self,
        link: &Link,
        message: &Outgoing,
        headers: HeaderMap,
    ) -> Result<oneshot::Receiver<Message>, Error> {
        let subject = Subject::from(message.subject.as_str());
        let sent =
            link.request(Lane::Ordered, subject, Some(headers), message.payload.clone(), self.connection.timeout());
        sent.map_err(Error::Unavailable)
    }

    /// Waits for the answer. What the server had no place for is sent again for a while.
    pub(super) async fn stored(&self, single: Single) -> Result<PubAck, Error> {
        let Single { known, message, expected, mut link, mut sent } = single;
        let mut waits = BUSY_WAITS.iter();
        loop {
            let answer = match api::answer(&link, sent).await {
                Ok(message) => pub_ack(&message.payload),
                Err(fail) => Err(fail),
            };
            match answer {
                Ok(ack) => return Ok(ack),
                Err(fail) if is_busy(&fail) => {
                    let Some(wait) = waits.next() else { return Err(fail.error(&known.config.name)) };
                    tokio::time::sleep(*wait).await;
                    link = self.connection.link()?;
                    sent = self.put_on_wire(&link, &message, headers(&known, &message, expected.as_ref())?)?;
                }
                Err(fail) => {
                    return Err(self.store_failed(&known, fail, expected.as_slice(), message.size_bytes()).await);
                }
            }
        }
    }

    /// Sends several messages, at the time of the call. Those of a settlement need not be stored together: their inputs are
    /// acknowledged after all of them.
    pub(super) fn send_batch(self: &Arc<Self>, batch: &Batch, settlement: bool) -> Result<Sent, NotSent> {
        if batch.messages.is_empty() {
            return Ok(Sent::Singles(Vec::new()));
        }
        let one = batch.messages.len() == 1 && batch.expected.len() <= 1;
        if one || (settlement && batch.expected.is_empty()) {
            return self.send_singles(batch, settlement);
        }
        let link = self.connection.link()?;
        let known = self.streams.find(&batch.stream).ok_or(NotSent::Stranger)?;
        let ids: Vec<&String> = batch.messages.iter().filter_map(|message| message.transport_id.as_ref()).collect();
        let repeated = ids.iter().collect::<HashSet<_>>().len() < ids.len();
        if !ids.is_empty() && !batch.expected.is_empty() {
            return Err(unfit_batch("transport ids and conditions", "one of the two").into());
        }
        if repeated {
            return self.send_singles(batch, settlement);
        }
        if batch.messages.len() > BATCH_MESSAGES_MAX {
            let found = format!("{} messages", batch.messages.len());
            return Err(unfit_batch(&found, &format!("at most {BATCH_MESSAGES_MAX}")).into());
        }
        let placed = place_conditions(batch)?;
        for (message, expected) in batch.messages.iter().zip(&placed) {
            check(&link, &known, message, *expected)?;
        }
        let bytes = batch.messages.iter().map(Outgoing::size_bytes).sum();
        if !self.admits(&known, bytes, settlement) {
            return Err(NotSent::Full(known, bytes));
        }
        let (first, commit) = self.send_atomic(&link, &known, batch, &placed)?;
        Ok(Sent::Atomic(Box::new(Atomic { known, batch: batch.clone(), link, first, commit })))
    }

    fn send_singles(self: &Arc<Self>, batch: &Batch, settlement: bool) -> Result<Sent, NotSent> {
        // All are judged before the first is sent.
        let link = self.connection.link()?;
        let known = self.streams.find(&batch.stream).ok_or(NotSent::Stranger)?;
        let checked = batch.messages.iter().map(|message| check(&link, &known, message, batch.expected.first()));
        let checked = checked.collect::<Result<Vec<HeaderMap>, _>>()?;
        let send = |(message, headers): (&Outgoing, HeaderMap)| {
            let expected = batch.expected.first().cloned();
            self.send_checked(&link, &known, message.clone(), expected, headers, settlement)
        };
        batch.messages.iter().zip(checked).map(send).collect::<Result<_, _>>().map(Sent::Singles)
    }

    fn send_atomic(
        &self,
        link: &Link,
        known: &Known,
        batch: &Batch,
        placed: &[Option<&Expected>],
    ) -> Result<(oneshot::Receiver<Message>, oneshot::Receiver<Message>), Error> {
        let number = self.batches.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:x}-{number:x}", self.connection.options.seed);
        let (count, timeout) = (batch.messages.len(), self.connection.timeout());
        let mut encoded = Vec::with_capacity(count);
        for (at, (message, expected)) in batch.messages.iter().zip(placed).enumerate() {
            let mut headers = headers(known, message, *expected)?;
            headers.insert(header::BATCH_ID, id.as_str());
            headers.insert(header::BATCH_SEQUENCE, (at + 1).to_string());
            if at + 1 == count {
                headers.insert(header::BATCH_COMMIT, "1");
            }
            encoded.push(headers);
        }
        let mut asked = Vec::with_capacity(2);
        for (at, (message, headers)) in batch.messages.iter().zip(encoded).enumerate() {
            let (subject, payload) = (Subject::from(message.subject.as_str()), message.payload.clone());
            if at == 0 || at + 1 == count {
                let sent = link.request(Lane::Ordered, subject, Some(headers), payload, timeout);
                asked.push(sent.map_err(Error::Unavailable)?);
            } else {
                link.tell(Lane::Ordered, subject, Some(headers), payload);
            }
        }
        match (asked.pop(), asked.pop()) {
            (Some(commit), Some(first)) => Ok((first, commit)),
            _ => Err(unfit_batch("one message", "at least two")),
        }
    }

    pub(super) async fn all_stored(self: &Arc<Self>, sent: Sent) -> Result<Vec<PubAck>, Error> {
        let atomic = match sent {
            Sent::Singles(singles) => {
                let mut acks = Vec::with_capacity(singles.len());
                for single in singles {
                    acks.push(self.stored(single).await?);
                }
                return Ok(acks);
            }
            Sent::Atomic(atomic) => atomic,
        };
        let Atomic { known, batch, mut link, mut first, mut commit } = *atomic;
        let mut waits = BUSY_WAITS.iter();
        loop {
            let fail = match commit_answer(&link, &mut first, commit).await {
                Ok(ack) => return Ok(batch_acks(&ack, batch.messages.len())),
                Err(fail) => fail,
            };
            if fail.code() == api::KNOWN_ID_IN_BATCH {
                let sent = match self.send_singles(&batch, true) {
                    Ok(sent) => sent,
                    Err(not_sent) => return Err(self.not_sent(not_sent, &batch.stream)),
                };
                return Box::pin(self.all_stored(sent)).await;
            }
            let Some(wait) = waits.next().filter(|_| is_busy(&fail)) else {
                let bytes = batch.messages.iter().map(Outgoing::size_bytes).sum();
                return Err(self.store_failed(&known, fail, &batch.expected, bytes).await);
            };
            tokio::time::sleep(*wait).await;
            link = self.connection.link()?;
            (first, commit) = self.send_atomic(&link, &known, &batch, &place_conditions(&batch)?)?;
        }
    }

    pub(super) fn not_sent(&self, not_sent: NotSent, stream: &str) -> Error {
        match not_sent {
            NotSent::Refused(error) => error,
            NotSent::Stranger => Error::NoStream(stream.to_owned()),
            NotSent::Full(known, _) => {
                Error::Full { stream: known.config.name.clone(), bytes_max: known.config.bytes_max }
            }
        }
    }

    /// What a failed store means. Asks the server where its refusal does not say enough.
    async fn store_failed(&self, known: &Known, fail: Fail, expected: &[Expected], bytes: usize) -> Error {
        let stream = &known.config.name;
        match fail {
            // The stream is gone, or has no leader now: only the server can tell.
            Fail::NoResponders => match self.stream_info(stream).await {
                Err(error) => error,
                Ok(_) => Error::Unavailable(format!("nobody answers for stream {stream}")),
            },
            Fail::Refused(refusal) if refusal.err_code == api::WRONG_LAST => {
                self.wrong_last(stream, expected, &refusal.description).await
            }
            fail => match fail.error(stream) {
                Error::Full { .. } => Error::Full { stream: stream.clone(), bytes_max: known.config.bytes_max },
                Error::TooLarge { .. } => Error::TooLarge { bytes, bytes_max: known.config.message_bytes_max },
                other => other,
            },
        }
    }

    /// Which of the conditions failed; the server names only a number.
    async fn wrong_last(&self, stream: &str, expected: &[Expected], description: &str) -> Error {
        let told = description.rsplit(' ').next().and_then(|number| number.parse().ok());
        if let ([one], Some(actual)) = (expected, told) {
            return Error::WrongLast { subject: one.subject.clone(), expected: one.last, actual };
        }
        for one in expected {
            let actual = match self.last_sequence(stream, &one.subject).await {
                Ok(actual) => actual,
                Err(error) => return error,
            };
            if actual != one.last {
                return Error::WrongLast { subject: one.subject.clone(), expected: one.last, actual };
            }
        }
        Error::Unavailable(format!("a condition failed that holds now: {description}"))
    }
}

/// The answer to the commit; or the refusal of the first message, which says more than "incomplete".
async fn commit_answer(
    link: &Link,
    first: &mut oneshot::Receiver<Message>,
    commit: oneshot::Receiver<Message>,
) -> Result<Value, Fail> {
    let answer = api::answer(link, commit).await?;
    match api::parse(&answer) {
        Err(Fail::Refused(refusal)) => match first.try_recv() {
            Ok(message) if !message.payload.is_empty() => match api::parse(&message) {
                Err(Fail::Refused(earlier)) => Err(Fail::Refused(earlier)),
                _ => Err(Fail::Refused(refusal)),
            },
            _ => Err(Fail::Refused(refusal)),
        },
        other => other,
    }
}

/// One for every message stored: read without a tree of values.
fn pub_ack(answer: &[u8]) -> Result<PubAck, Fail> {
    #[derive(Deserialize)]
    struct Ack {
        #[serde(default)]
        seq: u64,
        #[serde(default)]
        duplicate: bool,
        error: Option<Refusal>,
    }
    let ack: Ack = serde_json::from_slice(answer)
        .map_err(|error| Fail::Unknown(format!("an answer that cannot be read: {error}")))?;
    match ack.error {
        None => Ok(PubAck { sequence: ack.seq, duplicate: ack.duplicate }),
        Some(refusal) => Err(Fail::Refused(refusal)),
    }
}

/// The server names the last sequence; a batch is stored without gaps.
fn batch_acks(ack: &Value, count: usize) -> Vec<PubAck> {
    let last = ack["seq"].as_u64().unwrap_or(0);
    let first = (last + 1).saturating_sub(count as u64);
    (first..=last).map(|sequence| PubAck { sequence, duplicate: false }).collect()
}

fn unfit_batch(found: &str, wanted: &str) -> Error {
    Error::Mismatch { what: "a batch".to_owned(), found: found.to_owned(), wanted: wanted.to_owned() }
}

/// What can be judged without asking. Answers the headers as they are sent.
fn check(link: &Link, known: &Known, message: &Outgoing, expected: Option<&Expected>) -> Result<HeaderMap, Error> {
    for subject in [Some(&message.subject), expected.map(|expected| &expected.subject)].into_iter().flatten() {
        // The server takes a condition on a subject of another stream, and it always holds for sequence 0.
        if !known.stores(subject) {
            return Err(Error::ForeignSubject { stream: known.config.name.clone(), subject: subject.clone() });
        }
    }
    let bytes = message.size_bytes();
    let headers = headers(known, message, expected)?;
    let on_wire = header::size_bytes(&headers) + message.payload.len() + BATCH_HEADERS_BYTES;
    let payload_max = link.server.payload_bytes_max;
    if bytes > known.config.message_bytes_max || on_wire > payload_max {
        return Err(Error::TooLarge { bytes, bytes_max: known.config.message_bytes_max.min(payload_max) });
    }
    Ok(headers)
}

/// Room for the headers that make a message part of a batch.
const BATCH_HEADERS_BYTES: usize = 160;

fn headers(known: &Known, message: &Outgoing, expected: Option<&Expected>) -> Result<HeaderMap, Error> {
    let mut headers = header::encode(&message.headers)?;
    headers.insert(header::EXPECTED_STREAM, known.config.name.as_str());
    if let Some(id) = &message.transport_id {
        headers.insert(header::MESSAGE_ID, id.as_str());
    }
    if let Some(expected) = expected {
        headers.insert(header::EXPECTED_LAST, expected.last.to_string());
        if expected.subject != message.subject {
            headers.insert(header::EXPECTED_LAST_OF, expected.subject.as_str());
        }
    }
    Ok(headers)
}

/// A message carries one condition, and it must stand before the first message to its subject: the server checks it against
/// what the batch has done so far.
fn place_conditions(batch: &Batch) -> Result<Vec<Option<&Expected>>, Error> {
    let first_to = |subject: &str| batch.messages.iter().position(|message| message.subject == subject);
    let mut ordered: Vec<(usize, &Expected)> =
        batch.expected.iter().map(|one| (first_to(&one.subject).unwrap_or(usize::MAX), one)).collect();
    ordered.sort_by_key(|(by, _)| *by);
    let mut placed = vec![None; batch.messages.len()];
    for (at, (by, one)) in ordered.into_iter().enumerate() {
        match placed.get_mut(at) {
            Some(place) if at <= by => *place = Some(one),
            _ => return Err(unfit_batch("more conditions than messages before them", "one condition a message")),
        }
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    use crate::flow::message::Headers;

    fn batch(subjects: &[&str], expected: &[&str]) -> Batch {
        let message = |subject: &&str| Outgoing {
            subject: (*subject).to_owned(),
            headers: Headers::default(),
            payload: Bytes::new(),
            transport_id: None,
        };
        let condition = |subject: &&str| Expected { subject: (*subject).to_owned(), last: 1 };
        Batch {
            stream: "S".into(),
            messages: subjects.iter().map(message).collect(),
            expected: expected.iter().map(condition).collect(),
        }
    }

    #[test]
    fn each_condition_stands_before_the_first_message_to_its_subject() {
        let batch = batch(&["x", "a", "b"], &["b", "a", "x"]);
        let placed = place_conditions(&batch).unwrap();
        let subjects: Vec<&str> = placed.iter().map(|one| one.unwrap().subject.as_str()).collect();
        assert_eq!(subjects, ["x", "a", "b"]);
    }

    #[test]
    fn conditions_that_cannot_all_be_placed_are_refused() {
        assert!(place_conditions(&batch(&["a", "a"], &["a", "a", "b"])).is_err());
        assert!(place_conditions(&batch(&["a", "b"], &["a", "a"])).is_err());
        assert!(place_conditions(&batch(&["x", "fence"], &["fence"])).unwrap()[0].is_some());
    }
}
