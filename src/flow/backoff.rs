//! How long to wait before the next attempt.

use std::time::Duration;

/// Exponential back-off with equal jitter: attempt 1 failed, wait `initial`, then twice that, up to `max`; half of the
/// wait is fixed and half is scaled by `jitter`.
///
/// Source: "Exponential Backoff And Jitter", M. Brooker, 2015.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub initial: Duration,
    pub max: Duration,
}

impl Backoff {
    /// The wait after `attempts` (at least 1) failed attempts. `jitter` is a random number in `0.0..=1.0`.
    pub fn delay(&self, attempts: u32, jitter: f64) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let full = self.initial.saturating_mul(1 << doublings).min(self.max);
        full / 2 + (full / 2).mul_f64(jitter.clamp(0.0, 1.0))
    }
}

impl From<&crate::manifest::flow::Backoff> for Backoff {
    fn from(stated: &crate::manifest::flow::Backoff) -> Self {
        Backoff { initial: stated.initial.0, max: stated.max.0.max(stated.initial.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_bound_and_keep_half() {
        let backoff = Backoff { initial: Duration::from_millis(200), max: Duration::from_secs(30) };
        assert_eq!(backoff.delay(1, 1.0), Duration::from_millis(200));
        assert_eq!(backoff.delay(1, 0.0), Duration::from_millis(100));
        assert_eq!(backoff.delay(3, 1.0), Duration::from_millis(800));
        assert_eq!(backoff.delay(u32::MAX, 1.0), Duration::from_secs(30));
    }
}
