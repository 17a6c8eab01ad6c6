//! The clocks of this machine.

use std::time::Duration;

use crate::ports::clock::Clock;
use crate::time::Timestamp;

#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // By libc, so that a test can turn it for the real binary.
        #[allow(clippy::disallowed_methods)]
        let now = std::time::SystemTime::now();
        let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        Timestamp(match now.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => nanos(after),
            Err(before) => nanos(before.duration()).saturating_neg(),
        })
    }

    fn monotonic(&self) -> Duration {
        // Counts while the machine is suspended, which `Instant` does not.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_is_in_nanoseconds_and_the_other_does_not_go_back() {
        let clock = SystemClock;
        assert!(clock.now() > Timestamp::parse("2024-01-01T00:00:00Z").unwrap());
        let before = clock.monotonic();
        assert!(clock.monotonic() >= before);
    }
}
