//! What may be removed from a stream: what every reader has acknowledged and what is old enough.

/// Above this share of its byte limit a stream forgets about age.
const SHORT_PERCENT: u64 = 80;

/// What is known of a stream, in the order it has to be asked for: `last` before any floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The stream's last sequence, noted before the floors were read.
    pub last: u64,
    /// First sequence that is younger than the retention age.
    pub young_from: u64,
    /// There is little room: age does not count.
    pub short: bool,
}

/// A reader's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// Every message it reads up to here is acknowledged.
    pub acknowledged: u64,
    /// It has nothing left to do; then it holds nothing back.
    pub idle: bool,
}

/// The first sequence to keep.
///
/// A message stored after `last` was noted is never removed: a reader may have appeared for it since.
pub fn keep_from(held: Held, floors: impl IntoIterator<Item = Floor>) -> u64 {
    let done = floors
        .into_iter()
        .map(|floor| if floor.idle { held.last } else { floor.acknowledged })
        .fold(held.last, u64::min);
    let keep = done.saturating_add(1);
    if held.short { keep } else { keep.min(held.young_from) }
}

/// Whether a stream has so little room that age no longer counts.
pub fn is_short(bytes: u64, bytes_max: u64) -> bool {
    bytes.saturating_mul(100) > bytes_max.saturating_mul(SHORT_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: Held = Held { last: 100, young_from: 51, short: false };

    #[test]
    fn the_slowest_reader_holds_back() {
        let floors = [Floor { acknowledged: 20, idle: false }, Floor { acknowledged: 90, idle: false }];
        assert_eq!(keep_from(HELD, floors), 21);
    }

    #[test]
    fn an_idle_reader_holds_nothing_back_and_nothing_after_the_noted_end_goes() {
        let short = Held { short: true, ..HELD };
        assert_eq!(keep_from(short, [Floor { acknowledged: 3, idle: true }]), 101);
        assert_eq!(keep_from(short, [Floor { acknowledged: 200, idle: false }]), 101);
        assert_eq!(keep_from(short, []), 101);
    }

    #[test]
    fn a_fifth_left_is_short() {
        assert!(!is_short(80, 100));
        assert!(is_short(81, 100));
        assert!(is_short(1, 0), "no limit at all leaves no room");
    }

    #[test]
    fn age_keeps_what_is_young_until_bytes_are_short() {
        let floors = [Floor { acknowledged: 100, idle: false }];
        assert_eq!(keep_from(HELD, floors), 51);
        assert_eq!(keep_from(Held { short: true, ..HELD }, floors), 101);
    }
}
