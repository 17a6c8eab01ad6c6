//! Moments, and the settings that measure between them, with the relations that make the protocol safe.
//!
//! A node stores only deadlines, as moments of the process's own monotonic clock. A deadline is compared with now and nothing else: one
//! that has passed is as good as any other that has passed. That keeps the states of a model finite.

/// A point on the process's own monotonic clock, in milliseconds. The clock counts suspended time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// Long ago: every deadline set to it has passed.
    pub const PAST: Moment = Moment(0);

    /// A deadline that is not expected to come.
    pub const NEVER: Moment = Moment(u64::MAX);

    pub fn after(self, ms: u64) -> Moment {
        Moment(self.0.saturating_add(ms))
    }

    pub fn passed(self, now: Moment) -> bool {
        self <= now
    }
}

/// The timers of the protocol, all in milliseconds but `drift_ppm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timers {
    /// A record of the lease bucket expires this long after its last write (`VEJAS_LEASE_TTL_SECS`).
    pub ttl_ms: u64,
    /// `D`: a tenure may act this long after the send of its last won renewal.
    pub lease_gate_ms: u64,
    /// `Dc`: an exclusive unit may act this long after the send of the last won beat.
    pub session_gate_ms: u64,
    /// `G`: a suspect that was not heard of for this long is dead.
    pub grace_ms: u64,
    /// `B`: beats of a member that owns or asks for a unit.
    pub beat_ms: u64,
    /// Beats of a member that does not.
    pub idle_beat_ms: u64,
    pub renew_ms: u64,
    /// Before a request whose outcome is Unknown or Busy is made again.
    pub retry_ms: u64,
    /// The shell answers Unknown after this long.
    pub request_timeout_ms: u64,
    /// Rank k asks this much later than rank k - 1.
    pub rank_delay_ms: u64,
    /// A rank must be unchanged for this long before its unit is claimed.
    pub settle_ms: u64,
    /// An offer whose heir does not come may be taken this long after its offerer was gone.
    pub offer_wait_ms: u64,
    /// A lease that was not seen to change for this long is read again.
    pub recheck_ms: u64,
    /// `rho`: how far the rate of any clock may be off.
    pub drift_ppm: u64,
    /// `sigma`: steps of, and skew between, the wall clocks of the store's servers.
    pub store_skew_ms: u64,
    /// `sched`: from a permit check to the action it allows.
    pub sched_ms: u64,
    /// The 99th percentile of a write to the lease bucket.
    pub commit_p99_ms: u64,
}

impl Timers {
    /// The defaults for a lease time to live of `ttl_ms`.
    pub fn for_ttl(ttl_ms: u64) -> Self {
        Timers {
            ttl_ms,
            lease_gate_ms: ttl_ms * 7 / 10,
            session_gate_ms: 450,
            grace_ms: 600,
            beat_ms: 150,
            idle_beat_ms: ttl_ms / 3,
            renew_ms: ttl_ms / 3,
            retry_ms: ttl_ms / 12,
            request_timeout_ms: ttl_ms / 10,
            rank_delay_ms: 200,
            settle_ms: 1_000,
            offer_wait_ms: 1_000,
            recheck_ms: ttl_ms + 500,
            drift_ppm: 500,
            store_skew_ms: 500,
            sched_ms: 50,
            commit_p99_ms: 50,
        }
    }

    /// Every relation that safety or progress rests on.
    pub fn check(self) -> Result<Checked, Inequality> {
        let slow = |ms: u64| ms.saturating_add(ms.saturating_mul(self.drift_ppm).div_ceil(1_000_000));
        let fast = |ms: u64| ms.saturating_sub(ms.saturating_mul(self.drift_ppm).div_ceil(1_000_000));
        let relations = [
            ("1", 1, "grace", self.grace_ms),
            ("1", 1, "beat", self.beat_ms),
            ("1", 1, "renew", self.renew_ms),
            ("1", 1, "retry", self.retry_ms),
            (
                "session gate (1 + drift) + sched",
                slow(self.session_gate_ms).saturating_add(self.sched_ms),
                "grace (1 - drift)",
                fast(self.grace_ms),
            ),
            ("1.3 session gate", self.session_gate_ms.saturating_mul(13).div_ceil(10), "grace", self.grace_ms),
            (
                "lease gate (1 + drift) + store skew + sched",
                slow(self.lease_gate_ms).saturating_add(self.store_skew_ms).saturating_add(self.sched_ms),
                "ttl",
                self.ttl_ms,
            ),
            (
                "2 beat + commit p99",
                self.beat_ms.saturating_mul(2).saturating_add(self.commit_p99_ms),
                "session gate",
                self.session_gate_ms,
            ),
            ("session gate", self.session_gate_ms, "lease gate", self.lease_gate_ms),
            (
                "renew + request timeout + retry",
                self.renew_ms.saturating_add(self.request_timeout_ms).saturating_add(self.retry_ms),
                "lease gate",
                self.lease_gate_ms,
            ),
            ("3 idle beat", self.idle_beat_ms.saturating_mul(3), "ttl", self.ttl_ms),
            ("ttl", self.ttl_ms, "recheck", self.recheck_ms),
        ];
        for (left, left_ms, right, right_ms) in relations {
            if left_ms > right_ms {
                return Err(Inequality { left, left_ms, right, right_ms });
            }
        }
        Ok(Checked(self))
    }
}

/// Timers whose relations hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked(Timers);

impl Checked {
    /// A model counts in ticks of its own and breaks relations on purpose.
    #[cfg(test)]
    pub fn assumed(timers: Timers) -> Self {
        Checked(timers)
    }
}

impl std::ops::Deref for Checked {
    type Target = Timers;

    fn deref(&self) -> &Timers {
        &self.0
    }
}

/// The relation that a setting breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("timers: {left} <= {right} does not hold: {left_ms} ms > {right_ms} ms")]
pub struct Inequality {
    pub left: &'static str,
    pub left_ms: u64,
    pub right: &'static str,
    pub right_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Timers)) -> String {
        let mut timers = Timers::for_ttl(10_000);
        change(&mut timers);
        timers.check().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_hold() {
        Timers::for_ttl(10_000).check().unwrap();
    }

    #[test]
    fn an_unsafe_setting_is_refused_with_the_inequality_and_its_numbers() {
        assert_eq!(
            refused(|t| t.session_gate_ms = 560),
            "timers: session gate (1 + drift) + sched <= grace (1 - drift) does not hold: 611 ms > 599 ms"
        );
        assert_eq!(
            refused(|t| t.lease_gate_ms = 9_500),
            "timers: lease gate (1 + drift) + store skew + sched <= ttl does not hold: 10055 ms > 10000 ms"
        );
        assert_eq!(refused(|t| t.beat_ms = 0), "timers: 1 <= beat does not hold: 1 ms > 0 ms");
    }

    #[test]
    fn equality_without_margin_is_refused() {
        assert!(refused(|t| t.session_gate_ms = t.grace_ms).contains("<= grace"));
        assert!(refused(|t| t.lease_gate_ms = t.ttl_ms).contains("<= ttl"));
    }
}
