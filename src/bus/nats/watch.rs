//! Watching a bucket: what is there, then that this was all, then every change.
//!
//! Changes come through an ephemeral consumer, but only as a notification: consumers are cut off by restarts, drop messages
//! when a reader is slow, and never tell of expiry. So a watch also lists the bucket again on a period, and at once when its
//! consumer skipped a number or gave no sign of life; the difference to what was shown is told. It lives through outages.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{Message, Subject};
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};

use super::Shared;
use super::api;
use super::header;
use super::kv::{self, key_of, stream_of};
use super::link::{Conversation, Lane};
use crate::ports::bus::Error;
use crate::ports::store::{Change, Entry};
use crate::time::Timestamp;

/// Keys one watch may hold, and leave unread.
const WATCH_KEYS_MAX: usize = 65_536;
/// How often the bucket is listed again, whatever the consumer says.
const RELIST_PERIOD: Duration = Duration::from_secs(10);
/// The consumer's sign of life; two missing ones make a new consumer.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The server removes a consumer that nobody listened to for this long.
const INACTIVE_MAX: Duration = Duration::from_secs(30);
/// Between tries while the bus is away.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// The server removes what expired up to this much late.
const EXPIRY_LAG: Duration = Duration::from_millis(150);

/// Changes that were not read yet, the last of each key.
#[derive(Default)]
struct Unread {
    changes: HashMap<String, Change>,
    order: VecDeque<String>,
    caught_up: bool,
    failed: Option<Error>,
}

#[derive(Default)]
struct Shown {
    unread: Mutex<Unread>,
    notify: Notify,
}

impl Shown {
    fn tell(&self, key: &str, change: Change) {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        if unread.changes.insert(key.to_owned(), change).is_none() {
            unread.order.push_back(key.to_owned());
        }
        drop(unread);
        self.notify.notify_one();
    }

    fn finish(&self, with: impl FnOnce(&mut Unread)) {
        with(&mut self.unread.lock().unwrap_or_else(PoisonError::into_inner));
        self.notify.notify_one();
    }

    fn pop(&self, told_caught_up: &mut bool) -> Option<Result<Change, Error>> {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = unread.order.pop_front() {
            return unread.changes.remove(&key).map(Ok);
        }
        if let Some(error) = unread.failed.take() {
            return Some(Err(error));
        }
        if unread.caught_up && !*told_caught_up {
            *told_caught_up = true;
            return Some(Ok(Change::CaughtUp));
        }
        None
    }
}

/// What a watch tells of.
pub(super) enum Keys {
    Prefix(String),
    One(String),
}

impl Keys {
    fn covers(&self, key: &str) -> bool {
        match self {
            Keys::Prefix(prefix) => key.starts_with(prefix.as_str()),
            Keys::One(one) => key == one,
        }
    }
}

pub(super) fn watch(shared: &Arc<Shared>, bucket: &str, keys: Keys) -> BoxStream<'static, Result<Change, Error>> {
    let shown = Arc::new(Shown::default());
    // Dropped with the stream, which ends the task.
    let (alive, dropped) = oneshot::channel::<()>();
    let watch = Watch {
        shared: Arc::clone(shared),
        bucket: bucket.to_owned(),
        keys,
        shown: Arc::clone(&shown),
        known: BTreeMap::new(),
        ttl: None,
    };
    tokio::spawn(watch.run(dropped));
    let state = (shown, alive, false, false);
    Box::pin(stream::unfold(state, |(shown, alive, mut told, ended)| async move {
        if ended {
            return None;
        }
        loop {
            if let Some(next) = shown.pop(&mut told) {
                let ended = next.is_err();
                return Some((next, (shown, alive, told, ended)));
            }
            shown.notify.notified().await;
        }
    }))
}

struct Known {
    revision: u64,
    /// When it should have expired, by the monotonic clock.
    due: Option<Duration>,
}

struct Watch {
    shared: Arc<Shared>,
    bucket: String,
    keys: Keys,
    shown: Arc<Shown>,
    known: BTreeMap<String, Known>,
    /// The bucket's time to live.
    ttl: Option<Duration>,
}

/// Why one consumer is no longer listened to.
enum End {
    /// List again with a new one.
    Again,
    Failed(Error),
}

/// A consumer of ours, deleted when it is dropped.
struct Consumer {
    conversation: Conversation,
    stream: String,
    name: String,
    /// Deliveries so far.
    delivered: u64,
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let call = format!("$JS.API.CONSUMER.DELETE.{}.{}", self.stream, self.name);
        self.conversation.link().tell(Lane::Direct, Subject::from(call), None, Bytes::new());
    }
}

impl Watch {
    async fn run(mut self, mut dropped: oneshot::Receiver<()>) {
        loop {
            let end = tokio::select! {
                _ = &mut dropped => return,
                end = self.follow() => end,
            };
            if let End::Failed(error) = end
                && !error.is_retryable()
            {
                self.shown.finish(|unread| unread.failed = Some(error));
                return;
            }
            tokio::select! {
                _ = &mut dropped => return,
                () = tokio::time::sleep(AGAIN_AFTER) => {}
            }
        }
    }

    async fn follow(&mut self) -> End {
        match self.listen().await {
            Ok(()) => End::Again,
            Err(error) => End::Failed(kv::no_bucket(error, &self.bucket)),
        }
    }

    /// Until the consumer fails.
    async fn listen(&mut self) -> Result<(), Error> {
        let mut consumer = self.subscribe().await?;
        self.list().await?;
        let mut list_at = self.shared.now() + RELIST_PERIOD;
        let mut silent_at = self.shared.now() + HEARTBEAT * 2;
        loop {
            let now = self.shared.now();
            let due = self.known.values().filter_map(|known| known.due).min();
            let until = due.unwrap_or(list_at).min(list_at).min(silent_at);
            match tokio::time::timeout(until.saturating_sub(now), consumer.conversation.next()).await {
                Ok(None) => return Ok(()),
                Ok(Some(message)) => {
                    silent_at = self.shared.now() + HEARTBEAT * 2;
                    if !self.hear(&mut consumer, message) {
                        return Ok(());
                    }
                }
                Err(_) => {
                    let now = self.shared.now();
                    if now >= silent_at {
                        return Ok(());
                    }
                    if now >= list_at {
                        self.list().await?;
                        list_at = self.shared.now() + RELIST_PERIOD;
                    }
                    self.look_at_due(now).await?;
                }
            }
        }
    }

    async fn subscribe(&mut self) -> Result<Consumer, Error> {
        let stream = stream_of(super::stream::token(&self.bucket)?);
        let found = self.shared.connection.ask(&format!("STREAM.INFO.{stream}"), &Value::Null).await;
        let found = found.map_err(|fail| fail.error(&stream))?;
        self.ttl = found["config"]["max_age"].as_u64().filter(|age| *age > 0).map(Duration::from_nanos);
        let link = self.shared.connection.link()?;
        let conversation = link.converse().await.map_err(Error::Unavailable)?;
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let filter = match &self.keys {
            Keys::Prefix(prefix) => kv::filter_of(&self.bucket, prefix),
            Keys::One(key) => kv::subject_of(&self.bucket, key),
        };
        let config = json!({
            "deliver_subject": conversation.inbox(), "deliver_policy": "new", "ack_policy": "none", "replay_policy": "instant",
            "filter_subject": filter, "idle_heartbeat": nanos(HEARTBEAT),
            "inactive_threshold": nanos(INACTIVE_MAX), "mem_storage": true, "num_replicas": 1, "max_deliver": 1,
        });
        let body = json!({ "stream_name": stream, "config": config });
        let made = api::ask(&link, &format!("CONSUMER.CREATE.{stream}"), &body, self.shared.connection.timeout()).await;
        let made = made.map_err(|fail| fail.error(&stream))?;
        let name = made["name"].as_str().unwrap_or_default().to_owned();
        Ok(Consumer { conversation, stream, name, delivered: 0 })
    }

    /// `false` when the consumer can no longer be trusted.
    fn hear(&mut self, consumer: &mut Consumer, message: Message) -> bool {
        if let Some(status) = message.status {
            let heartbeat = status.as_u16() == 100;
            let last = message.headers.as_ref().and_then(|headers| headers.get("Nats-Last-Consumer"));
            let last = last.and_then(|last| last.as_str().parse::<u64>().ok());
            return heartbeat && last.is_none_or(|last| last == consumer.delivered);
        }
        let tokens = message.reply.as_ref().map(|reply| reply.split('.').collect::<Vec<_>>()).unwrap_or_default();
        let [.., sequence, number, nanos, _] = tokens.as_slice() else { return false };
        let (Ok(revision), Ok(number), Ok(nanos)) = (sequence.parse(), number.parse::<u64>(), nanos.parse()) else {
            return false;
        };
        if number != consumer.delivered + 1 {
            return false;
        }
        consumer.delivered = number;
        let Some(key) = key_of(&self.bucket, &message.subject).filter(|key| self.keys.covers(key)) else {
            return true;
        };
        let (_, own) = header::decode(message.headers.as_ref());
        if own.deleted {
            self.gone(&key, revision);
        } else {
            let ttl = own.ttl_secs.map(Duration::from_secs);
            let entry = Entry { key, value: message.payload, revision, written: Timestamp(nanos) };
            self.put(entry, ttl);
        }
        true
    }

    fn put(&mut self, entry: Entry, ttl: Option<Duration>) {
        let held = self.known.get(&entry.key).map_or(0, |known| known.revision);
        let ttl = ttl.into_iter().chain(self.ttl).min();
        let clock = &self.shared.connection.options.clock;
        let due = ttl.map(|ttl| clock.monotonic() + ttl.saturating_sub(clock.now().since(entry.written)) + EXPIRY_LAG);
        if entry.revision <= held {
            return;
        }
        self.known.insert(entry.key.clone(), Known { revision: entry.revision, due });
        self.shown.tell(&entry.key.clone(), Change::Put(entry));
        if self.known.len() > WATCH_KEYS_MAX {
            let text = format!("a watch of more than {WATCH_KEYS_MAX} keys");
            self.shown.finish(|unread| unread.failed = Some(Error::Stopped(text)));
        }
    }

    fn gone(&mut self, key: &str, revision: u64) {
        match self.known.get(key) {
            Some(known) if known.revision <= revision => {
                self.known.remove(key);
                self.shown.tell(key, Change::Gone { key: key.to_owned(), revision });
            }
            _ => {}
        }
    }

    /// Shows the difference between what is there and what was shown.
    async fn list(&mut self) -> Result<(), Error> {
        let since = self.known.values().map(|known| known.revision).max().unwrap_or(0);
        let entries = match &self.keys {
            Keys::Prefix(prefix) => self.shared.entries(&self.bucket, prefix, None, WATCH_KEYS_MAX).await?,
            Keys::One(key) => self.shared.entry(&self.bucket, key).await?.into_iter().collect(),
        };
        let there: HashMap<String, u64> = entries.iter().map(|entry| (entry.key.clone(), entry.revision)).collect();
        for entry in entries {
            // Its own time to live is not known from a list; the next list finds it gone.
            self.put(entry, None);
        }
        let missing: Vec<(String, u64)> = self
            .known
            .iter()
            .filter(|(key, known)| !there.contains_key(*key) && known.revision <= since)
            .map(|(key, known)| (key.clone(), known.revision))
            .collect();
        for (key, revision) in missing {
            self.gone(&key, revision);
        }
        self.shown.finish(|unread| unread.caught_up = true);
        Ok(())
    }

    /// Asks whether entries whose time is over are gone.
    async fn look_at_due(&mut self, now: Duration) -> Result<(), Error> {
        let due: Vec<(String, u64)> = self
            .known
            .iter()
            .filter(|(_, known)| known.due.is_some_and(|due| due <= now))
            .map(|(key, known)| (key.clone(), known.revision))
            .collect();
        for (key, revision) in due {
            match self.shared.entry(&self.bucket, &key).await? {
                None => self.gone(&key, revision),
                Some(entry) if entry.revision > revision => self.put(entry, None),
                Some(_) => {
                    if let Some(known) = self.known.get_mut(&key) {
                        known.due = Some(now + EXPIRY_LAG);
                    }
                }
            }
        }
        Ok(())
    }
}
