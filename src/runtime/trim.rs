//! The chore that makes room: removes what every unit has acknowledged and what is older than the retention age.

use std::time::Duration;

use crate::flow::retention::{Floor, Held, keep_from};
use crate::id::Names;
use crate::ports::bus::Error;
use crate::unit::context::Context;

/// How often there is a look.
const PERIOD: Duration = Duration::from_secs(10);

/// Runs until `context.stopping`. A failure is logged and tried again at the next turn.
pub async fn run(context: Context, retention: Duration) {
    let mut turns = tokio::time::interval(PERIOD);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = context.stopping.cancelled() => return,
            _ = turns.tick() => {}
        }
        match once(&context, retention).await {
            Ok(0) => {}
            Ok(removed) => tracing::debug!(removed, "trimmed"),
            Err(error) => tracing::warn!("trim: {error}"),
        }
    }
}

/// One turn. Answers how many messages went.
pub async fn once(context: &Context, retention: Duration) -> Result<u64, Error> {
    let stream = context.names.messages();
    // The end is noted before any position is read: see `retention::keep_from`.
    let info = context.bus.stream(&stream).await?;
    let floors: Vec<Floor> = context
        .bus
        .durables(&stream)
        .await?
        .into_iter()
        .map(|durable| Floor {
            acknowledged: durable.ack_floor,
            idle: durable.pending == 0 && durable.in_flight == 0 && durable.redelivering == 0,
        })
        .collect();
    let young_from = context.bus.sequence_at(&stream, context.clock.now().minus(retention)).await?;
    let held = Held { last: info.last, young_from, bytes: info.bytes, bytes_max: info.config.bytes_max };
    let keep = keep_from(held, floors);
    if keep <= info.first {
        return Ok(0);
    }
    context.bus.trim(&stream, keep, &kept_for_ever(&context.names)).await
}

/// Subjects whose newest message is state, not traffic.
fn kept_for_ever(names: &Names) -> Vec<String> {
    names.message_subjects().into_iter().filter(|subject| subject.ends_with("own.>")).collect()
}
