//! What brings messages: sources and entrances. They change only after every reader has its place.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::timeout;

use super::{Change, Error, SOURCE_STOP_MAX, Units, why};
use crate::id::{UnitId, UnitKind};
use crate::manifest::Spec;
use crate::manifest::source::Source;
use crate::protocol::publish::Head;
use crate::runtime::load::LoadedUnit;
use crate::runtime::{ingress, ownership, sources};
use crate::unit::context::Context;
use crate::unit::status::{self, State};

impl Units {
    pub(super) async fn change_sources(
        &mut self,
        wanted: &BTreeMap<UnitId, Arc<LoadedUnit>>,
        change: &Change,
        head: &Head,
    ) -> Result<(), Error> {
        for id in &change.removed {
            self.owned.remove(&ownership::unit_of(id));
        }
        for (id, unit) in wanted.iter().filter(|(id, _)| id.kind == UnitKind::Sink) {
            let ordered = matches!(&unit.manifest.spec, Spec::Sink(sink) if sink.order_by.is_some());
            match (self.readers.get(id), self.shared.registry.get(id)) {
                (Some(reader), Some(line)) if ordered => {
                    self.owned.insert(ownership::unit_of(id), reader.owned(line));
                }
                _ => _ = self.owned.remove(&ownership::unit_of(id)),
            }
        }
        for (id, unit) in change.added.iter().chain(&change.changed).filter_map(|id| Some((id, wanted.get(id)?))) {
            let Spec::Source(Source { interval: Some(stated), to }) = &unit.manifest.spec else { continue };
            let Some(line) = self.shared.registry.get(id) else { continue };
            if let Some(suspension) = head.suspension(&id.to_string()) {
                self.owned.remove(&ownership::unit_of(id));
                line.set_state(State::Suspended, Some(why(suspension)));
                continue;
            }
            match sources::interval(&self.shared.context, &line, &unit.digest, stated, to.as_str(), change.no) {
                Ok(owned) => _ = self.owned.insert(ownership::unit_of(id), owned),
                Err(error) => self.fail(&line, &error.to_string())?,
            }
        }
        if timeout(SOURCE_STOP_MAX, self.ownership.units(self.owned.clone())).await.is_err() {
            tracing::warn!("a source does not stop in time");
        }
        self.ownership.applied(change.no).await;
        Ok(())
    }

    pub(super) async fn change_entrance(
        &mut self,
        wanted: &BTreeMap<UnitId, Arc<LoadedUnit>>,
        change: &Change,
        head: &Head,
    ) -> Result<(), Error> {
        let touched = change.added.iter().chain(&change.changed).chain(&change.removed);
        if !touched.into_iter().any(|id| id.kind == UnitKind::HttpIn) {
            return Ok(());
        }
        let mut units = self.routes.clone();
        units.retain(|id, _| !change.removed.contains(id));
        units.extend(
            wanted
                .iter()
                .filter(|(id, _)| id.kind == UnitKind::HttpIn)
                .map(|(id, unit)| (id.clone(), Arc::clone(unit))),
        );
        let mut routes = Vec::new();
        for (id, unit) in &units {
            let (Spec::HttpIn(stated), Some(line)) = (&unit.manifest.spec, self.shared.registry.get(id)) else {
                continue;
            };
            let config = &self.shared.config;
            let suspended = head.suspension(&id.to_string()).map(why);
            match ingress::route(unit, stated, config, &self.shared.settings, Arc::clone(&line), suspended) {
                Ok(route) => routes.push(route),
                Err(Error::Unit { reason, .. }) => self.fail(&line, &reason)?,
                Err(error) => return Err(error),
            }
        }
        self.routes = units;
        if let Some(changer) = &self.changer {
            return Ok(changer.change(routes).await?);
        }
        if routes.is_empty() {
            return Ok(());
        }
        let context = Context { stopping: self.entrances.clone(), ..self.shared.context.clone() };
        let stopping = self.entrances.clone();
        let entrance = ingress::bind(context, routes, &self.shared.config).await?;
        self.changer = Some(entrance.changer());
        self.bringing.spawn(async move {
            entrance.run().await;
            let ended = if stopping.is_cancelled() { Ok(()) } else { Err("it ended by itself".to_owned()) };
            (UnitId::new(UnitKind::HttpIn, "*"), ended)
        });
        Ok(())
    }

    /// A unit that cannot run is shown as failed; the others run. `strict` stops the start.
    fn fail(&self, unit: &status::Unit, reason: &str) -> Result<(), Error> {
        if self.shared.config.strict {
            return Err(Error::Unit { unit: unit.id.clone(), reason: reason.to_owned() });
        }
        tracing::error!(unit = %unit.id, declared = unit.declared, "cannot run: {reason}");
        self.show_failed(&unit.id, reason);
        Ok(())
    }
}
