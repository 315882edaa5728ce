use std::sync::atomic::{AtomicU64, Ordering};

/// What a link has met since it was made, over all of its sessions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Verdicts that were acted on.
    pub verdicts: u64,
    /// Verdicts, or notices of pending ones, for execs that were never asked.
    pub unknown_verdicts: u64,
    /// Second verdicts for an exec, and ones that came too late.
    pub superfluous_verdicts: u64,
    /// Verdicts that couldn't be acted on, and denied.
    pub broken_verdicts: u64,
    /// Answers that couldn't be understood, and decided nothing.
    pub broken_answers: u64,
    /// Execs for which no verdict came in time.
    pub timed_out: u64,
    /// Execs that couldn't be asked, or whose call broke.
    pub unreachable: u64,
    /// Execs that were refused at a bound.
    pub overloaded: u64,
    /// Execs that were refused because events couldn't be kept.
    pub unrecorded: u64,
    /// Calls that ended early, and attempts that failed.
    pub broken_calls: u64,
    /// Calls that the service answered and by which a session went on that had had another.
    pub resumed_calls: u64,
    /// Events that were dropped: at a bound, or at the end of a session that couldn't deliver them and has
    /// no journal for them.
    pub lost_events: u64,
}

/// The counters themselves.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) verdicts: Counter,
    pub(super) unknown_verdicts: Counter,
    pub(super) superfluous_verdicts: Counter,
    pub(super) broken_verdicts: Counter,
    pub(super) broken_answers: Counter,
    pub(super) timed_out: Counter,
    pub(super) unreachable: Counter,
    pub(super) overloaded: Counter,
    pub(super) unrecorded: Counter,
    pub(super) broken_calls: Counter,
    pub(super) resumed_calls: Counter,
    pub(super) lost_events: Counter,
}

impl Tally {
    pub(super) fn read(&self) -> LinkCounters {
        LinkCounters {
            verdicts: self.verdicts.get(),
            unknown_verdicts: self.unknown_verdicts.get(),
            superfluous_verdicts: self.superfluous_verdicts.get(),
            broken_verdicts: self.broken_verdicts.get(),
            broken_answers: self.broken_answers.get(),
            timed_out: self.timed_out.get(),
            unreachable: self.unreachable.get(),
            overloaded: self.overloaded.get(),
            unrecorded: self.unrecorded.get(),
            broken_calls: self.broken_calls.get(),
            resumed_calls: self.resumed_calls.get(),
            lost_events: self.lost_events.get(),
        }
    }
}

/// Counts; orders nothing.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Returns the new count.
    pub(super) fn add(&self, count: u64) -> u64 {
        self.0.fetch_add(count, Ordering::Relaxed) + count
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
