//! From checked manifests to running units.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::config::{Config, MESSAGE_BYTES_MAX};
use super::load::{Loaded, LoadedUnit};
use super::settings::Settings;
use super::{flow_worker, ingress, sink_units, sink_worker};
use crate::connectors::http::source::Entrance;
use crate::connectors::interval;
use crate::id::{UnitId, UnitKind};
use crate::manifest::Spec;
use crate::manifest::flow::Flow;
use crate::manifest::source::Source;
use crate::manifest::value::{OneOrMany, Pattern, StartFrom};
use crate::ports::bus::{self, Durable, DurableConfig, Start};
use crate::transforms;
use crate::unit::context::Context;
use crate::unit::status::{self, Registry};

/// Deliveries of one durable that may be unacknowledged at once.
pub(super) const IN_FLIGHT_MAX: usize = 4_096;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{unit}: {source}")]
    Bus { unit: UnitId, source: bus::Error },
    #[error(transparent)]
    Build(#[from] transforms::BuildError),
    #[error("{unit}: {reason}")]
    Unit { unit: UnitId, reason: String },
    #[error("{0}")]
    Entrance(#[from] crate::connectors::http::source::Error),
}

/// Everything that is about to run. All its durables exist.
pub struct Units {
    context: Context,
    flows: Vec<flow_worker::FlowUnit>,
    sinks: Vec<sink_worker::SinkUnit>,
    intervals: Vec<(UnitId, interval::source::Source)>,
    entrance: Option<Entrance>,
}

type Ended = (UnitId, Result<(), String>);

/// Everything that runs.
pub struct Running {
    sources: JoinSet<Ended>,
    workers: JoinSet<Ended>,
}

impl Units {
    /// Makes the durables, compiles the pipelines, opens the listeners. Nothing moves yet.
    pub async fn build(
        loaded: &Loaded,
        context: &Context,
        config: &Arc<Config>,
        registry: &Arc<Registry>,
        entrances: &CancellationToken,
    ) -> Result<Self, Error> {
        let mut units = Units {
            context: context.clone(),
            flows: Vec::new(),
            sinks: Vec::new(),
            intervals: Vec::new(),
            entrance: None,
        };
        let settings =
            Settings::new(Arc::clone(&config.environment), config.settings_base(), config.secrets_dir.clone());
        let entering = Context { stopping: entrances.clone(), ..context.clone() };
        let mut routes = Vec::new();
        for one in &loaded.units {
            let unit = registry.add(one.id.clone(), &one.digest, one.declared.clone());
            match &one.manifest.spec {
                Spec::Flow(flow) => {
                    let ready = units.flow(one, flow, loaded, Arc::clone(&unit)).await?;
                    units.flows.push(ready);
                }
                Spec::Sink(sink) => {
                    let durable = units.durable(&one.id, &sink.from, sink.start_from).await?;
                    unit.set_durable(durable.clone());
                    let ready = sink_units::build(one, sink, durable, context, config, &settings, Arc::clone(&unit))?;
                    units.sinks.push(ready);
                }
                Spec::HttpIn(entrance) => {
                    routes.push(ingress::route(one, entrance, config, &settings, loaded, Arc::clone(&unit))?);
                }
                Spec::Source(Source { interval: Some(stated), to }) => {
                    let source = interval::source::Source::new(entering.clone(), unit, stated, to.as_str())
                        .map_err(|error| Error::Unit { unit: one.id.clone(), reason: error.to_string() })?;
                    units.intervals.push((one.id.clone(), source));
                }
                Spec::Source(_) | Spec::Table(_) | Spec::Schema(_) | Spec::Test(_) => {}
            }
        }
        if !routes.is_empty() {
            units.entrance = Some(ingress::bind(entering, routes, config).await?);
        }
        Ok(units)
    }

    async fn flow(
        &self,
        one: &LoadedUnit,
        flow: &Flow,
        loaded: &Loaded,
        unit: Arc<status::Unit>,
    ) -> Result<flow_worker::FlowUnit, Error> {
        let durable = self.durable(&one.id, &flow.from, flow.start_from).await?;
        unit.set_durable(durable.clone());
        let parts = transforms::Parts {
            unit: one.id.clone(),
            names: &self.context.names,
            programs: &one.programs,
            tables: &loaded.tables,
            validators: &loaded.validators,
            locate: Arc::clone(&one.locate),
        };
        Ok(flow_worker::FlowUnit {
            id: one.id.clone(),
            digest: unit.digest.clone(),
            pipeline: Arc::new(transforms::build(flow, &parts)?),
            durable,
            message_bytes_max: MESSAGE_BYTES_MAX,
            unit,
        })
    }

    /// The durable of a unit: made when the unit is new, found otherwise.
    async fn durable(&self, id: &UnitId, from: &OneOrMany<Pattern>, start: StartFrom) -> Result<Durable, Error> {
        let names = &self.context.names;
        let mut filters: Vec<String> = from.as_slice().iter().map(|pattern| names.stored(pattern.as_str())).collect();
        filters.push(names.replay(id));
        filters.sort();
        filters.dedup();
        let config = DurableConfig {
            name: id.durable(1),
            filters,
            start: match start {
                StartFrom::End => Start::End,
                StartFrom::First => Start::First,
                StartFrom::Sequence(sequence) => Start::Sequence(sequence),
                StartFrom::Time(time) => Start::Time(time),
            },
            ack_wait: flow_worker::ACK_WAIT,
            in_flight_max: IN_FLIGHT_MAX,
        };
        let made = self.context.bus.ensure_durable(&names.messages(), config).await;
        made.map_err(|source| Error::Bus { unit: id.clone(), source })
    }

    /// Readers first, then what brings messages.
    pub fn start(self) -> Running {
        let mut running = Running { sources: JoinSet::new(), workers: JoinSet::new() };
        for sink in self.sinks {
            let (context, id) = (self.context.clone(), sink.id.clone());
            running.workers.spawn(async move {
                let ended = sink_worker::run(context, sink).await;
                (id, ended.map_err(|error| error.to_string()))
            });
        }
        for flow in self.flows {
            let (context, id) = (self.context.clone(), flow.id.clone());
            running.workers.spawn(async move {
                let ended = flow_worker::run(context, flow).await;
                (id, ended.map_err(|error| error.to_string()))
            });
        }
        for (id, source) in self.intervals {
            running.sources.spawn(async move { (id, source.run().await.map_err(|error| error.to_string())) });
        }
        if let Some(entrance) = self.entrance {
            running.sources.spawn(async move {
                entrance.run().await;
                (UnitId::new(UnitKind::HttpIn, "*"), Ok(()))
            });
        }
        running
    }
}

impl Running {
    /// Completes when a unit ends that nobody told to end.
    pub async fn failed(&mut self) -> String {
        let ended = tokio::select! {
            Some(ended) = self.sources.join_next() => ended,
            Some(ended) = self.workers.join_next() => ended,
            // Nothing runs at all, such as an empty folder: then nothing can fail.
            else => std::future::pending().await,
        };
        match ended {
            Ok((unit, Ok(()))) => format!("{unit} ended by itself"),
            Ok((unit, Err(error))) => format!("{unit}: {error}"),
            Err(panic) => format!("a unit broke off: {panic}"),
        }
    }

    pub async fn entrances_ended(&mut self) {
        all_ended(&mut self.sources).await;
    }

    pub async fn workers_ended(&mut self) {
        all_ended(&mut self.workers).await;
    }
}

async fn all_ended(tasks: &mut JoinSet<Ended>) {
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok((unit, Err(error))) => tracing::warn!(%unit, "{error}"),
            Ok((_, Ok(()))) => {}
            Err(panic) => tracing::error!("a unit broke off: {panic}"),
        }
    }
}
