//! The entrance: takes requests, stores their bodies as messages, and answers only after the bus has them.
//!
//! This file builds entrances and runs them; `request` has the life of one request. Which listener serves which
//! route is decided here, from the routes alone: secrets, schemas and addresses arrive resolved.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use hyper::Method;
use hyper::service::service_fn;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::auth::Auth;
use super::body::{self, Budget};
use super::message_id;
use super::request::{self, Door, Way};
use super::server::{self, Listener};
use super::tls;
use crate::flow::message::{self, Headers};
use crate::manifest::http_in;
use crate::unit::context::Context;
use crate::unit::status::{State, Unit};

/// Requests one listener works on at once; further ones are answered 503.
pub const REQUESTS_MAX: usize = 4_096;

/// How often an address is tried again that this process has just given up, and the wait between.
const REBINDS_MAX: u32 = 40;
const REBIND_WAIT: Duration = Duration::from_millis(50);

/// One HttpIn unit, resolved.
#[derive(Debug, Clone)]
pub struct Route {
    pub unit: Arc<Unit>,
    /// Why it takes nothing now: answered 503.
    pub suspended: Option<String>,
    /// `host:port`.
    pub listen: String,
    pub tls: Option<tls::Files>,
    pub path: String,
    pub methods: Vec<http_in::Method>,
    /// The subject, without the root.
    pub to: String,
    pub schema: Option<Arc<jsonschema::Validator>>,
    /// `None` when the manifest says nothing: then loopback only.
    pub auth: Option<Auth>,
    pub body_bytes_max: usize,
}

/// Waits that a test or a shutdown plan may set.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// The longest wait for a whole body.
    pub body_max: Duration,
    /// How long requests in flight may take to end after the stop.
    pub drain_max: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Waits { body_max: body::BODY_WAIT_MAX, drain_max: Duration::from_secs(10) }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Server(#[from] server::Error),
    #[error("{unit}: {listen} is reachable from other machines: state `auth` (`none: {{}}` admits anybody)")]
    Unguarded { unit: String, listen: String },
    #[error("{one} and {other} both take {method} {path} on {listen}")]
    SameRoute { one: String, other: String, method: Method, path: String, listen: String },
    #[error("the entrance has ended")]
    Ended,
    #[error("{one} and {other} share {listen} but state different `tls`")]
    MixedTls { one: String, other: String, listen: String },
}

/// All listeners of the HttpIn units, bound and not yet accepting.
#[derive(Debug)]
pub struct Entrance {
    context: Context,
    waits: Waits,
    ids: Arc<message_id::Maker>,
    listening: BTreeMap<String, Listening>,
    changes: mpsc::Receiver<Change>,
    changer: Changer,
}

/// One address.
#[derive(Debug)]
struct Listening {
    /// Until it accepts.
    listener: Option<Listener>,
    address: SocketAddr,
    tls: Option<tls::Files>,
    door: Arc<Door>,
    stopping: CancellationToken,
}

type Change = (Vec<Route>, oneshot::Sender<Result<(), Error>>);

/// Changes what a running [`Entrance`] serves.
#[derive(Debug, Clone)]
pub struct Changer(mpsc::Sender<Change>);

impl Changer {
    /// Serves these routes instead of those before: all of them, or nothing is changed. Requests that are under way are answered
    /// by the route that took them, connections stay open.
    pub async fn change(&self, routes: Vec<Route>) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.0.send((routes, answer)).await.map_err(|_| Error::Ended)?;
        answered.await.map_err(|_| Error::Ended)?
    }
}

impl Entrance {
    /// Binds every address once. Nothing is accepted before [`Entrance::run`]. `seed` is random and makes the message
    /// ids of this process differ from those of any other.
    pub async fn bind(context: Context, routes: Vec<Route>, waits: Waits, seed: u128) -> Result<Self, Error> {
        let (changer, changes) = mpsc::channel(1);
        let mut entrance = Entrance {
            context,
            waits,
            ids: Arc::new(message_id::Maker::new(seed)),
            listening: BTreeMap::new(),
            changes,
            changer: Changer(changer),
        };
        entrance.change(routes).await?;
        Ok(entrance)
    }

    /// Where it listens, in the order of the `listen` texts.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listening.values().map(|one| one.address).collect()
    }

    pub fn changer(&self) -> Changer {
        self.changer.clone()
    }

    /// Everything that can fail is done before anything is changed, except where an address changes its `tls`: only one of the two
    /// can have it.
    async fn change(&mut self, routes: Vec<Route>) -> Result<(), Error> {
        let mut by_address: BTreeMap<String, Vec<Route>> = BTreeMap::new();
        for route in routes {
            by_address.entry(route.listen.clone()).or_default().push(route);
        }
        let mut planned = Vec::with_capacity(by_address.len());
        for (listen, routes) in by_address {
            let tls = common_tls(&listen, &routes)?;
            let open = routes.iter().find(|route| route.auth.is_none()).map(|route| route.unit.id.to_string());
            planned.push((ways(&listen, routes, &self.context)?, tls, open, listen));
        }
        let mut bound = BTreeMap::new();
        for (_, tls, open, listen) in &planned {
            let again = self.listening.get(listen).is_some_and(|known| known.tls != *tls);
            if again && let Some(other) = self.listening.remove(listen) {
                other.stopping.cancel();
            }
            let address = match self.listening.get(listen) {
                Some(known) => known.address,
                None => {
                    let listener = self.listen(listen, tls.as_ref(), again).await?;
                    let address = listener.address();
                    bound.insert(listen.clone(), listener);
                    address
                }
            };
            if let Some(unit) = open
                && !address.ip().is_loopback()
            {
                return Err(Error::Unguarded { unit: unit.clone(), listen: listen.clone() });
            }
        }
        let mut listening = BTreeMap::new();
        for (ways, tls, _, listen) in planned {
            let one = match bound.remove(&listen) {
                Some(listener) => Listening {
                    address: listener.address(),
                    listener: Some(listener),
                    tls,
                    door: self.door(ways),
                    stopping: self.context.stopping.child_token(),
                },
                None => {
                    let one = self.listening.remove(&listen).expect("what was not bound now was bound before");
                    one.door.serve(ways);
                    if one.listener.is_none() {
                        one.door.set_states(State::Running);
                    }
                    one
                }
            };
            listening.insert(listen, one);
        }
        for gone in std::mem::replace(&mut self.listening, listening).into_values() {
            gone.stopping.cancel();
        }
        Ok(())
    }

    /// `again`: the address was ours until now, and is free as soon as its listener has seen the stop.
    async fn listen(&self, listen: &str, tls: Option<&tls::Files>, again: bool) -> Result<Listener, Error> {
        let mut tries = if again { REBINDS_MAX } else { 0 };
        loop {
            match Listener::bind(listen, tls).await {
                Ok(listener) => return Ok(listener),
                Err(server::Error::Bind { .. }) if tries > 0 => {
                    tries -= 1;
                    tokio::time::sleep(REBIND_WAIT).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn door(&self, ways: HashMap<String, Vec<Way>>) -> Arc<Door> {
        Arc::new(Door {
            ways: RwLock::new(Arc::new(ways)),
            context: self.context.clone(),
            stream: self.context.names.messages().into(),
            ids: Arc::clone(&self.ids),
            slots: Semaphore::new(REQUESTS_MAX),
            bodies: Budget::new(body::BODIES_BYTES_MAX),
            body_wait_max: self.waits.body_max,
        })
    }

    /// Serves until the context's stop, then until what is in flight has been answered or the drain time is over.
    pub async fn run(mut self) {
        let stopping = self.context.stopping.clone();
        let mut serving = JoinSet::new();
        self.accept(&mut serving);
        loop {
            tokio::select! {
                () = stopping.cancelled() => break,
                Some(_) = serving.join_next() => {}
                Some((routes, answer)) = self.changes.recv() => {
                    let changed = self.change(routes).await;
                    self.accept(&mut serving);
                    // Who asked may be gone.
                    let _ = answer.send(changed);
                }
            }
        }
        self.set_states(State::Stopping);
        while serving.join_next().await.is_some() {}
        self.set_states(State::Stopped);
    }

    /// Begins to accept where that has not begun.
    fn accept(&mut self, serving: &mut JoinSet<()>) {
        for one in self.listening.values_mut() {
            let Some(listener) = one.listener.take() else { continue };
            tracing::info!(address = %listener.address(), tls = listener.has_tls(), "http-in listens");
            one.door.set_states(State::Running);
            let door = Arc::clone(&one.door);
            let service = service_fn(move |request| {
                let door = Arc::clone(&door);
                async move { Ok::<_, Infallible>(request::answer(&door, request).await) }
            });
            serving.spawn(listener.serve(service, one.stopping.clone(), self.waits.drain_max));
        }
    }

    fn set_states(&self, state: State) {
        self.listening.values().for_each(|one| one.door.set_states(state));
    }
}

fn common_tls(listen: &str, routes: &[Route]) -> Result<Option<tls::Files>, Error> {
    let Some(first) = routes.first() else { return Ok(None) };
    match routes.iter().find(|route| route.tls != first.tls) {
        Some(other) => Err(Error::MixedTls {
            one: first.unit.id.to_string(),
            other: other.unit.id.to_string(),
            listen: listen.to_owned(),
        }),
        None => Ok(first.tls.clone()),
    }
}

fn ways(listen: &str, routes: Vec<Route>, context: &Context) -> Result<HashMap<String, Vec<Way>>, Error> {
    let mut ways: HashMap<String, Vec<Way>> = HashMap::new();
    for route in routes {
        let methods: Vec<Method> = route.methods.iter().copied().map(method).collect();
        let same_path = ways.entry(route.path.clone()).or_default();
        for taken in same_path.iter() {
            if let Some(method) = methods.iter().find(|method| taken.methods.contains(method)) {
                return Err(Error::SameRoute {
                    one: taken.unit.id.to_string(),
                    other: route.unit.id.to_string(),
                    method: method.clone(),
                    path: route.path,
                    listen: listen.to_owned(),
                });
            }
        }
        let unit = route.unit.id.to_string();
        let constant =
            [(message::SOURCE, unit.as_str()), (message::REVISION, route.unit.digest.as_str()), (message::HOP, "0")];
        same_path.push(Way {
            suspended: route.suspended,
            constant: Headers::from_iter(constant),
            subject: context.names.stored(&route.to),
            methods,
            schema: route.schema,
            auth: route.auth.unwrap_or(Auth::Anybody),
            body_bytes_max: route.body_bytes_max,
            seconds: metrics::histogram!("vejas_http_in_request_seconds", "unit" => unit),
            unit: route.unit,
        });
    }
    Ok(ways)
}

fn method(stated: http_in::Method) -> Method {
    match stated {
        http_in::Method::Post => Method::POST,
        http_in::Method::Put => Method::PUT,
        http_in::Method::Patch => Method::PATCH,
    }
}
