//! Lets verdicts go first: the writer works in short steps with rests between them, for as long as it keeps up.

use std::time::{Duration, Instant};

/// Longest piece of work without a rest: about what a verdict may find a processor taken for.
const STEP: Duration = Duration::from_millis(1);
/// How many times as long as the work a rest is, up to a bound: a thread that others interrupted looks as if it
/// had worked.
const REST: u32 = 3;
const LONGEST_REST: Duration = Duration::from_millis(8);
/// Most rest of one commit: gates keep what isn't acknowledged.
const REST_IN_ALL: Duration = Duration::from_millis(100);

/// How long to rest after so much work.
pub(super) fn rest_after(work: Duration) -> Duration {
    work.saturating_mul(REST).min(LONGEST_REST)
}

/// The pace of one commit.
pub(super) struct Pace<'a> {
    may_rest: &'a dyn Fn() -> bool,
    began: Instant,
    left: Duration,
}

impl<'a> Pace<'a> {
    /// Rests as long as `may_rest` says so.
    pub(super) fn new(may_rest: &'a dyn Fn() -> bool) -> Self {
        Self {
            may_rest,
            began: Instant::now(),
            left: REST_IN_ALL,
        }
    }

    /// A little is done.
    pub(super) fn step(&mut self) {
        let work = self.began.elapsed();
        if work < STEP {
            return;
        }
        let rest = rest_after(work).min(self.left);
        if !rest.is_zero() && (self.may_rest)() {
            std::thread::sleep(rest);
            self.left -= rest;
        }
        self.began = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_follows_each_step_of_work_while_it_may() {
        let mut asked = 0;
        for (may_rest, rests) in [(true, 3), (false, 0)] {
            let answers = std::cell::Cell::new(0);
            let may_rest = || {
                answers.set(answers.get() + 1);
                may_rest
            };
            let mut pace = Pace::new(&may_rest);
            let mut slept = Duration::ZERO;
            for _ in 0..3 {
                let began = Instant::now();
                while began.elapsed() < STEP {
                    std::hint::spin_loop();
                }
                let began = Instant::now();
                pace.step();
                slept += began.elapsed();
            }
            asked += answers.get();
            assert!(slept >= REST * rests * STEP, "{slept:?}");
            // What it doesn't rest is left of all that it may.
            let rested = REST_IN_ALL.saturating_sub(pace.left);
            assert!(rested >= REST * rests * STEP, "{rested:?}");
            assert_eq!(rested.is_zero(), rests == 0, "{rested:?}");
        }
        assert_eq!(asked, 6);
    }

    #[test]
    fn the_rests_of_a_commit_have_an_end() {
        let mut pace = Pace::new(&|| true);
        let mut rests = 0;
        while !pace.left.is_zero() {
            std::thread::sleep(STEP);
            pace.step();
            rests += 1;
            assert!(rests < 1_000, "it goes on for ever");
        }
        std::thread::sleep(STEP);
        pace.may_rest = &|| panic!("there is no rest left");
        pace.step();
    }

    #[test]
    fn a_rest_has_an_end() {
        assert_eq!(
            rest_after(Duration::from_millis(2)),
            Duration::from_millis(6)
        );
        assert_eq!(rest_after(Duration::MAX), LONGEST_REST);
    }
}
