//! The listener of the API.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use hyper_util::service::TowerToHyperService;
use tokio_util::sync::CancellationToken;

use super::access::{self, Tokens};
use super::routes::{self, Route};
use super::{Told, status};
use crate::connectors::http::server::{self, Listener};
use crate::connectors::http::tls;
use crate::unit::rates::SAMPLE_PERIOD;

/// How long answers under way may take when the process ends.
const DRAIN_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub struct Options {
    /// `host:port`; DESIGN's default is `127.0.0.1:8686`.
    pub address: String,
    pub tls: Option<tls::Files>,
    pub tokens: Tokens,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Listener(#[from] server::Error),
    #[error(
        "the API would listen on {0}, reachable from other machines, without a token: set VEJAS_TOKEN (and VEJAS_READ_TOKEN), or listen on 127.0.0.1"
    )]
    Unguarded(SocketAddr),
}

/// The API, bound and not yet accepting.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    router: Router,
    told: Told,
}

impl Server {
    pub async fn bind(told: Told, options: Options) -> Result<Self, Error> {
        let listener = Listener::bind(&options.address, options.tls.as_ref()).await?;
        if !listener.address().ip().is_loopback() && !options.tokens.are_set() {
            return Err(Error::Unguarded(listener.address()));
        }
        Ok(Server { listener, router: router(told.clone(), options.tokens), told })
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Serves until `ended`. That comes after the drain: health and status are asked for most while a process drains.
    pub async fn run(self, ended: CancellationToken) {
        tracing::info!(address = %self.listener.address(), tls = self.listener.has_tls(), "API listens");
        tokio::select! {
            () = self.listener.serve(TowerToHyperService::new(self.router), ended, DRAIN_MAX) => {}
            () = sample(&self.told) => {}
        }
    }
}

/// Samples the counters of all units, so that rates can be told. Never ends.
async fn sample(told: &Told) {
    let mut turns = tokio::time::interval(SAMPLE_PERIOD);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        told.registry.sample(told.clock.monotonic());
    }
}

fn router(told: Told, tokens: Tokens) -> Router {
    let with = |routes: Vec<Route>| {
        routes.into_iter().fold(Router::new(), |router, route| router.route(route.path, route.service))
    };
    let guarded = with(routes::guarded())
        .fallback(status::no_such_path)
        .method_not_allowed_fallback(status::no_such_method)
        // After the routes and the fallbacks, so that it covers both: a stranger learns no paths.
        .layer(from_fn_with_state(tokens, access::guard));
    guarded.merge(with(routes::open())).with_state(told)
}
