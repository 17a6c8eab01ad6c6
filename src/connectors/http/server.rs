//! One listener: accepts connections, speaks TLS where asked to, HTTP/1.1 and HTTP/2 on both, and ends in good order.
//!
//! What a request means is the service's business. Every wait of a connection is bounded here.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::tls;

/// Connections one listener keeps open. Further ones wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 4_096;
/// Connections the kernel queues until they are accepted.
const BACKLOG_CONNECTIONS_MAX: u32 = 1_024;
/// The longest wait for a whole request head, and for the next request of an idle connection.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(30);
/// The same for the first request of a connection while none is free: others wait for its place.
const HEAD_WAIT_CROWDED_MAX: Duration = Duration::from_secs(2);
/// How often, while none is free, connections are asked whether they have waited so long.
const CROWDED_PERIOD: Duration = Duration::from_millis(250);
/// The longest TLS handshake.
const HANDSHAKE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Largest request head, in bytes.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Most headers of one request.
const HEADERS_MAX: usize = 64;
/// Requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 128;
/// How often a silent HTTP/2 peer is asked whether it is there, and how long it may take to answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_WAIT_MAX: Duration = Duration::from_secs(20);
/// The pause after a failed accept: usually the process is out of file descriptors, and at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot resolve {address}: {source}")]
    Resolve { address: String, source: io::Error },
    #[error("cannot listen on {address}: {source}")]
    Bind { address: String, source: io::Error },
    #[error(transparent)]
    Tls(#[from] tls::Error),
}

/// A bound address that has not begun to accept.
pub struct Listener {
    tcp: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).field("tls", &self.tls.is_some()).finish()
    }
}

impl Listener {
    /// Takes `host:port`; the first address that can be bound wins.
    pub async fn bind(address: &str, tls: Option<&tls::Files>) -> Result<Self, Error> {
        let tls = tls.map(tls::server_config).transpose()?.map(TlsAcceptor::from);
        let unresolved = |source| Error::Resolve { address: address.to_owned(), source };
        let candidates = tokio::net::lookup_host(address).await.map_err(unresolved)?;
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "no address");
        for candidate in candidates {
            match listen(candidate).and_then(|tcp| tcp.local_addr().map(|address| (tcp, address))) {
                Ok((tcp, address)) => return Ok(Listener { tcp, address, tls }),
                Err(error) => failure = error,
            }
        }
        Err(Error::Bind { address: address.to_owned(), source: failure })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Accepts until `stopping`, then lets requests in flight finish for at most `drain_max`. Idle connections are
    /// closed at once, the others after their answer.
    pub async fn serve<S, B>(self, service: S, stopping: CancellationToken, drain_max: Duration)
    where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<Box<dyn StdError + Send + Sync>>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.serve_at_once(CONNECTIONS_MAX, service, stopping, drain_max).await;
    }

    async fn serve_at_once<S, B>(
        self,
        connections_max: usize,
        service: S,
        stopping: CancellationToken,
        drain_max: Duration,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<Box<dyn StdError + Send + Sync>>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let permits = Arc::new(Semaphore::new(connections_max));
        let crowded = Arc::new(Notify::new());
        let connections = TaskTracker::new();
        let abandoned = CancellationToken::new();
        loop {
            let Some(permit) = stopping.run_until_cancelled(place(&permits, &crowded)).await else { break };
            let stream = match stopping.run_until_cancelled(self.tcp.accept()).await {
                None => break,
                Some(Ok((stream, _))) => stream,
                Some(Err(error)) => {
                    tracing::warn!(address = %self.address, %error, "cannot accept a connection");
                    stopping.run_until_cancelled(sleep(ACCEPT_PAUSE)).await;
                    continue;
                }
            };
            let (service, tls) = (service.clone(), self.tls.clone());
            let (stopping, abandoned) = (stopping.clone(), abandoned.clone());
            let crowded = Arc::clone(&crowded);
            connections.spawn(async move {
                let _permit = permit;
                abandoned.run_until_cancelled(converse(stream, tls, service, stopping, &crowded)).await;
            });
        }
        drop(self.tcp);
        connections.close();
        if timeout(drain_max, connections.wait()).await.is_err() {
            tracing::warn!(address = %self.address, connections = connections.len(), "connections cut at the deadline");
            abandoned.cancel();
            connections.wait().await;
        }
    }
}

/// The place of one connection. While there is none, those that only hold theirs are asked to leave.
async fn place(permits: &Arc<Semaphore>, crowded: &Notify) -> OwnedSemaphorePermit {
    let mut freed = pin!(Arc::clone(permits).acquire_owned());
    loop {
        if let Ok(permit) = timeout(CROWDED_PERIOD, freed.as_mut()).await {
            return permit.expect("the semaphore is never closed");
        }
        crowded.notify_waiters();
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restart must not wait for connections of the process before.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG_CONNECTIONS_MAX)
}

async fn converse<S, B>(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    service: S,
    stopping: CancellationToken,
    crowded: &Notify,
) where
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    // An answer is one small write: waiting for more to send with it only adds latency.
    let _ = stream.set_nodelay(true);
    let ended = match tls {
        None => speak(TokioIo::new(stream), service, stopping, crowded).await,
        Some(tls) => match timeout(HANDSHAKE_WAIT_MAX, tls.accept(stream)).await {
            Ok(Ok(stream)) => speak(TokioIo::new(stream), service, stopping, crowded).await,
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err("the TLS handshake took too long".into()),
        },
    };
    if let Err(error) = ended {
        // The peer's doing, and nobody here can mend it.
        tracing::debug!(%error, "connection ended");
    }
}

async fn speak<I, S, B>(
    io: I,
    service: S,
    stopping: CancellationToken,
    crowded: &Notify,
) -> Result<(), Box<dyn StdError + Send + Sync>>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let builder = protocol();
    let spoken = Arc::new(AtomicBool::new(false));
    let mut connection = pin!(builder.serve_connection(io, Noting { service, spoken: Arc::clone(&spoken) }));
    // The header time-out begins when the protocol version is known; until then this one holds.
    let mut silence = pin!(sleep(HEAD_WAIT_MAX));
    let mut grace = pin!(sleep(HEAD_WAIT_CROWDED_MAX));
    let (mut watched, mut graced, mut ending) = (true, true, false);
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended,
            () = stopping.cancelled(), if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = silence.as_mut(), if watched => {
                if !spoken.load(Relaxed) {
                    return Err("no request came".into());
                }
                watched = false;
            }
            () = grace.as_mut(), if graced => graced = false,
            () = crowded.notified(), if watched && !graced => {
                if !spoken.load(Relaxed) {
                    return Err("no request came, and others wait for the place".into());
                }
                watched = false;
            }
        }
    }
}

// Without `pipeline_flush`: with it hyper takes all a body has to give into memory, however slowly the peer reads.
fn protocol() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT_MAX)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WAIT_MAX);
    builder
}

/// Notes that a first request came.
struct Noting<S> {
    service: S,
    spoken: Arc<AtomicBool>,
}

impl<S: Service<Request<Incoming>>> Service<Request<Incoming>> for Noting<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.spoken.store(true, Relaxed);
        self.service.call(request)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::Empty;
    use hyper::body::Bytes;
    use hyper::service::service_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const PLACES: usize = 8;
    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

    async fn answered(stream: &mut TcpStream) -> bool {
        let mut answer = Vec::new();
        let mut open = stream.write_all(GET).await.is_ok();
        while open && !answer.ends_with(b"\r\n\r\n") {
            open = stream.read_buf(&mut answer).await.is_ok_and(|read| read > 0);
        }
        answer.starts_with(b"HTTP/1.1 200 OK")
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn connections_that_say_nothing_make_room_when_others_wait_and_those_that_spoke_stay() {
        let listener = Listener::bind("127.0.0.1:0", None).await.unwrap();
        let (address, stopping) = (listener.address(), CancellationToken::new());
        let service = service_fn(async |_| Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())));
        let serving = tokio::spawn(listener.serve_at_once(PLACES, service, stopping.clone(), Duration::from_secs(1)));
        let mut kept = TcpStream::connect(address).await.unwrap();
        assert!(answered(&mut kept).await);
        // More than there are places, some of them in the middle of a head: the last waits behind the kernel's queue, too.
        let mut silent = Vec::new();
        for number in 0..PLACES * 2 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(if number % 2 == 0 { b"" } else { &GET[..9] }).await.unwrap();
            silent.push(stream);
        }
        let mut good = TcpStream::connect(address).await.unwrap();
        let patience = HEAD_WAIT_MAX / 2;
        assert!(timeout(patience, answered(&mut good)).await.expect("it does not wait for the head's time-out"));
        assert!(answered(&mut kept).await, "a connection that was used is kept");
        stopping.cancel();
        timeout(patience, serving).await.unwrap().unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_silent_connection_stays_while_there_is_room() {
        let listener = Listener::bind("127.0.0.1:0", None).await.unwrap();
        let (address, stopping) = (listener.address(), CancellationToken::new());
        let service = service_fn(async |_| Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())));
        let serving = tokio::spawn(listener.serve_at_once(PLACES, service, stopping.clone(), Duration::from_secs(1)));
        let mut late = TcpStream::connect(address).await.unwrap();
        tokio::time::sleep(HEAD_WAIT_CROWDED_MAX + CROWDED_PERIOD * 4).await;
        assert!(answered(&mut late).await);
        stopping.cancel();
        serving.await.unwrap();
    }
}
