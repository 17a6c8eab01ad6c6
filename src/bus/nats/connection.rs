//! Keeps a link: connects, and when the link is lost drops it with its queue and builds a new one.

use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use super::api::{self, Fail};
use super::link::{Link, Server};
use super::options::{self, ConnectError, Options};
use crate::ports::bus::Error;
use crate::time::Timestamp;

/// Between rounds over all addresses while none answers.
const RETRY_WAITS: [Duration; 4] =
    [Duration::from_millis(50), Duration::from_millis(100), Duration::from_millis(250), Duration::from_millis(500)];
/// How long the first question to a new server may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether there is a server behind the bus now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Connected { since: Timestamp, server: Server },
    Lost { since: Timestamp, reason: String },
}

pub(super) struct Connection {
    pub options: Options,
    link: RwLock<Option<Arc<Link>>>,
    state: watch::Sender<State>,
    /// The supervisor ends when this is dropped.
    closed: watch::Sender<bool>,
}

impl Connection {
    pub async fn open(options: Options) -> Result<Arc<Self>, ConnectError> {
        let mut number = 0;
        let link = connect(&options, &mut number).await?;
        let since = options.clock.now();
        let (state, _) = watch::channel(State::Connected { since, server: link.server.clone() });
        let (closed, closing) = watch::channel(false);
        let connection = Arc::new(Connection { options, link: RwLock::new(Some(Arc::clone(&link))), state, closed });
        tokio::spawn(supervise(Arc::downgrade(&connection), link, number, closing));
        Ok(connection)
    }

    /// The link, if there is one now.
    pub fn link(&self) -> Result<Arc<Link>, Error> {
        let link = self.link.read().unwrap_or_else(PoisonError::into_inner).clone();
        match link {
            Some(link) => match link.lost_because() {
                None => Ok(link),
                Some(reason) => Err(Error::Unavailable(reason)),
            },
            None => match &*self.state.borrow() {
                State::Lost { reason, .. } => Err(Error::Unavailable(reason.clone())),
                State::Connected { .. } => Err(Error::Unavailable("connecting".to_owned())),
            },
        }
    }

    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub fn timeout(&self) -> Duration {
        self.options.request_timeout
    }

    /// Asks JetStream's API.
    pub async fn ask(&self, call: &str, body: &Value) -> Result<Value, Fail> {
        let link = self.link().map_err(|error| Fail::Unknown(error.to_string()))?;
        api::ask(&link, call, body, self.timeout()).await
    }

    fn set_link(&self, link: Option<Arc<Link>>) {
        *self.link.write().unwrap_or_else(PoisonError::into_inner) = link;
    }

    /// Ends it; every call is refused from now on.
    pub fn close(&self) {
        self.closed.send_replace(true);
        let link = self.link.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(link) = link {
            link.lose("closed");
        }
        let since = self.options.clock.now();
        self.state.send_replace(State::Lost { since, reason: "closed".to_owned() });
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

async fn supervise(
    connection: Weak<Connection>,
    mut link: Arc<Link>,
    mut number: u64,
    mut closing: watch::Receiver<bool>,
) {
    loop {
        let reason = tokio::select! {
            reason = link.lost() => reason,
            _ = closing.wait_for(|closed| *closed) => return,
        };
        let Some(held) = connection.upgrade() else { return };
        link.lose(&reason);
        held.set_link(None);
        tracing::warn!(server = link.server.address, "bus lost: {reason}");
        let since = held.options.clock.now();
        held.state.send_replace(State::Lost { since, reason });
        let options = held.options.clone();
        drop(held);
        let next = tokio::select! {
            next = reconnect(&connection, &options, &mut number) => next,
            _ = closing.wait_for(|closed| *closed) => return,
        };
        let Some(held) = connection.upgrade() else { return };
        link = next;
        held.set_link(Some(Arc::clone(&link)));
        tracing::info!(server = link.server.address, version = link.server.version, "bus is back");
        held.state.send_replace(State::Connected { since: held.options.clock.now(), server: link.server.clone() });
    }
}

/// Tries until it succeeds. A refusal is no reason to stop: whoever runs the server may be about to mend it.
async fn reconnect(connection: &Weak<Connection>, options: &Options, number: &mut u64) -> Arc<Link> {
    let mut round = 0;
    loop {
        match connect(options, number).await {
            Ok(link) => return link,
            Err(error) => {
                let Some(held) = connection.upgrade() else { std::future::pending().await };
                let text = error.to_string();
                held.state.send_if_modified(|state| match state {
                    State::Lost { reason, .. } if *reason != text => {
                        tracing::warn!("bus still lost: {text}");
                        reason.clone_from(&text);
                        true
                    }
                    _ => false,
                });
            }
        }
        tokio::time::sleep(RETRY_WAITS[round.min(RETRY_WAITS.len() - 1)]).await;
        round += 1;
    }
}

/// One round over the addresses. The error of the last is reported, unless one is final.
async fn connect(options: &Options, number: &mut u64) -> Result<Arc<Link>, ConnectError> {
    let mut failed = None;
    for server in options::servers(&options.url)? {
        *number += 1;
        let attempt = async {
            let link = Link::open(options, &server, *number).await?;
            probe(&link).await?;
            Ok(link)
        };
        match attempt.await {
            Ok(link) => return Ok(link),
            Err(error) => {
                let keep = matches!(&failed, Some(earlier) if !ConnectError::is_retryable(earlier));
                if !keep {
                    failed = Some(error);
                }
            }
        }
    }
    Err(failed.unwrap_or_else(|| ConnectError::Url(String::new())))
}

/// A server without JetStream would take every message and store none.
async fn probe(link: &Arc<Link>) -> Result<(), ConnectError> {
    let server = link.server.address.clone();
    let answer = api::ask(link, "INFO", &Value::Null, PROBE_TIMEOUT).await;
    let error = match answer {
        Ok(_) => return Ok(()),
        Err(Fail::Refused(refusal)) if refusal.code < 500 || refusal.err_code == 10076 || refusal.err_code == 10039 => {
            ConnectError::NoJetStream { server, reason: refusal.to_string() }
        }
        Err(Fail::Refused(refusal)) => ConnectError::Unreachable { server, reason: refusal.to_string() },
        // A server that just started has no JetStream yet either; the caller tries again.
        Err(Fail::NoResponders) => ConnectError::NoJetStream { server, reason: "nobody answers".to_owned() },
        Err(Fail::Unknown(reason)) => ConnectError::Unreachable { server, reason },
    };
    link.lose("not usable");
    Err(error)
}
