use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long after the beginning of an outage it is said again, first; each time after twice as long.
const FIRST_REMINDER: Duration = Duration::from_secs(60);
/// The longest time between two.
const LONGEST: Duration = Duration::from_secs(3600);

/// When to say that the service is lost, that it still is, and that it is back: once each, whatever the number
/// of sessions and attempts.
#[derive(Debug, Default)]
pub(super) struct Outages(Mutex<Option<Lost>>);

#[derive(Debug)]
struct Lost {
    since: Instant,
    attempts: u64,
    pause: Duration,
    next: Instant,
}

/// What is to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// It is lost.
    Lost,
    /// It has been lost for so long, and so many attempts have failed.
    StillLost(Duration, u64),
    /// It is back, after that.
    Back(Duration, u64),
}

impl Outages {
    /// An attempt has failed, or a call has ended early.
    pub(super) fn lost(&self, now: Instant) -> Option<Said> {
        let mut lost = self.lock();
        let Some(lost) = &mut *lost else {
            *lost = Some(Lost {
                since: now,
                attempts: 1,
                pause: FIRST_REMINDER,
                next: now + FIRST_REMINDER,
            });
            return Some(Said::Lost);
        };
        lost.attempts += 1;
        if now < lost.next {
            return None;
        }
        lost.pause = (2 * lost.pause).min(LONGEST);
        lost.next = now + lost.pause;
        let since = now.saturating_duration_since(lost.since);
        Some(Said::StillLost(since, lost.attempts))
    }

    /// The service has answered.
    pub(super) fn back(&self, now: Instant) -> Option<Said> {
        let lost = self.lock().take()?;
        let since = now.saturating_duration_since(lost.since);
        Some(Said::Back(since, lost.attempts))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Lost>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_said_when_it_begins_at_growing_intervals_and_when_it_ends() {
        let outages = Outages::default();
        let began = Instant::now();
        assert_eq!(outages.back(began), None);
        assert_eq!(outages.lost(began), Some(Said::Lost));
        let mut said = Vec::new();
        for second in 1..=4 * 3600 {
            let now = began + Duration::from_secs(second);
            if let Some(Said::StillLost(since, attempts)) = outages.lost(now) {
                assert_eq!((since.as_secs(), attempts), (second, second + 1));
                said.push(second / 60);
            }
        }
        assert_eq!(said, [1, 3, 7, 15, 31, 63, 123, 183]);
        let now = began + Duration::from_secs(5 * 3600);
        let back = Said::Back(Duration::from_secs(5 * 3600), 4 * 3600 + 1);
        assert_eq!(outages.back(now), Some(back));
        assert_eq!(outages.back(now), None);
        assert_eq!(outages.lost(now), Some(Said::Lost));
    }
}
