//! Producers with unique ids: each id is sent again, with the same `Idempotency-Key` and body, until it is acknowledged.
//!
//! Acknowledged is only what got a 2xx. All else leaves open whether the message was stored (the process may have died
//! between its fsync and its answer), hence the same key again. An id that is given up stays *unknown*: it may be on the
//! bus or not, and a comparison must accept both.
//!
//! With several entrances each connection has its own to begin with, and goes to the next one after a failure.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::Failure;
use super::client::{Client, write_post};

/// How long one id is sent again. Shorter than the window in which the entrance knows its keys (two minutes): a repetition
/// beyond that would be a second message, and rightly so.
const ID_WAIT_MAX: Duration = Duration::from_secs(90);
/// The pause after a failed request: a server that restarts refuses connections at once.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// How often a producer without work looks for some.
const IDLE_PAUSE: Duration = Duration::from_millis(1);

/// What became of the ids sent.
#[derive(Debug, Default, Clone)]
pub struct Sent {
    pub acknowledged: BTreeSet<String>,
    /// Sent at least once, never acknowledged.
    pub unknown: BTreeSet<String>,
}

type Body = dyn Fn(u64, &str) -> Vec<u8> + Send + Sync;

struct Shared {
    hosts: Vec<String>,
    /// Connections begun, to spread them over the hosts.
    connections: AtomicUsize,
    path: String,
    prefix: String,
    /// Makes the payload of a number and its id.
    body: Box<Body>,
    next: AtomicU64,
    /// Numbers below this may be sent.
    allowed: AtomicU64,
    acknowledged: AtomicU64,
    given_up: AtomicU64,
    ended: AtomicBool,
    sent: Mutex<Sent>,
}

/// Connections in a closed loop, on a thread of their own.
pub struct Producers {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Producers {
    /// Starts them without anything to send: see [`Producers::allow`].
    pub fn start(
        addresses: &[SocketAddr],
        path: &str,
        connections: usize,
        prefix: &str,
        body: impl Fn(u64, &str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Result<Self, Failure> {
        let shared = Arc::new(Shared {
            hosts: addresses.iter().map(SocketAddr::to_string).collect(),
            connections: AtomicUsize::new(0),
            path: path.to_owned(),
            prefix: prefix.to_owned(),
            body: Box::new(body),
            next: AtomicU64::new(0),
            allowed: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            sent: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let local = tokio::task::LocalSet::new();
                (0..connections).for_each(|_| _ = local.spawn_local(produce(Arc::clone(&shared))));
                runtime.block_on(local);
            }
        });
        Ok(Producers { shared, thread: Some(thread) })
    }

    /// Lets so many more messages be sent.
    pub fn allow(&self, messages: u64) {
        self.shared.allowed.fetch_add(messages, SeqCst);
    }

    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(SeqCst)
    }

    /// Whether all that was allowed is acknowledged or given up.
    pub fn is_idle(&self) -> bool {
        self.acknowledged() + self.shared.given_up.load(SeqCst) >= self.shared.allowed.load(SeqCst)
    }

    /// What became of the ids so far.
    pub fn sent(&self) -> Sent {
        self.shared.sent.lock().expect("no producer panics").clone()
    }

    /// Ends when every id that was begun is acknowledged or given up.
    pub fn end(mut self) -> Result<Sent, Failure> {
        self.shared.ended.store(true, SeqCst);
        self.thread.take().expect("ended once").join().map_err(|_| "a producer broke off")?;
        Ok(self.sent())
    }
}

impl Drop for Producers {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
    }
}

impl Shared {
    /// The next number that may be sent.
    fn take(&self) -> Option<u64> {
        let allowed = self.allowed.load(SeqCst);
        self.next.fetch_update(SeqCst, SeqCst, |next| (next < allowed).then_some(next + 1)).ok()
    }
}

async fn produce(shared: Arc<Shared>) {
    let mut host = shared.connections.fetch_add(1, SeqCst) % shared.hosts.len();
    let mut client = Client::new(shared.hosts[host].clone());
    let mut request = Vec::new();
    while !shared.ended.load(SeqCst) {
        let Some(number) = shared.take() else {
            sleep(IDLE_PAUSE).await;
            continue;
        };
        let id = format!("{}-{number}", shared.prefix);
        let key = format!("Idempotency-Key: {id}\r\n");
        write_post(&mut request, &shared.hosts[0], &shared.path, &key, &(shared.body)(number, &id));
        let began = Instant::now();
        let taken = loop {
            match client.exchange(&request).await {
                Ok(()) => break true,
                Err(_) if began.elapsed() > ID_WAIT_MAX => break false,
                Err(_) => {
                    if shared.hosts.len() > 1 {
                        host = (host + 1) % shared.hosts.len();
                        client = Client::new(shared.hosts[host].clone());
                    }
                    sleep(RETRY_PAUSE).await;
                }
            }
        };
        let mut sent = shared.sent.lock().expect("no producer panics");
        if taken {
            sent.acknowledged.insert(id);
            shared.acknowledged.fetch_add(1, SeqCst);
        } else {
            sent.unknown.insert(id);
            shared.given_up.fetch_add(1, SeqCst);
        }
    }
}
