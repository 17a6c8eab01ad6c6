//! The entrance: takes requests, stores their bodies as messages, and answers only after the bus has them.
//!
//! This file builds entrances and runs them; `request` has the life of one request. Which listener serves which
//! route is decided here, from the routes alone: secrets, schemas and addresses arrive resolved.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use hyper::Method;
use hyper::service::service_fn;
use tokio::sync::Semaphore;

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

/// One HttpIn unit, resolved.
#[derive(Debug, Clone)]
pub struct Route {
    pub unit: Arc<Unit>,
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
    #[error("{one} and {other} share {listen} but state different `tls`")]
    MixedTls { one: String, other: String, listen: String },
}

/// All listeners of the HttpIn units, bound and not yet accepting.
#[derive(Debug)]
pub struct Entrance {
    context: Context,
    waits: Waits,
    listeners: Vec<(Listener, Arc<Door>)>,
}

impl Entrance {
    /// Binds every address once. Nothing is accepted before [`Entrance::run`]. `seed` is random and makes the message
    /// ids of this process differ from those of any other.
    pub async fn bind(context: Context, routes: Vec<Route>, waits: Waits, seed: u128) -> Result<Self, Error> {
        let ids = Arc::new(message_id::Maker::new(seed));
        let stream: Arc<str> = context.names.messages().into();
        let mut by_address: BTreeMap<String, Vec<Route>> = BTreeMap::new();
        for route in routes {
            by_address.entry(route.listen.clone()).or_default().push(route);
        }
        let mut listeners = Vec::with_capacity(by_address.len());
        for (listen, routes) in by_address {
            let tls = common_tls(&listen, &routes)?;
            let listener = Listener::bind(&listen, tls.as_ref()).await?;
            if let Some(open) = routes.iter().find(|route| route.auth.is_none())
                && !listener.address().ip().is_loopback()
            {
                return Err(Error::Unguarded { unit: open.unit.id.to_string(), listen });
            }
            let door = Arc::new(Door {
                ways: ways(&listen, routes, &context)?,
                context: context.clone(),
                stream: Arc::clone(&stream),
                ids: Arc::clone(&ids),
                slots: Semaphore::new(REQUESTS_MAX),
                bodies: Budget::new(body::BODIES_BYTES_MAX),
                body_wait_max: waits.body_max,
            });
            listeners.push((listener, door));
        }
        Ok(Entrance { context, waits, listeners })
    }

    /// Where it listens, in the order of the `listen` texts.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|(listener, _)| listener.address()).collect()
    }

    /// Serves until the context's stop, then until what is in flight has been answered or the drain time is over.
    pub async fn run(self) {
        let set_states = |doors: &[Arc<Door>], state| {
            for way in doors.iter().flat_map(|door| door.ways.values().flatten()) {
                way.unit.set_state(state, None);
            }
        };
        let doors: Vec<_> = self.listeners.iter().map(|(_, door)| Arc::clone(door)).collect();
        set_states(&doors, State::Running);
        let serving = join_all(self.listeners.into_iter().map(|(listener, door)| {
            tracing::info!(address = %listener.address(), tls = listener.has_tls(), "http-in listens");
            let service = service_fn(move |request| {
                let door = Arc::clone(&door);
                async move { Ok::<_, Infallible>(request::answer(&door, request).await) }
            });
            listener.serve(service, self.context.stopping.clone(), self.waits.drain_max)
        }));
        let stopping = async {
            self.context.stopping.cancelled().await;
            set_states(&doors, State::Stopping);
        };
        futures_util::future::join(serving, stopping).await;
        set_states(&doors, State::Stopped);
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
