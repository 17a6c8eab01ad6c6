//! From checked manifests to running units.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::config::Config;
use super::durables::Durables;
use super::load::{Loaded, LoadedUnit};
use super::settings::Settings;
use super::{flow_worker, ingress, sink_units, sink_worker, streams};
use crate::connectors::http::source::Entrance;
use crate::connectors::interval;
use crate::id::{UnitId, UnitKind};
use crate::manifest::Spec;
use crate::manifest::check::LeftOut;
use crate::manifest::flow::Flow;
use crate::manifest::source::Source;
use crate::ports::bus;
use crate::transforms;
use crate::unit::context::Context;
use crate::unit::status::{self, Registry, State};

/// Deliveries of a flow that may be unacknowledged at once.
const IN_FLIGHT_MAX: usize = 4_096;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{unit}: {source}")]
    Bus { unit: UnitId, source: bus::Error },
    #[error("durables: {0}")]
    Durables(bus::Error),
    #[error(transparent)]
    Build(#[from] transforms::BuildError),
    #[error("{unit}: {reason}")]
    Unit { unit: UnitId, reason: String },
    #[error("{0} (`listen` of an HttpIn, or VEJAS_INGRESS_ADDR, says where entrances listen)")]
    Entrance(#[from] crate::connectors::http::source::Error),
}

/// Everything that is about to run. All its durables exist.
pub struct Units {
    context: Context,
    messages_bytes_max: u64,
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
            messages_bytes_max: config.messages_bytes_max,
            flows: Vec::new(),
            sinks: Vec::new(),
            intervals: Vec::new(),
            entrance: None,
        };
        let settings =
            Settings::new(Arc::clone(&config.environment), config.settings_base(), config.secrets_dir.clone());
        let entering = Context { stopping: entrances.clone(), ..context.clone() };
        let mut durables = Durables::read(context).await?;
        let mut routes = Vec::new();
        for one in &loaded.units {
            let unit = registry.add(one.id.clone(), &one.digest, one.declared.clone());
            match &one.manifest.spec {
                Spec::Flow(flow) => {
                    let ready = units.flow(one, flow, loaded, &mut durables, Arc::clone(&unit)).await?;
                    units.flows.push(ready);
                }
                Spec::Sink(sink) => {
                    let connector = sink_units::connect(one, sink, context, &settings);
                    let in_flight = connector.as_ref().map_or(IN_FLIGHT_MAX, |connector| {
                        sink_worker::in_flight_max(&connector.delivering(), sink.order_by.is_some())
                    });
                    // Also for a sink that cannot run: what comes meanwhile waits for it.
                    let durable = durables.of_unit(&one.id, &sink.from, sink.start_from, in_flight).await?;
                    unit.set_durable(durable.clone());
                    if let Some(connector) = units.or_leave_out(connector, &unit, config)? {
                        let ready = sink_units::build(one, sink, connector, durable, config, Arc::clone(&unit))?;
                        units.sinks.push(ready);
                    }
                }
                Spec::HttpIn(entrance) => {
                    let route = ingress::route(one, entrance, config, &settings, loaded, Arc::clone(&unit));
                    routes.extend(units.or_leave_out(route, &unit, config)?);
                }
                Spec::Source(Source { interval: Some(stated), to }) => {
                    let source = interval::source::Source::new(entering.clone(), unit, stated, to.as_str())
                        .map_err(|error| Error::Unit { unit: one.id.clone(), reason: error.to_string() })?;
                    units.intervals.push((one.id.clone(), source));
                }
                Spec::Source(_) | Spec::Table(_) | Spec::Schema(_) | Spec::Test(_) => {}
            }
        }
        for one in &loaded.left_out {
            units.leave_out(one, &mut durables, registry).await?;
        }
        for (durable, waiting) in durables.without_unit() {
            // They wait until the unit returns, and keep their room.
            tracing::warn!(
                durable,
                waiting,
                "no manifest declares the unit of this durable any more; its messages wait"
            );
        }
        if !routes.is_empty() {
            units.entrance = Some(ingress::bind(entering, routes, config).await?);
        }
        Ok(units)
    }

    /// A unit whose settings cannot be resolved is shown as failed and left out; the others run. `strict` stops the start.
    fn or_leave_out<T>(
        &self,
        made: Result<T, Error>,
        unit: &status::Unit,
        config: &Config,
    ) -> Result<Option<T>, Error> {
        match made {
            Ok(made) => Ok(Some(made)),
            Err(Error::Unit { reason, .. }) if !config.strict => {
                tracing::error!(unit = %unit.id, declared = unit.declared, "cannot run: {reason}");
                unit.set_error("settings", &reason, self.context.clock.now());
                unit.set_state(State::Failed, Some(reason));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn flow(
        &self,
        one: &LoadedUnit,
        flow: &Flow,
        loaded: &Loaded,
        durables: &mut Durables,
        unit: Arc<status::Unit>,
    ) -> Result<flow_worker::FlowUnit, Error> {
        let durable = durables.of_unit(&one.id, &flow.from, flow.start_from, IN_FLIGHT_MAX).await?;
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
            message_bytes_max: streams::message_bytes_max(self.messages_bytes_max),
            unit,
        })
    }

    /// Shows a unit that an error keeps from running. What it would read waits for it.
    async fn leave_out(&self, one: &LeftOut, durables: &mut Durables, registry: &Registry) -> Result<(), Error> {
        if registry.get(&one.id).is_some() {
            return Ok(());
        }
        let unit = registry.add(one.id.clone(), &[0; 32], format!("{}:{}", one.file.display(), one.line));
        tracing::error!(unit = %unit.id, declared = unit.declared, "left out: {}", one.reason);
        unit.set_error("manifest", &one.reason, self.context.clock.now());
        unit.set_state(State::Failed, Some(one.reason.clone()));
        if let Some((from, start)) = &one.reads {
            unit.set_durable(durables.of_unit(&one.id, from, *start, IN_FLIGHT_MAX).await?);
        }
        Ok(())
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
