//! How far units are behind, asked of the bus.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::timeout;

use super::view::Lag;
use crate::ports::bus::{Bus, DurableInfo};
use crate::time::Timestamp;
use crate::unit::status::Unit;

/// Questions to the bus at once.
const ASKED_MAX: usize = 32;
/// The longest wait for one answer; a status that hangs is worse than one with a gap.
pub(super) const ASK_WAIT_MAX: Duration = Duration::from_secs(2);

/// One entry per unit; `None` when it reads nothing or the bus did not tell.
pub(super) async fn of_units(bus: &Arc<dyn Bus>, units: &[Arc<Unit>], now: Timestamp) -> Vec<Option<Lag>> {
    stream::iter(units.iter().cloned())
        .map(|unit| of_unit(Arc::clone(bus), unit, now))
        .buffered(ASKED_MAX)
        .collect()
        .await
}

pub(super) async fn of_unit(bus: Arc<dyn Bus>, unit: Arc<Unit>, now: Timestamp) -> Option<Lag> {
    let durable = unit.durable()?;
    let info = timeout(ASK_WAIT_MAX, bus.durable(&durable)).await.ok()?.ok()?;
    Some(lag(&info, now))
}

fn lag(info: &DurableInfo, now: Timestamp) -> Lag {
    Lag {
        pending: info.pending,
        in_flight: info.in_flight as u64,
        redelivering: info.redelivering as u64,
        oldest_seconds: info.oldest_unacknowledged.map(|stored| now.since(stored).as_secs_f64()),
    }
}
