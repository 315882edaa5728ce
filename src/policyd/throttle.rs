//! Keeps what repeats from flooding the log.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Lets one occurrence through in each interval, and counts the others.
#[derive(Debug)]
pub(crate) struct Throttle {
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    held_back: u64,
}

impl Throttle {
    pub(crate) const fn new(interval: Duration) -> Self {
        Self {
            interval,
            state: Mutex::new(State {
                last: None,
                held_back: 0,
            }),
        }
    }

    /// `Some` when this occurrence is to be logged, with how many were held back since the last one.
    pub(crate) fn admit(&self) -> Option<u64> {
        // Counting goes on after a panic elsewhere: there is nothing in here to be left half done.
        let mut state = self
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if state
            .last
            .is_some_and(|last| last.elapsed() < self.interval)
        {
            state.held_back += 1;
            return None;
        }
        state.last = Some(Instant::now());
        Some(std::mem::take(&mut state.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_counted_until_the_interval_is_over() {
        let mut throttle = Throttle::new(Duration::MAX);
        assert_eq!(throttle.admit(), Some(0));
        assert_eq!(throttle.admit(), None);
        assert_eq!(throttle.admit(), None);
        throttle.interval = Duration::ZERO;
        // Those two are told of, once.
        assert_eq!(throttle.admit(), Some(2));
        assert_eq!(throttle.admit(), Some(0));
    }
}
