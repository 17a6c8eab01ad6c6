//! The chore that makes room: removes what every unit has acknowledged and what is older than the retention age.
//!
//! It removes from the front, up to the slowest unit. When bytes are short that is not enough: a single unit that cannot go on
//! because the stream is full would keep the front, and so the stream full, for ever. Then messages behind it go as well,
//! each once the units that read *its* subject have acknowledged it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::ownership::Owned;
use crate::flow::retention::{Floor, Held, is_short, keep_from};
use crate::id::{Names, subject_matches};
use crate::ports::bus::{DurableInfo, Error, StreamInfo};
use crate::protocol::Role;
use crate::unit::context::Context;
use crate::unit::tenancy::Tenancy;

/// How often there is a whole turn when there is room.
const PERIOD: Duration = Duration::from_secs(10);
/// How often there is a look whether there is room.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// Messages looked at together.
const PAGE_MESSAGES: usize = 1_000;
/// Messages looked at behind the front in one turn.
const SWEPT_MAX: usize = 100_000;

/// What one turn came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    pub removed: u64,
    /// The stream still has little room.
    pub short: bool,
}

/// The chore, for whichever instance owns it.
pub fn chore(context: Context, retention: Duration) -> Owned {
    Owned::exclusive(
        Role::Worker,
        Arc::new(move |tenancy| {
            let context = context.clone();
            Box::pin(async move {
                run(&context, retention, tenancy).await;
                Ok(())
            })
        }),
    )
}

/// Runs until the holding is over. A failure is logged and tried again later.
async fn run(context: &Context, retention: Duration, mut tenancy: Tenancy) {
    let stream = context.names.messages();
    let mut next_turn = context.clock.monotonic();
    while tenancy.permitted().await {
        tenancy.progress();
        // A look costs one short lock; without it a small stream would be full most of the time.
        if tenancy.stopping.run_until_cancelled(tokio::time::sleep(LOOK_PERIOD)).await.is_none() {
            return;
        }
        let now = context.clock.monotonic();
        let short = context.bus.stream(&stream).await.is_ok_and(|info| has_little_room(&info));
        if !short && now < next_turn {
            continue;
        }
        next_turn = now + PERIOD;
        let turn = once(context, retention);
        tokio::pin!(turn);
        let mut alive = tokio::time::interval(LOOK_PERIOD);
        let turn = loop {
            // Two that trim at once remove the same: a turn that takes long may end late.
            tokio::select! {
                turn = &mut turn => break turn,
                _ = alive.tick() => tenancy.progress(),
                () = tenancy.stopping.cancelled() => return,
            }
        };
        match turn {
            Ok(turn) if turn.removed > 0 => tracing::debug!(removed = turn.removed, "trimmed"),
            Ok(_) => {}
            Err(error) => tracing::warn!("trim: {error}"),
        }
    }
}

fn has_little_room(info: &StreamInfo) -> bool {
    info.refuses.is_some() || is_short(info.bytes, info.config.bytes_max)
}

/// One turn.
pub async fn once(context: &Context, retention: Duration) -> Result<Turn, Error> {
    let stream = context.names.messages();
    // The end is noted before any position is read: see `retention::keep_from`.
    let info = context.bus.stream(&stream).await?;
    let durables = context.bus.durables(&stream).await?;
    let young_from = context.bus.sequence_at(&stream, context.clock.now().minus(retention)).await?;
    let held = Held { last: info.last, young_from, short: has_little_room(&info) };
    let keep = keep_from(held, durables.iter().map(floor));
    let mut removed = 0;
    if keep > info.first {
        removed += context.bus.trim(&stream, keep, &kept_for_ever(&context.names)).await?;
    }
    let info = context.bus.stream(&stream).await?;
    let mut short = has_little_room(&info);
    if short {
        removed += sweep(context, &stream, keep.max(info.first), held.last, &durables).await?;
        let info = context.bus.stream(&stream).await?;
        short = has_little_room(&info);
    }
    Ok(Turn { removed, short })
}

fn floor(durable: &DurableInfo) -> Floor {
    let idle = durable.pending == 0 && durable.in_flight == 0 && durable.redelivering == 0;
    Floor { acknowledged: durable.ack_floor, idle }
}

/// Removes what lies behind the front and is acknowledged by all who read it.
async fn sweep(context: &Context, stream: &str, first: u64, last: u64, durables: &[DurableInfo]) -> Result<u64, Error> {
    let for_ever = kept_for_ever(&context.names);
    let mut done_by_subject: HashMap<String, u64> = HashMap::new();
    let (mut from, mut looked_at, mut removed) = (first, 0, 0);
    while from <= last && looked_at < SWEPT_MAX {
        let page = context.bus.read(stream, from, &[], PAGE_MESSAGES).await?;
        let Some(end) = page.last() else { break };
        from = end.sequence + 1;
        looked_at += page.len();
        let gone: Vec<u64> = page
            .iter()
            .filter(|message| message.sequence <= last)
            .filter(|message| {
                let done = done_by_subject
                    .entry(message.subject.clone())
                    .or_insert_with(|| done(&message.subject, last, durables, &for_ever));
                message.sequence <= *done
            })
            .map(|message| message.sequence)
            .collect();
        removed += context.bus.remove(stream, &gone).await?;
    }
    Ok(removed)
}

/// Up to where a subject's messages are acknowledged by all who read it.
fn done(subject: &str, last: u64, durables: &[DurableInfo], for_ever: &[String]) -> u64 {
    if for_ever.iter().any(|kept| subject_matches(kept, subject)) {
        return 0;
    }
    let reads = |durable: &&DurableInfo| durable.config.filters.iter().any(|filter| subject_matches(filter, subject));
    let floors = durables.iter().filter(reads).map(floor);
    floors.map(|floor| if floor.idle { last } else { floor.acknowledged }).fold(last, u64::min)
}

/// Subjects whose newest message is state, not traffic.
fn kept_for_ever(names: &Names) -> Vec<String> {
    names.message_subjects().into_iter().filter(|subject| subject.ends_with("own.>")).collect()
}
