//! The sign before the stream of dead letters is full, and the end of what a crash left half done.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::DeadLetters;

/// Used to this share of its limit, the stream is warned about.
pub const USED_WARNED_PERCENT: u64 = 80;
/// How often there is a look.
const PERIOD: Duration = Duration::from_secs(5);
/// While it stays above, the warning is repeated after so many looks: every ten minutes.
const LOOKS_BETWEEN_WARNINGS: u32 = 120;

/// Runs until `stopping`.
pub async fn watch(letters: DeadLetters, stopping: CancellationToken) {
    let mut looks = tokio::time::interval(PERIOD);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut quiet = 0;
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            _ = looks.tick() => {}
        }
        if let Err(error) = letters.sweep().await {
            tracing::warn!("dead letters that have a successor are removed later: {error}");
        }
        let Ok(info) = letters.bus.stream(&letters.stream).await else { continue };
        if info.bytes.saturating_mul(100) < info.config.bytes_max.saturating_mul(USED_WARNED_PERCENT) {
            quiet = 0;
            continue;
        }
        if quiet == 0 {
            quiet = LOOKS_BETWEEN_WARNINGS;
            tracing::warn!(
                letters = info.messages,
                bytes = info.bytes,
                bytes_max = info.config.bytes_max,
                "dead letters are about to fill their limit; then the units that fail pause. Replay or purge \
                 (`vejas dlq list`), or raise VEJAS_DLQ_MAX_BYTES"
            );
        }
        quiet -= 1;
    }
}
