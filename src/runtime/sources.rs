//! Sources as units that one member runs.

use std::sync::Arc;

use super::ownership::{self, Owned};
use crate::connectors::interval;
use crate::manifest::connector::interval::Interval;
use crate::protocol::{Class, Role, UnitSpec};
use crate::unit::context::Context;
use crate::unit::status;

/// `digest` in hex digits and publication `no` go into the fence records.
pub fn interval(
    context: &Context,
    line: &Arc<status::Unit>,
    digest: &str,
    stated: &Interval,
    to: &str,
    no: u64,
) -> Result<Owned, interval::slots::Error> {
    // What would fail at every start is told now.
    interval::slots::Schedule::new(stated)?;
    let spec =
        UnitSpec { role: Role::Worker, class: Class::Fenced, fenced: true, no, digest: ownership::digest_of(digest) };
    let (of_task, stated, to) = (context.clone(), stated.clone(), to.to_owned());
    let line_of_task = Arc::clone(line);
    let run = move |tenancy| -> ownership::Task {
        let source = interval::source::Source::new(of_task.clone(), Arc::clone(&line_of_task), &stated, &to, tenancy);
        Box::pin(async move {
            source.map_err(|error| error.to_string())?.run().await;
            Ok(())
        })
    };
    let fence_subject = Some(context.names.fence(&line.id));
    Ok(Owned { spec, fence_subject, line: Some(Arc::clone(line)), run: Arc::new(run) })
}
