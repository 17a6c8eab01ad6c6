//! One connection: requests go out in the order they were made, answers come back by number.
//!
//! A link is used until it is lost and then thrown away with everything that waits in it. It is never repaired, so nothing that
//! was queued during an outage is sent afterwards (own-P4).
//!
//! There are two lanes. What stores a message goes through the ordered one, of which [`STORES_IN_FLIGHT_MAX`] are
//! unanswered at once: a server refuses more than about ten thousand per stream. Everything else goes past it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Client, HeaderMap, Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::options::{self, ConnectError, Identity, Options};
use crate::ports::clock::SharedClock;

/// Stores that are sent and not answered.
pub(super) const STORES_IN_FLIGHT_MAX: usize = 1024;
/// Requests that may wait for an answer or to be sent; more are refused as unavailable.
const REQUESTS_MAX: usize = 1 << 16;
/// Bytes that may wait to be sent.
const QUEUED_BYTES_MAX: usize = 256 << 20;
/// How often requests without an answer are looked through.
const SWEEP_PERIOD: Duration = Duration::from_millis(100);

/// What is known of the server behind a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub address: String,
    pub name: String,
    pub version: String,
    pub cluster: Option<String>,
    /// Largest message (headers and payload), in bytes.
    pub payload_bytes_max: usize,
}

struct Frame {
    subject: Subject,
    headers: Option<HeaderMap>,
    payload: Bytes,
    /// The request it belongs to; none for what is not answered.
    number: Option<u64>,
    /// Where several answers go.
    reply: Option<String>,
}

struct Waiting {
    answer: oneshot::Sender<Message>,
    ordered: bool,
    /// By the monotonic clock.
    until: Duration,
    /// Held while it is one of the stores in flight.
    permit: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Ordered,
    Direct,
}

pub(super) struct Link {
    /// Tells it from the connections before and after it.
    pub number: u64,
    pub server: Server,
    client: Client,
    inbox: String,
    numbers: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Waiting>>,
    answered: Notify,
    ordered: mpsc::UnboundedSender<Frame>,
    direct: mpsc::UnboundedSender<Frame>,
    queued_bytes: AtomicUsize,
    lost: watch::Sender<Option<String>>,
    clock: SharedClock,
}

/// A conversation with several answers: a pull or a watch. It has a subscription of its own, because what a stream delivers
/// carries the message's subject and not ours. Ends when it is dropped.
pub(super) struct Conversation {
    link: Arc<Link>,
    inbox: String,
    answers: Subscriber,
}

impl Conversation {
    /// Where answers are to be sent.
    pub fn inbox(&self) -> &str {
        &self.inbox
    }

    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// An answer that is there already.
    pub fn ready(&mut self) -> Option<Message> {
        self.answers.next().now_or_never().flatten()
    }

    /// The next answer; none when the link is lost.
    pub async fn next(&mut self) -> Option<Message> {
        tokio::select! {
            message = self.answers.next() => message,
            _ = self.link.lost() => None,
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        while let Some(message) = self.ready() {
            self.link.give_back(&message);
        }
    }
}

impl Link {
    pub async fn open(
        options: &Options,
        server: &async_nats::ServerAddr,
        number: u64,
    ) -> Result<Arc<Link>, ConnectError> {
        let (lost, _) = watch::channel(None);
        let identity = Identity::load(options, server)?;
        let told = lost.clone();
        let on_lost = move |reason| {
            told.send_if_modified(|lost: &mut Option<String>| lost.is_none().then(|| *lost = Some(reason)).is_some());
        };
        let connect = options::connect_options(options, identity, Arc::new(on_lost));
        let client = connect.connect(server.clone()).await.map_err(|error| options::refused(server, &error))?;
        let info = client.server_info();
        let address = options::shown(server);
        options::check_version(&address, &info.version)?;
        let inbox = format!("_INBOX.{:032x}.{number}", options.seed);
        let unreachable = |reason: String| ConnectError::Unreachable { server: address.clone(), reason };
        let answers = client.subscribe(format!("{inbox}.*")).await.map_err(|error| unreachable(error.to_string()))?;
        let (ordered, ordered_frames) = mpsc::unbounded_channel();
        let (direct, direct_frames) = mpsc::unbounded_channel();
        let server = Server {
            address: address.clone(),
            name: info.server_name,
            version: info.version,
            cluster: info.cluster,
            payload_bytes_max: info.max_payload,
        };
        let link = Arc::new(Link {
            number,
            server,
            client: client.clone(),
            inbox,
            numbers: AtomicU64::new(1),
            waiting: Mutex::default(),
            answered: Notify::new(),
            ordered,
            direct,
            queued_bytes: AtomicUsize::new(0),
            lost,
            clock: Arc::clone(&options.clock),
        });
        tokio::spawn(link.clone().until_lost(write(link.clone(), client.clone(), ordered_frames, Lane::Ordered)));
        tokio::spawn(link.clone().until_lost(write(link.clone(), client, direct_frames, Lane::Direct)));
        tokio::spawn(link.clone().until_lost(read(link.clone(), answers)));
        Ok(link)
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reply(&self, number: u64) -> String {
        format!("{}.{number}", self.inbox)
    }

    /// Gives the link up: everything that waits gets no answer any more.
    pub fn lose(&self, reason: &str) {
        self.lost.send_if_modified(|lost| lost.is_none().then(|| *lost = Some(reason.to_owned())).is_some());
        self.waiting().clear();
        self.answered.notify_waiters();
    }

    pub fn lost_because(&self) -> Option<String> {
        self.lost.borrow().clone()
    }

    /// Completes when the link is lost.
    pub async fn lost(&self) -> String {
        let mut lost = self.lost.subscribe();
        let reason = lost.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        reason.unwrap_or_default()
    }

    async fn until_lost(self: Arc<Self>, work: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            _ = self.lost() => {}
            () = work => {}
        }
        self.lose("connection closed");
    }

    /// Takes a request. It goes out after those taken before it on the same lane. The answer fails when none came in time
    /// or the link was lost; whether the request took effect is then unknown.
    pub fn request(
        &self,
        lane: Lane,
        subject: Subject,
        headers: Option<HeaderMap>,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<oneshot::Receiver<Message>, String> {
        let (sender, receiver) = oneshot::channel();
        let until = self.clock.monotonic() + timeout;
        let number = self.register(sender, lane == Lane::Ordered, until, payload.len())?;
        self.enqueue(lane, Frame { subject, headers, payload, number: Some(number), reply: None });
        Ok(receiver)
    }

    /// Where the answer to a request goes that is about to be sent; none when nobody waits for it any more.
    fn is_due(&self, number: u64, permit: Option<OwnedSemaphorePermit>) -> Option<String> {
        self.waiting().get_mut(&number)?.permit = permit;
        Some(self.reply(number))
    }

    /// Sends without asking for an answer.
    pub fn tell(&self, lane: Lane, subject: Subject, headers: Option<HeaderMap>, payload: Bytes) {
        self.enqueue(lane, Frame { subject, headers, payload, number: None, reply: None });
    }

    pub async fn converse(self: &Arc<Self>) -> Result<Conversation, String> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.listen(&format!("{}.talk.{number}", self.inbox)).await
    }

    /// Hears what is sent to `subject`.
    pub async fn listen(self: &Arc<Self>, subject: &str) -> Result<Conversation, String> {
        let inbox = subject.to_owned();
        let answers = tokio::select! {
            answers = self.client.subscribe(inbox.clone()) => answers.map_err(|error| error.to_string())?,
            reason = self.lost() => return Err(reason),
        };
        Ok(Conversation { link: Arc::clone(self), inbox, answers })
    }

    /// Sends a request whose answers belong to the conversation.
    pub fn ask(&self, conversation: &Conversation, subject: Subject, payload: Bytes) {
        let reply = Some(conversation.inbox.clone());
        self.enqueue(Lane::Direct, Frame { subject, headers: None, payload, number: None, reply });
    }

    fn register(
        &self,
        answer: oneshot::Sender<Message>,
        ordered: bool,
        until: Duration,
        bytes: usize,
    ) -> Result<u64, String> {
        let mut waiting = self.waiting();
        if let Some(reason) = self.lost_because() {
            return Err(reason);
        }
        if waiting.len() >= REQUESTS_MAX || self.queued_bytes.load(Ordering::Relaxed) + bytes > QUEUED_BYTES_MAX {
            return Err("too many requests wait for the server".to_owned());
        }
        // Under the lock, so that numbers and the order of the queue agree.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        waiting.insert(number, Waiting { answer, ordered, until, permit: None });
        Ok(number)
    }

    fn enqueue(&self, lane: Lane, frame: Frame) {
        self.queued_bytes.fetch_add(frame.payload.len(), Ordering::Relaxed);
        let queue = if lane == Lane::Ordered { &self.ordered } else { &self.direct };
        // Fails only when the link is lost, which its waiters are told.
        let _ = queue.send(frame);
    }

    /// Completes when every store taken so far is answered, or was given up.
    pub async fn stores_are_answered(&self) {
        let before = self.numbers.load(Ordering::Relaxed);
        loop {
            let answered = self.answered.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            let open = self.waiting().range(..before).any(|(_, waiting)| waiting.ordered);
            if !open {
                return;
            }
            answered.await;
        }
    }

    /// A delivery nobody waits for any more is handed out again at once, not only after its ack wait.
    fn give_back(&self, message: &Message) {
        if let Some(reply) = message.reply.as_ref().filter(|reply| reply.starts_with("$JS.ACK.")) {
            self.tell(Lane::Direct, reply.clone(), None, Bytes::from_static(b"-NAK"));
        }
    }

    fn answer(&self, message: Message) {
        let number = message.subject.rsplit('.').next().and_then(|number| number.parse::<u64>().ok());
        let found = number.and_then(|number| self.waiting().remove(&number));
        if let Some(waiting) = found {
            // Whoever asked may have lost interest.
            let _ = waiting.answer.send(message);
            self.answered.notify_waiters();
        }
    }

    /// Gives up requests whose time is over. One that was not sent yet will not be.
    fn sweep(&self) {
        let now = self.clock.monotonic();
        let mut waiting = self.waiting();
        let before = waiting.len();
        waiting.retain(|_, waiting| now < waiting.until);
        let gone = waiting.len() < before;
        drop(waiting);
        if gone {
            self.answered.notify_waiters();
        }
    }
}

async fn write(link: Arc<Link>, client: Client, mut frames: mpsc::UnboundedReceiver<Frame>, lane: Lane) {
    let in_flight = Arc::new(Semaphore::new(STORES_IN_FLIGHT_MAX));
    while let Some(frame) = frames.recv().await {
        link.queued_bytes.fetch_sub(frame.payload.len(), Ordering::Relaxed);
        let mut permit = None;
        if lane == Lane::Ordered && frame.number.is_some() {
            let Ok(acquired) = Arc::clone(&in_flight).acquire_owned().await else { return };
            permit = Some(acquired);
        }
        let reply = match frame.number.map(|number| link.is_due(number, permit)) {
            // Given up in the meantime: it must not take effect any more.
            Some(None) => continue,
            reply => reply.flatten().or(frame.reply),
        };
        let (subject, headers, payload) = (frame.subject, frame.headers, frame.payload);
        let sent = match (reply, headers) {
            (Some(reply), Some(headers)) => {
                client.publish_with_reply_and_headers(subject, reply, headers, payload).await
            }
            (Some(reply), None) => client.publish_with_reply(subject, reply, payload).await,
            (None, Some(headers)) => client.publish_with_headers(subject, headers, payload).await,
            (None, None) => client.publish(subject, payload).await,
        };
        if let Err(error) = sent {
            // Checked by the callers, so it is the connection.
            link.lose(&error.to_string());
            return;
        }
    }
}

async fn read(link: Arc<Link>, mut answers: Subscriber) {
    let mut sweep = tokio::time::interval(SWEEP_PERIOD);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = answers.next() => match message {
                Some(message) => link.answer(message),
                None => return,
            },
            _ = sweep.tick() => link.sweep(),
        }
    }
}
