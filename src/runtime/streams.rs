//! The streams and buckets an installation has, and their limits.

use std::time::Duration;

use super::config::{Config, DEAD_LETTER_HEADROOM_BYTES, DUPLICATE_WINDOW, MESSAGE_BYTES_MAX};
use crate::id::Names;
use crate::ports::bus::{Bus, Error, SETTLEMENT_RESERVE_PERCENT, StreamConfig, StreamInfo};
use crate::ports::store::Store;

/// About a million publications.
const AUDIT_BYTES_MAX: u64 = 1 << 30;
const AUDIT_MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Tries while nobody answers. Of several servers, those that hold a stream which was made a moment ago choose its leader first.
const TRIES_MAX: u32 = 4;
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Makes or checks everything units need before they start.
pub async fn ensure(bus: &dyn Bus, store: &dyn Store, config: &Config) -> Result<(), Error> {
    let mut tries = 1;
    loop {
        match ensure_all(bus, store, config).await {
            Err(error) if error.is_retryable() && tries < TRIES_MAX => {
                tracing::warn!("streams and buckets are not there yet: {error}");
                tries += 1;
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            ensured => return ensured,
        }
    }
}

async fn ensure_all(bus: &dyn Bus, store: &dyn Store, config: &Config) -> Result<(), Error> {
    let names = &config.names;
    let message_bytes_max = config.message_bytes_max();
    let messages = messages(names, config.messages_bytes_max);
    bus.ensure_stream(StreamConfig { message_bytes_max, ..messages }).await?;
    bus.ensure_stream(StreamConfig {
        name: names.dead_letters(),
        subjects: names.dead_letter_subjects(),
        bytes_max: config.dead_letters_bytes_max,
        message_bytes_max: MESSAGE_BYTES_MAX.min(config.bus_message_bytes_max) + DEAD_LETTER_HEADROOM_BYTES,
        duplicate_window: DUPLICATE_WINDOW,
    })
    .await?;
    bus.ensure_stream(StreamConfig {
        name: names.audit(),
        subjects: names.audit_subjects(),
        bytes_max: AUDIT_BYTES_MAX,
        message_bytes_max: AUDIT_MESSAGE_BYTES_MAX.min(config.bus_message_bytes_max),
        duplicate_window: DUPLICATE_WINDOW,
    })
    .await?;
    store.ensure_bucket(&names.dedupe_bucket(), None).await?;
    store.ensure_bucket(&names.dead_letter_marks_bucket(), None).await?;
    store.ensure_bucket(&names.versions_bucket(), None).await?;
    store.ensure_bucket(&names.offsets_bucket(), None).await
}

/// Largest message of a stream with this byte limit. Half of what is kept for settlements: an output that fits no stream would
/// hold its flow for ever.
pub fn message_bytes_max(bytes_max: u64) -> usize {
    let half_of_reserve = bytes_max / 100 * SETTLEMENT_RESERVE_PERCENT / 2;
    usize::try_from(half_of_reserve).unwrap_or(usize::MAX).min(MESSAGE_BYTES_MAX)
}

/// The stream of messages on their way.
pub async fn ensure_messages(bus: &dyn Bus, names: &Names, bytes_max: u64) -> Result<StreamInfo, Error> {
    bus.ensure_stream(messages(names, bytes_max)).await
}

fn messages(names: &Names, bytes_max: u64) -> StreamConfig {
    StreamConfig {
        name: names.messages(),
        subjects: names.message_subjects(),
        bytes_max,
        message_bytes_max: message_bytes_max(bytes_max),
        duplicate_window: DUPLICATE_WINDOW,
    }
}
