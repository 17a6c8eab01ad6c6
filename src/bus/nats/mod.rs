//! A NATS JetStream server as bus and store.
//!
//! The client library carries the core protocol only; what is said to JetStream is said here, because each answer has to be
//! told apart into done, refused and unknown, and the library's helpers retry, reconnect or read where we must not.
//!
//! Read `link` first: one connection, requests in the order of the calls, answers by number. `connection` replaces a lost
//! link. `publish` stores, `pull` hands out and answers, `settle` puts both in order; `read` looks at the leader; `stream` and
//! `durable` make and check; `kv` and `watch` are the store. `api` and `header` are the wire, `options` the way in.
//!
//! Upholds: what is acknowledged to a caller was confirmed by the server; a lost answer is [`Error::Unavailable`], never
//! success nor failure; nothing that was queued when the connection broke is sent afterwards (own-P4).
//!
//! Does not: settle in one commit (outputs, marks, then acknowledgements), tell deliveries that were put off from those that
//! are out, or make a stream or bucket again that somebody deleted.

mod api;
mod connection;
mod durable;
mod header;
mod kv;
mod link;
mod options;
mod peers;
mod publish;
mod pull;
mod read;
mod settle;
mod stream;
mod watch;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

pub use connection::State;
pub use durable::VERSION_KEY;
pub use link::Server;
pub use options::{ConnectError, Credentials, Options, SERVER_VERSION_MIN, Tls};

use crate::flow::message::{Outgoing, Stored};
use crate::ports::bus::{
    Answer, Batch, Bus, Delivery, Durable, DurableConfig, DurableInfo, Error, Expected, PubAck, Settlement,
    StreamConfig, StreamInfo,
};
use crate::ports::peers::{Heard, Peers};
use crate::ports::store::{BucketInfo, Change, Entry, Outcome, Store, Write};
use crate::time::Timestamp;
use connection::Connection;

struct Shared {
    connection: Arc<Connection>,
    streams: stream::Streams,
    durables: durable::Durables,
    /// Numbers the batches of this process.
    batches: AtomicU64,
}

impl Shared {
    fn now(&self) -> Duration {
        self.connection.options.clock.monotonic()
    }
}

/// The bus and store behind a NATS server. Its connection is closed when it is dropped.
pub struct Nats {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nats")
    }
}

impl Nats {
    /// Connects, and refuses a server that cannot be used. From then on a lost connection is replaced for as long as it takes.
    pub async fn connect(options: Options) -> Result<Arc<Self>, ConnectError> {
        let shared = Shared {
            connection: Connection::open(options).await?,
            streams: stream::Streams::default(),
            durables: durable::Durables::default(),
            batches: AtomicU64::new(0),
        };
        Ok(Arc::new(Nats { shared: Arc::new(shared) }))
    }

    /// Whether there is a server now and which, since when; for gates and status. What it syncs when is not told to clients.
    pub fn state(&self) -> tokio::sync::watch::Receiver<State> {
        self.shared.connection.state()
    }

    /// The stream behind a bucket, for [`Bus::stream`]: its creation time tells a bucket from one made later.
    pub fn bucket_stream(bucket: &str) -> String {
        kv::stream_of(bucket)
    }

    /// Ends the connection. Every call fails from then on.
    pub fn close(&self) {
        self.shared.connection.close();
    }

    fn call<T, F>(&self, call: impl FnOnce(Arc<Shared>) -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        Box::pin(call(Arc::clone(&self.shared)))
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.close();
    }
}

impl Bus for Nats {
    fn ensure_stream(&self, config: StreamConfig) -> Answer<StreamInfo> {
        self.call(|shared| async move { shared.ensure_stream(config).await })
    }

    fn stream(&self, name: &str) -> Answer<StreamInfo> {
        let name = name.to_owned();
        self.call(|shared| async move { shared.stream_info(&name).await })
    }

    fn publish(&self, stream: &Arc<str>, message: Outgoing, expected: Option<Expected>) -> Answer<PubAck> {
        let batch =
            Batch { stream: Arc::clone(stream), messages: vec![message], expected: expected.into_iter().collect() };
        let stored = self.publish_batch(batch);
        Box::pin(async move {
            let mut acks = stored.await?;
            acks.pop().ok_or_else(|| Error::Unavailable("no answer for a message".to_owned()))
        })
    }

    fn publish_batch(&self, batch: Batch) -> Answer<Vec<PubAck>> {
        let sent = self.shared.send_batch(&batch, false);
        self.call(|shared| async move { shared.finish_batch(sent, &batch, false).await })
    }

    fn ensure_durable(&self, stream: &str, config: DurableConfig) -> Answer<Durable> {
        let stream = stream.to_owned();
        self.call(|shared| async move { shared.ensure_durable(&stream, config).await })
    }

    fn delete_durable(&self, durable: &Durable) -> Answer<()> {
        let durable = durable.clone();
        self.call(|shared| async move { shared.delete_durable(&durable).await })
    }

    fn durable(&self, durable: &Durable) -> Answer<DurableInfo> {
        let durable = durable.clone();
        self.call(|shared| async move { shared.durable_info(&durable).await })
    }

    fn durables(&self, stream: &str) -> Answer<Vec<DurableInfo>> {
        let stream = stream.to_owned();
        self.call(|shared| async move { shared.durable_infos(&stream).await })
    }

    fn pull(&self, durable: &Durable, messages_max: usize, bytes_max: usize, wait: Duration) -> Answer<Vec<Delivery>> {
        let durable = durable.clone();
        self.call(|shared| shared.pull(durable, messages_max, bytes_max, wait))
    }

    fn put_off(&self, durable: &Durable, sequence: u64, delay: Duration) -> Answer<()> {
        let durable = durable.clone();
        self.call(|shared| async move { shared.put_off(&durable, sequence, delay).await })
    }

    fn in_progress(&self, durable: &Durable, sequences: &[u64]) -> Answer<()> {
        let (durable, sequences) = (durable.clone(), sequences.to_vec());
        self.call(|shared| async move { shared.in_progress(&durable, &sequences).await })
    }

    fn settle(&self, settlement: Settlement) -> Answer<Vec<PubAck>> {
        let sent = self.shared.send_outputs(&settlement.batches);
        self.call(|shared| shared.settled(settlement, sent))
    }

    fn settles_atomically(&self) -> bool {
        false
    }

    fn read(&self, stream: &str, from: u64, filters: &[String], messages_max: usize) -> Answer<Vec<Stored>> {
        let (stream, filters) = (stream.to_owned(), filters.to_vec());
        self.call(|shared| async move { shared.read(&stream, from, &filters, messages_max).await })
    }

    fn last(&self, stream: &str, subject: &str) -> Answer<Option<Stored>> {
        let (stream, subject) = (stream.to_owned(), subject.to_owned());
        self.call(|shared| async move { shared.last(&stream, &subject).await })
    }

    fn sequence_at(&self, stream: &str, time: Timestamp) -> Answer<u64> {
        let stream = stream.to_owned();
        self.call(|shared| async move { shared.sequence_at(&stream, time).await })
    }

    fn trim(&self, stream: &str, first: u64, keep_last_of: &[String]) -> Answer<u64> {
        let (stream, keep) = (stream.to_owned(), keep_last_of.to_vec());
        self.call(|shared| async move { shared.trim(&stream, first, &keep).await })
    }

    fn remove(&self, stream: &str, sequences: &[u64]) -> Answer<u64> {
        let (stream, sequences) = (stream.to_owned(), sequences.to_vec());
        self.call(|shared| async move { shared.remove(&stream, &sequences).await })
    }
}

impl Store for Nats {
    fn ensure_bucket(&self, bucket: &str, ttl: Option<Duration>) -> Answer<()> {
        let bucket = bucket.to_owned();
        self.call(|shared| async move { shared.ensure_bucket(&bucket, ttl).await })
    }

    fn bucket(&self, bucket: &str) -> Answer<BucketInfo> {
        let bucket = bucket.to_owned();
        self.call(|shared| async move { shared.bucket_info(&bucket).await })
    }

    fn get(&self, bucket: &str, key: &str) -> Answer<Option<Entry>> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        self.call(
            |shared| async move { shared.entry(&bucket, &key).await.map_err(|error| kv::no_bucket(error, &bucket)) },
        )
    }

    fn write(&self, writes: Vec<Write>) -> Answer<Vec<Outcome>> {
        let tries = self.shared.first_tries(&writes);
        self.call(|shared| async move { shared.outcomes(writes, tries).await })
    }

    fn list(&self, bucket: &str, prefix: &str, after: Option<&str>, entries_max: usize) -> Answer<Vec<Entry>> {
        let (bucket, prefix, after) = (bucket.to_owned(), prefix.to_owned(), after.map(str::to_owned));
        self.call(|shared| async move { shared.entries(&bucket, &prefix, after.as_deref(), entries_max).await })
    }

    fn watch(&self, bucket: &str, prefix: &str) -> BoxStream<'static, Result<Change, Error>> {
        watch::watch(&self.shared, bucket, watch::Keys::Prefix(prefix.to_owned()))
    }

    fn watch_key(&self, bucket: &str, key: &str) -> BoxStream<'static, Result<Change, Error>> {
        watch::watch(&self.shared, bucket, watch::Keys::One(key.to_owned()))
    }
}

impl Peers for Nats {
    fn call(&self, subject: &str, wait: Duration) -> BoxFuture<'static, Heard> {
        Box::pin(peers::call(&self.shared, subject, wait))
    }

    fn tell(&self, subject: &str, payload: Bytes) {
        peers::tell(&self.shared, subject, payload);
    }

    fn listen(&self, subject: &str) -> BoxStream<'static, Result<Bytes, Error>> {
        peers::listen(&self.shared, subject)
    }
}
