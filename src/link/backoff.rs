use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use crate::pb::Reconnect;

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// The longest while somebody waits for a verdict, who may have little time left.
const LONGEST_AWAITED: Duration = Duration::from_millis(500);

/// Whether somebody waits for a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    Yes,
    No,
}

/// Intervals between attempts to call: they double from 100 milliseconds to 10 seconds, or to half a
/// second while somebody waits for a verdict, which is as long as an outage is tolerated. Each is
/// drawn from its upper half, so that gates that lost a service together don't return together.
#[derive(Debug)]
pub(super) struct Backoff {
    interval: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { interval: SHORTEST }
    }

    /// How long to wait before the next attempt.
    pub(super) fn next(&mut self, reconnect: Reconnect, awaited: Awaited) -> Duration {
        self.next_with(reconnect, awaited, random())
    }

    fn next_with(&mut self, reconnect: Reconnect, awaited: Awaited, random: u32) -> Duration {
        let interval = match (reconnect, awaited) {
            (Reconnect::Soon, Awaited::Yes) => self.interval.min(LONGEST_AWAITED),
            (Reconnect::Soon, Awaited::No) => self.interval,
            (Reconnect::AtLongestInterval, _) => LONGEST,
        };
        self.interval = (interval * 2).min(LONGEST);
        let half = interval / 2;
        half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
    }

    /// The last call was a good one: begin again at the shortest interval.
    pub(super) fn reset(&mut self) {
        self.interval = SHORTEST;
    }
}

/// Random enough to spread attempts: the keys of a hash map's hasher.
fn random() -> u32 {
    let hash = RandomState::new().build_hasher().finish();
    u32::try_from(hash >> 32).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_double_up_to_the_longest() {
        let mut backoff = Backoff::new();
        let mut next = || {
            backoff
                .next_with(Reconnect::Soon, Awaited::No, u32::MAX)
                .as_millis()
        };
        let intervals: Vec<_> = (0..9).map(|_| next()).collect();
        assert_eq!(
            intervals,
            [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
    }

    #[test]
    fn jitter_takes_at_most_half() {
        assert_eq!(
            Backoff::new().next_with(Reconnect::Soon, Awaited::No, 0),
            Duration::from_millis(50)
        );
    }

    #[test]
    fn a_refusal_waits_longest_at_once_and_a_good_call_resets() {
        let mut backoff = Backoff::new();
        let longest = backoff.next_with(Reconnect::AtLongestInterval, Awaited::Yes, u32::MAX);
        assert_eq!(longest, LONGEST);
        backoff.reset();
        assert_eq!(
            backoff.next_with(Reconnect::Soon, Awaited::No, u32::MAX),
            SHORTEST
        );
    }

    #[test]
    fn while_somebody_waits_intervals_stay_short() {
        let mut backoff = Backoff::new();
        let mut next = || {
            backoff
                .next_with(Reconnect::Soon, Awaited::Yes, u32::MAX)
                .as_millis()
        };
        let intervals: Vec<_> = (0..6).map(|_| next()).collect();
        assert_eq!(intervals, [100, 200, 400, 500, 500, 500]);
    }
}
