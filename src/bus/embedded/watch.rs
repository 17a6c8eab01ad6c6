//! Watching a bucket: what is there, then that this was all, then every change.
//!
//! A watcher is registered before its list is read, so nothing falls between the two. Changes that wait are merged
//! per key, so a slow watcher costs at most one change per key, and one that has too many keys waiting is broken off.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::{self, BoxStream};
use tokio::sync::Notify;

use super::engine::Shared;
use super::kv;
use crate::ports::bus::Error;
use crate::ports::store::{Change, Entry};

/// Keys with a change that one watcher may leave unread.
const WATCH_KEYS_MAX: usize = 65_536;
/// Entries read at once for the initial list.
const PAGE_ENTRIES: usize = 256;

#[derive(Debug, Default)]
struct Queue {
    changes: HashMap<String, Change>,
    order: VecDeque<String>,
    broken: Option<Error>,
}

#[derive(Debug)]
pub(super) struct Watcher {
    prefix: String,
    queue: Mutex<Queue>,
    notify: Notify,
}

impl Watcher {
    pub fn new(prefix: String) -> Self {
        Watcher { prefix, queue: Mutex::default(), notify: Notify::new() }
    }

    pub fn tell(&self, change: &Change) {
        let (Change::Put(Entry { key, .. }) | Change::Gone { key, .. }) = change else { return };
        if !key.starts_with(&self.prefix) {
            return;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.changes.insert(key.clone(), change.clone()).is_none() {
            queue.order.push_back(key.clone());
        }
        if queue.order.len() > WATCH_KEYS_MAX {
            let text = format!("a watcher left more than {WATCH_KEYS_MAX} changed keys unread");
            *queue = Queue { broken: Some(Error::Unavailable(text)), ..Queue::default() };
        }
        drop(queue);
        self.notify.notify_one();
    }

    pub fn break_off(&self, error: &Error) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).broken = Some(error.clone());
        self.notify.notify_one();
    }

    fn pop(&self) -> Result<Option<Change>, Error> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &queue.broken {
            return Err(error.clone());
        }
        let Some(key) = queue.order.pop_front() else { return Ok(None) };
        Ok(queue.changes.remove(&key))
    }
}

struct Watch {
    shared: Arc<Shared>,
    bucket: u32,
    watcher: Arc<Watcher>,
    /// Changes up to this revision were durable before the watcher was registered.
    since: u64,
    /// Later ones that the list has already shown, by key.
    shown: HashMap<String, u64>,
    page: VecDeque<Entry>,
    after: Option<String>,
    listed: bool,
    ended: bool,
}

pub(super) fn watch(shared: &Arc<Shared>, bucket: &str, prefix: &str) -> BoxStream<'static, Result<Change, Error>> {
    let registered = shared.lock().and_then(|mut engine| {
        let bucket = engine.buckets.find(bucket)?;
        let (watcher, since) = kv::register(&mut engine, bucket, prefix);
        Ok((bucket, watcher, since))
    });
    let (bucket, watcher, since) = match registered {
        Ok(registered) => registered,
        Err(error) => return Box::pin(stream::iter([Err(error)])),
    };
    let shared = Arc::clone(shared);
    let (shown, page, after) = (HashMap::new(), VecDeque::new(), None);
    let watch = Watch { shared, bucket, watcher, since, shown, page, after, listed: false, ended: false };
    Box::pin(stream::unfold(watch, |mut watch| async move {
        if watch.ended {
            return None;
        }
        let next = watch.next().await;
        watch.ended = next.is_err();
        Some((next, watch))
    }))
}

impl Watch {
    async fn next(&mut self) -> Result<Change, Error> {
        if !self.listed {
            if self.page.is_empty() {
                self.fill_page().await?;
            }
            let Some(entry) = self.page.pop_front() else {
                self.listed = true;
                return Ok(Change::CaughtUp);
            };
            if entry.revision > self.since {
                self.shown.insert(entry.key.clone(), entry.revision);
            }
            return Ok(Change::Put(entry));
        }
        loop {
            match self.watcher.pop()? {
                Some(change) if self.was_shown(&change) => {}
                Some(change) => return Ok(change),
                None => self.watcher.notify.notified().await,
            }
        }
    }

    fn was_shown(&mut self, change: &Change) -> bool {
        let (key, revision) = match change {
            Change::Put(entry) => (&entry.key, entry.revision),
            Change::Gone { key, revision } => (key, *revision),
            Change::CaughtUp => return false,
        };
        match self.shown.get(key) {
            Some(shown) if *shown >= revision => true,
            Some(_) => {
                self.shown.remove(key);
                false
            }
            None => false,
        }
    }

    async fn fill_page(&mut self) -> Result<(), Error> {
        let (bucket, prefix, after) = (self.bucket, self.watcher.prefix.clone(), self.after.clone());
        let page =
            self.shared.read(move |db, now| kv::list(db, bucket, &prefix, after.as_deref(), PAGE_ENTRIES, now)).await?;
        self.after = page.last().map(|entry| entry.key.clone());
        self.page = page.into();
        Ok(())
    }
}
