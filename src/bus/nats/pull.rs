//! Handing out, and the answers to it.
//!
//! A pull asks for what is there, or else for the first message that comes. The server may go on filling a request after we
//! have handed out its first messages, when its in-flight limit made it stop; such a request is kept and asked first by the
//! next pull, so that no delivery is dropped. A request that was filled is followed at once by the next, in the same
//! conversation, so that a backlog comes without a pause. What comes for a pull that was given up is handed back at once.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_nats::{Message, Subject};
use bytes::Bytes;
use serde_json::json;
use tokio::sync::oneshot;

use super::Shared;
use super::api::{self, Fail};
use super::durable::{Local, Out};
use super::header;
use super::link::{Conversation, Lane, Link};
use super::stream::token;
use crate::flow::message::Stored;
use crate::ports::bus::{Confirm, Delivery, Durable, Error, PULL_MESSAGES_MAX};
use crate::time::Timestamp;

/// Between two requests when the first was refused for a passing reason.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// How long after the first message the rest of a request may take before what is there is handed out.
const REST_WAIT: Duration = Duration::from_millis(10);
/// The server says that it still knows of a request this often; without two of them it is made anew.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Answers to deliveries in flight for one call.
const ANSWERS_IN_FLIGHT_MAX: usize = 4096;
/// The wait for the server's word on a delivery that came over a connection which is lost since. A server that was killed may have
/// forgotten that it handed the message out; then it says nothing, and hands it out again.
const FORMER_WAIT: Duration = Duration::from_secs(1);
/// A pull that brought so many was one of a backlog: the next request goes out at once.
const READ_AHEAD_MIN: usize = 64;
/// Requests that stay open for one durable.
const OPEN_MAX: usize = 16;

/// What the server said instead of a message.
enum Said {
    Message(Box<Message>),
    /// The request is over.
    Done,
    /// It still knows of the request.
    Alive,
    /// The first message is larger than the bytes asked for.
    TooLarge,
    Gone,
    /// As many as were asked for are there.
    Enough,
    /// No news for too long, or the connection is lost.
    Silent,
}

impl Shared {
    pub(super) async fn pull(
        self: Arc<Self>,
        durable: Durable,
        messages_max: usize,
        bytes_max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, Error> {
        let local = self.local(&durable).await?;
        let given_up = GivenUp(Some(&local));
        let pulled = self.pull_from(&local, messages_max, bytes_max, wait).await;
        given_up.was_not();
        pulled
    }

    async fn pull_from(
        &self,
        local: &Arc<Local>,
        messages_max: usize,
        bytes_max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, Error> {
        let messages_max = messages_max.clamp(1, PULL_MESSAGES_MAX);
        let until = self.now() + wait;
        let mut request = Request { max: messages_max, bytes_max: Some(bytes_max) };
        loop {
            let kept = self.kept(local);
            let adopted = kept.is_some();
            let mut open = match kept {
                Some(open) => open,
                None => self.request(local, &request, until.saturating_sub(self.now())).await?,
            };
            let mut taken = Taken { local, deliveries: Vec::new() };
            let said = self.collect(&mut open, &mut taken, messages_max, until).await;
            if !taken.deliveries.is_empty() {
                let filled = matches!(said, Said::Done) && open.left == 0;
                if matches!(said, Said::Enough | Said::Silent) {
                    self.keep(local, open);
                } else if filled && taken.deliveries.len() >= READ_AHEAD_MIN {
                    // There is more, and it can come while these are worked on.
                    self.ask_again(local, &mut open, &request, wait)?;
                    self.keep(local, open);
                    self.clear_later(local);
                }
                return Ok(taken.deliveries);
            }
            if matches!(said, Said::Silent) {
                self.keep(local, open);
            }
            match said {
                Said::Gone => return Err(self.gone(&local.name).await),
                Said::TooLarge => request = Request { max: 1, bytes_max: None },
                _ => {}
            }
            let left = until.saturating_sub(self.now());
            if left.is_zero() {
                return Ok(Vec::new());
            }
            self.connection.link()?;
            if !adopted {
                tokio::time::sleep(AGAIN_AFTER.min(left)).await;
            }
        }
    }

    /// A request of an earlier pull that may still be filled.
    fn kept(&self, local: &Local) -> Option<Open> {
        local.clear(self.now());
        local.open.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Nobody may pull any more: what came for a read-ahead must not lie here until its ack wait is over.
    fn clear_later(&self, local: &Arc<Local>) {
        let (local, clock) = (Arc::downgrade(local), Arc::clone(&self.connection.options.clock));
        tokio::spawn(async move {
            let Some(wait) = local.upgrade().map(|local| local.ack_wait / 2) else { return };
            tokio::time::sleep(wait).await;
            if let Some(local) = local.upgrade() {
                local.clear(clock.monotonic());
            }
        });
    }

    fn keep(&self, local: &Local, open: Open) {
        let now = self.now();
        let may_be_filled = open.left > 0 && now < open.until;
        let mut all = local.open.lock().unwrap_or_else(PoisonError::into_inner);
        if may_be_filled && all.len() < OPEN_MAX {
            all.push(Open { kept_at: now, ..open });
        }
    }

    async fn request(&self, local: &Local, request: &Request, wait: Duration) -> Result<Open, Error> {
        let link = self.connection.link()?;
        let conversation = link.converse().await.map_err(Error::Unavailable)?;
        let now = self.now();
        let mut open = Open { conversation, left: 0, until: now, kept_at: now };
        self.ask_again(local, &mut open, request, wait)?;
        Ok(open)
    }

    /// Sends another request in the conversation of one that is filled.
    fn ask_again(&self, local: &Local, open: &mut Open, request: &Request, wait: Duration) -> Result<(), Error> {
        let wait = wait.max(Duration::from_millis(1));
        let mut body = json!({ "batch": request.max, "no_wait": true, "expires": nanos(wait) });
        if let Some(bytes) = request.bytes_max.filter(|bytes| *bytes < i32::MAX as usize) {
            body["max_bytes"] = json!(bytes);
        }
        if wait > HEARTBEAT * 2 {
            body["idle_heartbeat"] = json!(nanos(HEARTBEAT));
        }
        let call = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", token(&local.name.stream)?, token(&local.name.name)?);
        let link = Arc::clone(open.conversation.link());
        link.ask(&open.conversation, Subject::from(call), Bytes::from(body.to_string()));
        (open.left, open.until) = (request.max, self.now() + wait);
        Ok(())
    }

    /// Takes what comes until the request is over, enough is there, or time is up.
    async fn collect(&self, open: &mut Open, taken: &mut Taken<'_>, messages_max: usize, until: Duration) -> Said {
        while open.left > 0 {
            if taken.deliveries.len() >= messages_max {
                return Said::Enough;
            }
            let said = match open.conversation.ready() {
                Some(message) => said(message),
                None => self.next_said(open, !taken.deliveries.is_empty(), until).await,
            };
            match said {
                Said::Alive => {}
                Said::Message(message) => {
                    open.left -= 1;
                    taken.take(*message, open.conversation.link().number, self.now());
                }
                other => return other,
            }
        }
        // The server says nothing more about a request that it filled.
        Said::Done
    }

    /// Waits for what the server says next.
    async fn next_said(&self, open: &mut Open, begun: bool, until: Duration) -> Said {
        let patience = if begun {
            REST_WAIT
        } else {
            // A little longer than the request lives, to hear its end.
            (until.saturating_sub(self.now()) + REST_WAIT).min(HEARTBEAT * 2 + HEARTBEAT / 2)
        };
        match tokio::time::timeout(patience, open.conversation.next()).await {
            Ok(Some(message)) => said(message),
            Ok(None) | Err(_) => Said::Silent,
        }
    }

    async fn gone(&self, durable: &Durable) -> Error {
        self.durables.forget(durable);
        match self.local(durable).await {
            Err(error) => error,
            // It is there, so it was without a leader.
            Ok(_) => Error::Unavailable(format!("nobody answers for durable {}", durable.name)),
        }
    }

    /// Acknowledges, and waits until the server has confirmed what is to be confirmed. A sequence we hold no delivery of changes
    /// nothing.
    pub(super) async fn acknowledge(
        &self,
        durable: &Durable,
        sequences: &[u64],
        confirm: Confirm,
    ) -> Result<(), Error> {
        let local = self.local(durable).await?;
        for chunk in sequences.chunks(ANSWERS_IN_FLIGHT_MAX) {
            let link = self.connection.link()?;
            let held: Vec<(u64, Out)> = {
                let out = local.out();
                chunk.iter().filter_map(|one| out.get(one).map(|out| (*one, out.clone()))).collect()
            };
            let confirmed_from = if confirm == Confirm::Each { 0 } else { held.len().saturating_sub(1) };
            let mut sent = Vec::with_capacity(held.len() - confirmed_from);
            for (at, (_, out)) in held.iter().enumerate() {
                let payload = Bytes::from_static(b"+ACK");
                if at < confirmed_from {
                    link.tell(Lane::Direct, out.reply.clone(), None, payload);
                } else {
                    sent.push(self.answer_delivery(&link, out, payload)?);
                }
            }
            for (at, answer) in sent.into_iter().enumerate() {
                let (sequence, out) = &held[confirmed_from + at];
                self.heard(&local, &link, out, answer).await?;
                local.out().remove(sequence);
            }
            let mut out = local.out();
            held[..confirmed_from].iter().for_each(|(sequence, _)| drop(out.remove(sequence)));
        }
        Ok(())
    }

    pub(super) async fn put_off(&self, durable: &Durable, sequence: u64, delay: Duration) -> Result<(), Error> {
        let local = self.local(durable).await?;
        let link = self.connection.link()?;
        let Some(out) = local.out().get(&sequence).cloned() else { return Ok(()) };
        let body = if delay.is_zero() { "-NAK".to_owned() } else { format!("-NAK {{\"delay\": {}}}", nanos(delay)) };
        let answer = self.answer_delivery(&link, &out, body.into())?;
        self.heard(&local, &link, &out, answer).await.map(drop)
    }

    /// Answers a delivery, and asks the server to confirm that.
    fn answer_delivery(&self, link: &Link, out: &Out, body: Bytes) -> Result<oneshot::Receiver<Message>, Error> {
        let timeout = self.connection.timeout();
        let timeout = if out.link == link.number { timeout } else { timeout.min(FORMER_WAIT) };
        link.request(Lane::Direct, out.reply.clone(), None, body, timeout).map_err(Error::Unavailable)
    }

    /// Waits until the server has confirmed; answers whether it knows of the delivery.
    async fn heard(
        &self,
        local: &Local,
        link: &Arc<Link>,
        out: &Out,
        answer: oneshot::Receiver<Message>,
    ) -> Result<bool, Error> {
        match api::answer(link, answer).await {
            Ok(_) => Ok(true),
            Err(Fail::NoResponders) => Err(self.gone(&local.name).await),
            // See FORMER_WAIT.
            Err(Fail::Unknown(_)) if out.link != link.number && link.lost_because().is_none() => Ok(false),
            Err(fail) => Err(fail.error(&local.name.stream)),
        }
    }

    pub(super) async fn in_progress(&self, durable: &Durable, sequences: &[u64]) -> Result<(), Error> {
        let local = self.local(durable).await?;
        let link = self.connection.link()?;
        let now = self.now();
        let mut sent = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let Some(out) = local.out().get_mut(sequence).map(|out| {
                out.at = now;
                out.clone()
            }) else {
                continue;
            };
            let answer = self.answer_delivery(&link, &out, Bytes::from_static(b"+WPI"))?;
            sent.push((*sequence, out, answer));
        }
        for (sequence, out, answer) in sent {
            if !self.heard(&local, &link, &out, answer).await? {
                local.out().remove(&sequence);
            }
        }
        Ok(())
    }
}

/// Whoever gives up a pull stops: what was read ahead is handed back, for others to take.
struct GivenUp<'a>(Option<&'a Local>);

impl GivenUp<'_> {
    fn was_not(mut self) {
        self.0 = None;
    }
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if let Some(local) = self.0 {
            local.open.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

impl Local {
    /// What lies in an old request is about to be handed out again; given up, it is handed back.
    fn clear(&self, now: Duration) {
        let is_young =
            |open: &Open| open.conversation.link().lost_because().is_none() && now < open.kept_at + self.ack_wait / 2;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).retain(is_young);
    }
}

/// A request the server may still fill.
pub(super) struct Open {
    conversation: Conversation,
    /// Messages it asked for that have not come.
    left: usize,
    /// When the server forgets it.
    until: Duration,
    kept_at: Duration,
}

struct Request {
    max: usize,
    bytes_max: Option<usize>,
}

struct Taken<'a> {
    local: &'a Local,
    deliveries: Vec<Delivery>,
}

impl Taken<'_> {
    fn take(&mut self, message: Message, link: u64, now: Duration) {
        let Some(reply) = message.reply.clone() else { return };
        let Some(place) = Place::parse(&reply) else { return };
        let (headers, _) = header::decode(message.headers.as_ref());
        let stored = Stored {
            sequence: place.sequence,
            subject: message.subject.to_string(),
            headers,
            payload: message.payload,
            time: place.time,
        };
        self.local.remember(place.sequence, Out { reply, at: now, link });
        self.deliveries.push(Delivery { message: stored, attempt: place.attempt, pending: place.pending });
    }
}

/// What the reply subject of a delivery says.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    attempt: u32,
    sequence: u64,
    time: Timestamp,
    pending: u64,
}

impl Place {
    /// `$JS.ACK.<stream>.<durable>.<attempt>.<sequence>.<n>.<nanoseconds>.<pending>`, or with domain and account before the
    /// stream and a random token behind.
    fn parse(reply: &str) -> Option<Place> {
        let tokens: Vec<&str> = reply.split('.').collect();
        let at = match tokens.len() {
            9 => 4,
            11.. => 6,
            _ => return None,
        };
        Some(Place {
            attempt: tokens[at].parse().ok()?,
            sequence: tokens[at + 1].parse().ok()?,
            time: Timestamp(tokens[at + 3].parse().ok()?),
            pending: tokens[at + 4].parse().ok()?,
        })
    }
}

fn said(message: Message) -> Said {
    let Some(status) = message.status else { return Said::Message(Box::new(message)) };
    let description = message.description.as_deref().unwrap_or_default();
    match status.as_u16() {
        100 => Said::Alive,
        503 => Said::Gone,
        409 if description.contains("Consumer Deleted") => Said::Gone,
        409 if description.contains("MaxBytes") => Said::TooLarge,
        _ => Said::Done,
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_reply_subject_are_read() {
        let place = Place { attempt: 2, sequence: 17, time: Timestamp(5), pending: 3 };
        assert_eq!(Place::parse("$JS.ACK.S.d.2.17.9.5.3").as_ref(), Some(&place));
        assert_eq!(Place::parse("$JS.ACK.hub.ACC.S.d.2.17.9.5.3.x1").as_ref(), Some(&place));
        assert_eq!(Place::parse("$JS.ACK.S.d.2.17"), None);
    }
}
