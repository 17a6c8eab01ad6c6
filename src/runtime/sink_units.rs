//! From Sink manifests to sinks that run: connectors opened, settings resolved.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::config::Config;
use super::load::LoadedUnit;
use super::parts::{ACK_WAIT, UnitParts};
use super::settings::Settings;
use super::sink_worker::{OrderBy, SinkUnit};
use super::units::Error;
use crate::connectors::file::sink::FileSink;
use crate::connectors::http::sink::HttpSink;
use crate::connectors::stdout::sink::StdoutSink;
use crate::flow::breaker;
use crate::flow::failure::Failure;
use crate::flow::message::Stored;
use crate::manifest::sink::Sink;
use crate::ports;
use crate::transforms::Ordering;
use crate::unit::context::Context;
use crate::unit::status;

/// Opens the connector. What its durable has to allow depends on it.
pub(super) fn connect(
    one: &LoadedUnit,
    sink: &Sink,
    context: &Context,
    settings: &Settings,
) -> Result<Arc<dyn ports::sink::Sink>, Error> {
    connector(one, sink, context, settings).map_err(|reason| Error::Unit { unit: one.id.clone(), reason })
}

/// Everything but the durable and the former versions.
pub(super) fn build(
    one: &LoadedUnit,
    sink: &Sink,
    connector: Arc<dyn ports::sink::Sink>,
    parts: Arc<UnitParts>,
    config: &Config,
    unit: Arc<status::Unit>,
) -> Result<SinkUnit, Error> {
    let order_by = match &sink.order_by {
        Some(expression) => Some(order_by(Ordering::build(
            &one.id,
            &expression.0,
            one.programs.get("orderBy").map(Arc::clone),
            Arc::clone(&one.locate),
        )?)),
        None => None,
    };
    Ok(SinkUnit {
        id: one.id.clone(),
        digest: one.digest.clone(),
        sink: connector,
        number: parts.current().map_or(1, |run| run.last().durable),
        parts,
        former: BTreeMap::new(),
        ack_wait: ACK_WAIT,
        retry: sink.retry.clone(),
        order_by,
        breaker: sink.http.as_ref().map(|http| breaker::Settings::from(&http.breaker)).unwrap_or_default(),
        unit,
        jitter: Arc::clone(&config.jitter),
        drain_max: config.drain,
        gate: None,
    })
}

fn connector(
    one: &LoadedUnit,
    sink: &Sink,
    context: &Context,
    settings: &Settings,
) -> Result<Arc<dyn ports::sink::Sink>, String> {
    let resolve = |setting: &_| settings.resolve(setting);
    if let Some(http) = &sink.http {
        let certificates = http.ca.as_ref().map(|path| settings.certificates(path)).transpose();
        let certificates = certificates.map_err(|error| error.to_string())?;
        let clock = Arc::clone(&context.clock);
        let opened = HttpSink::open(&one.id, http, &resolve, certificates.as_deref(), clock);
        return opened.map(|sink| Arc::new(sink) as _).map_err(|error| error.to_string());
    }
    if let Some(file) = &sink.file {
        let opened = FileSink::open(&one.id, file, &resolve, &context.names, Arc::clone(&context.clock));
        return opened.map(|sink| Arc::new(sink) as _).map_err(|error| error.to_string());
    }
    let stated = sink.stdout.clone().unwrap_or_default();
    Ok(Arc::new(StdoutSink::open(&stated, &context.names)))
}

fn order_by(ordering: Ordering) -> OrderBy {
    Arc::new(move |message: &Stored| -> Result<String, Failure> { ordering.key(message) })
}
