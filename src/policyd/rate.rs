//! How many execs a second one gate may ask about.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::identity::GateIdentity;

/// What a gate that has been quiet may ask about at once: so long's worth.
const BURST: Duration = Duration::from_secs(1);

/// The allowances of all gates.
#[derive(Debug, Clone)]
pub(super) struct Rates {
    per_second: NonZeroU32,
    of_gates: Arc<Mutex<HashMap<GateIdentity, Arc<Allowance>>>>,
}

/// What one gate may, by all of its calls together. No lock: it stands in front of verdicts.
///
/// Each exec moves a moment ahead by the interval that the rate allows; that moment may be no further ahead than
/// a burst. This is a bucket of tokens, told by when it will be full again.
#[derive(Debug)]
pub(super) struct Allowance {
    per_second: NonZeroU32,
    began: Instant,
    /// When the bucket is full again, in nanoseconds since it began.
    full: AtomicU64,
}

/// Whether an exec is within the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Within {
    Yes,
    No,
}

impl Rates {
    pub(super) fn new(per_second: NonZeroU32) -> Self {
        Self {
            per_second,
            of_gates: Arc::default(),
        }
    }

    /// The allowance of a gate, which a call keeps for as long as it lasts.
    pub(super) fn of(&self, gate: &GateIdentity) -> Arc<Allowance> {
        let mut of_gates = self.of_gates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(allowance) = of_gates.get(gate) {
            return Arc::clone(allowance);
        }
        // Calling again gives no gate more, and who is gone for a while is forgotten.
        let now = Instant::now();
        of_gates.retain(|_, known| Arc::strong_count(known) > 1 || !known.is_full(now));
        let allowance = Arc::new(Allowance::new(self.per_second, now));
        of_gates.insert(gate.clone(), Arc::clone(&allowance));
        allowance
    }
}

impl Allowance {
    fn new(per_second: NonZeroU32, now: Instant) -> Self {
        Self {
            per_second,
            began: now,
            full: AtomicU64::new(0),
        }
    }

    /// The rate.
    pub(super) fn per_second(&self) -> NonZeroU32 {
        self.per_second
    }

    /// Takes one exec out of the allowance, if it is there.
    pub(super) fn take(&self, now: Instant) -> Within {
        let now = self.since_began(now);
        let interval = 1_000_000_000 / u64::from(self.per_second.get());
        let burst = u64::try_from(BURST.as_nanos()).unwrap_or(u64::MAX);
        let taken = self
            .full
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full| {
                let full = full.max(now).saturating_add(interval);
                (full <= now.saturating_add(burst)).then_some(full)
            });
        match taken {
            Ok(_) => Within::Yes,
            Err(_) => Within::No,
        }
    }

    fn is_full(&self, now: Instant) -> bool {
        self.full.load(Ordering::Relaxed) <= self.since_began(now)
    }

    fn since_began(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.began);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(per_second: u32) -> NonZeroU32 {
        NonZeroU32::new(per_second).expect("a rate")
    }

    /// How many of so many are within.
    fn taken(allowance: &Allowance, count: u32, now: Instant) -> u32 {
        let within = |_: &u32| allowance.take(now) == Within::Yes;
        u32::try_from((0..count).filter(within).count()).expect("few")
    }

    #[test]
    fn a_burst_is_a_seconds_worth_and_then_it_is_the_rate() {
        for per_second in [1, 7, 1_000] {
            let began = Instant::now();
            let allowance = Allowance::new(rate(per_second), began);
            assert_eq!(taken(&allowance, 5_000, began), per_second);
            let later = began + Duration::from_millis(2_500);
            // No more than a burst is saved up.
            assert_eq!(taken(&allowance, 5_000, later), per_second);
            let half = later + Duration::from_millis(500);
            assert!(taken(&allowance, 5_000, half).abs_diff(per_second / 2) <= 1);
        }
    }

    #[test]
    fn a_gate_has_one_allowance_however_often_it_calls() {
        let rates = Rates::new(rate(10));
        let gate = GateIdentity::anonymous();
        let now = Instant::now();
        let first = rates.of(&gate);
        assert_eq!(taken(&first, 6, now), 6);
        assert!(taken(&rates.of(&gate), 10, now) <= 5);
        drop(first);
        assert!(taken(&rates.of(&gate), 10, now) <= 1);
    }

    #[test]
    fn a_gate_that_is_gone_is_forgotten_when_it_has_all_of_its_allowance_again() {
        let rates = Rates::new(rate(10));
        let gate = GateIdentity::uid;
        // One that is gone and has taken nothing, one whose call lasts, and one that is gone and has its allowance
        // back later than this test ends.
        drop(rates.of(&gate(1)));
        let lasting = rates.of(&gate(2));
        let spent = rates.of(&gate(3));
        let later = Instant::now() + Duration::from_secs(3_600);
        assert_eq!(taken(&spent, 20, later), 10);
        drop(spent);
        // Whoever comes makes room first.
        let _newcomer = rates.of(&gate(4));
        let known = rates.of_gates.lock().expect("no panic");
        let known = [1, 2, 3, 4].map(|uid| known.contains_key(&gate(uid)));
        assert_eq!(known, [false, true, true, true]);
        drop(lasting);
    }
}
