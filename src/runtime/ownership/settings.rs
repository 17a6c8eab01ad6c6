//! The timers of the protocol as an operator sets them.

use std::time::Duration;

use crate::protocol::timers::{Checked, Inequality, Timers};

/// A lease bucket that only one process can open needs no renewals to speak of.
const ALONE_TTL_MS: u64 = 3_600_000;

/// See `protocol::timers` for what they measure.
#[derive(Debug, Clone)]
pub struct Settings {
    pub timers: Checked,
    /// An announcement is forgotten this long after its last refresh.
    pub heartbeat_ttl: Duration,
    /// How often each other member is pinged; `None`: nobody else can be there.
    pub probe: Option<Duration>,
}

/// Settings under which two instances could act at once.
#[derive(Debug, thiserror::Error)]
#[error("{0} (VEJAS_LEASE_TTL_SECS, VEJAS_BEAT_MS, VEJAS_SESSION_GATE_MS, VEJAS_GRACE_MS)")]
pub struct NotSafe(#[from] Inequality);

impl Settings {
    pub fn cluster(
        lease_ttl: Duration,
        heartbeat_ttl: Duration,
        probe: Duration,
        change: impl FnOnce(&mut Timers),
    ) -> Result<Self, NotSafe> {
        let mut timers = Timers::for_ttl(u64::try_from(lease_ttl.as_millis()).unwrap_or(u64::MAX / 1000));
        change(&mut timers);
        Ok(Settings { timers: timers.check()?, heartbeat_ttl, probe: Some(probe) })
    }

    /// For a bus that this process has to itself: everything of an earlier process is over, and a beat would wake a disk for nothing.
    pub fn alone() -> Self {
        let timers = Timers {
            session_gate_ms: ALONE_TTL_MS * 6 / 10,
            grace_ms: ALONE_TTL_MS,
            beat_ms: ALONE_TTL_MS / 4,
            retry_ms: 1_000,
            request_timeout_ms: 30_000,
            ..Timers::for_ttl(ALONE_TTL_MS)
        };
        let timers = timers.check().expect("these relations hold");
        Settings { timers, heartbeat_ttl: Duration::from_millis(ALONE_TTL_MS), probe: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsafe_setting_is_refused_with_the_inequality_and_the_settings() {
        let wrong =
            Settings::cluster(Duration::from_secs(10), Duration::from_secs(10), Duration::from_millis(100), |t| {
                t.grace_ms = 450;
            });
        let error = wrong.unwrap_err().to_string();
        assert!(error.contains("session gate (1 + drift) + sched <= grace (1 - drift) does not hold"), "{error}");
        assert!(error.contains("VEJAS_GRACE_MS"), "{error}");
    }

    #[test]
    fn alone_is_safe() {
        assert!(Settings::alone().probe.is_none());
    }
}
