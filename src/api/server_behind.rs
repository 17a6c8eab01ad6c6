//! The server behind the bus: which one, and how much its word is worth.

use std::time::Duration;

use serde_json::Value;

use super::{Told, view};
use crate::bus::nats::State;

/// How long the server's monitoring may take to answer.
const MONITOR_WAIT: Duration = Duration::from_millis(800);
/// Bytes of its answer that are read at most.
const MONITOR_BYTES_MAX: usize = 1 << 20;

pub(super) async fn look(told: &Told) -> Option<view::Server> {
    let state = told.server.as_ref()?.borrow().clone();
    let sync = match &told.monitor {
        Some(monitor) => sync(monitor).await,
        None => None,
    };
    let replicas = told.replicas;
    Some(match state {
        State::Connected { since, server } => view::Server {
            connected: true,
            since: since.to_string(),
            reason: None,
            address: Some(server.address),
            version: Some(server.version),
            replicas,
            sync,
        },
        State::Lost { since, reason } => view::Server {
            connected: false,
            since: since.to_string(),
            reason: Some(reason),
            address: None,
            version: None,
            replicas,
            sync,
        },
    })
}

/// What a person should know: the embedded bus syncs before it acknowledges.
pub(super) fn warnings(server: &view::Server) -> Vec<String> {
    let mut warnings = Vec::new();
    if !server.connected {
        warnings.push(format!("the bus is away: {}", server.reason.as_deref().unwrap_or("no reason given")));
    }
    match (server.replicas, server.sync.as_deref()) {
        (1, Some("always")) | (2.., _) => {}
        (_, Some(period)) => warnings.push(format!(
            "the server writes through to its disk every {period} and keeps one copy: a crash of its machine can lose what was \
             acknowledged since (set `sync_interval: always`, or VEJAS_REPLICAS=3)"
        )),
        (_, None) => warnings.push(
            "one copy on the server, and when it writes through to its disk is not known: unless it is set to `sync_interval: always`, \
             a crash of its machine can lose what was acknowledged (VEJAS_NATS_MONITOR lets this be checked)"
                .to_owned(),
        ),
    }
    warnings
}

async fn sync(monitor: &str) -> Option<String> {
    // Fails when the process has a provider already, and then there is nothing to do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().timeout(MONITOR_WAIT).no_proxy().build().ok()?;
    let answer = client.get(format!("{}/varz", monitor.trim_end_matches('/'))).send().await.ok()?;
    let bytes = answer.bytes().await.ok().filter(|bytes| bytes.len() <= MONITOR_BYTES_MAX)?;
    let varz: Value = serde_json::from_slice(&bytes).ok()?;
    let config = &varz["jetstream"]["config"];
    if config["sync_always"].as_bool() == Some(true) {
        return Some("always".to_owned());
    }
    let nanos = config["sync_interval"].as_u64()?;
    Some(humantime::format_duration(Duration::from_nanos(nanos)).to_string())
}
