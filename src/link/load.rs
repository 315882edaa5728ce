use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::log::LogBounds;
use super::options::LinkOptions;
use super::state::{Load, SessionState};
use crate::server::{Pool, Share};

/// What a link's sessions have of what is bounded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkLoad {
    /// Execs that wait for a verdict.
    pub waiting: usize,
    /// Bytes of their descriptions.
    pub waiting_bytes: usize,
    /// Events that aren't settled: to be sent, or sent and to be acknowledged.
    pub events: usize,
    /// Bytes of them.
    pub event_bytes: usize,
    /// How long ago the oldest of these events was; zero where there is none.
    pub oldest_event: Duration,
}

/// What all sessions of a link may have together.
#[derive(Debug)]
pub(super) struct Pools {
    questions: Pool,
    question_bytes: Pool,
    events: Pool,
    event_bytes: Pool,
}

impl Pools {
    pub(super) fn new(options: &LinkOptions) -> Self {
        Self {
            questions: Pool::new(options.most_waiting_in_all),
            question_bytes: Pool::new(options.most_event_bytes_in_all),
            events: Pool::new(options.most_events_in_all),
            event_bytes: Pool::new(options.most_event_bytes_in_all),
        }
    }

    pub(super) fn shares(&self, options: &LinkOptions) -> Shares {
        Shares {
            questions: self.questions.share(options.most_waiting),
            question_bytes: self.question_bytes.share(options.most_event_bytes),
            events: self.events.share(options.most_events),
            event_bytes: self.event_bytes.share(options.most_event_bytes),
            began: Instant::now(),
            oldest: AtomicU64::new(NONE),
        }
    }

    /// What all sessions have, of which the oldest event is so old.
    pub(super) fn load(&self, oldest_event: Duration) -> LinkLoad {
        LinkLoad {
            waiting: self.questions.used(),
            waiting_bytes: self.question_bytes.used(),
            events: self.events.used(),
            event_bytes: self.event_bytes.used(),
            oldest_event,
        }
    }
}

/// No event is kept.
const NONE: u64 = u64::MAX;

/// One session's parts. Whoever reads them waits for nobody.
#[derive(Debug)]
pub(super) struct Shares {
    questions: Share,
    question_bytes: Share,
    events: Share,
    event_bytes: Share,
    began: Instant,
    /// When the oldest event was told, in milliseconds since the beginning.
    oldest: AtomicU64,
}

impl Shares {
    /// Tells a session what it may have now.
    pub(super) fn allow<R>(&self, state: &mut SessionState<R>) {
        state.allow(
            self.questions.allowed(),
            self.question_bytes.allowed(),
            LogBounds {
                events: self.events.allowed(),
                bytes: self.event_bytes.allowed(),
            },
        );
    }

    /// Notes what a session has, where it had `before`.
    pub(super) fn note(&self, before: &mut Load, now: Load) {
        if *before == now {
            return;
        }
        self.questions.set(before.questions, now.questions);
        self.question_bytes
            .set(before.question_bytes, now.question_bytes);
        self.events.set(before.events, now.events);
        self.event_bytes.set(before.event_bytes, now.event_bytes);
        if before.oldest != now.oldest {
            let since = now.oldest.map_or(NONE, |oldest| {
                let since = oldest.saturating_duration_since(self.began).as_millis();
                u64::try_from(since).unwrap_or(NONE)
            });
            self.oldest.store(since, Ordering::Relaxed);
        }
        *before = now;
    }

    /// How long ago the oldest event was.
    pub(super) fn oldest_event(&self) -> Option<Duration> {
        let since = self.oldest.load(Ordering::Relaxed);
        (since != NONE).then(|| {
            self.began
                .elapsed()
                .saturating_sub(Duration::from_millis(since))
        })
    }
}
