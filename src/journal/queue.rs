use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::lock;
use super::writer::Entry;

/// Sessions that the journal is to look at. Holds each once, so that it is no longer than there are
/// sessions.
#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<Arc<Entry>>,
    /// Whether one of them has ended, and waits to hear what becomes of its events.
    is_urgent: bool,
    is_closed: bool,
}

/// What the journal waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    /// Any session.
    Any,
    /// One that has ended.
    Urgent,
    /// Nothing: it has something to do.
    Nothing,
}

/// Whether the journal goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Going {
    On,
    Closed,
}

impl Queue {
    /// Adds a session that isn't in it.
    pub(super) fn push(&self, entry: Arc<Entry>) {
        lock(&self.inner).entries.push(entry);
        self.arrived.notify_one();
    }

    /// Says that a session that is in it, or will be, has ended.
    pub(super) fn hurry(&self) {
        lock(&self.inner).is_urgent = true;
        self.arrived.notify_one();
    }

    pub(super) fn close(&self) {
        lock(&self.inner).is_closed = true;
        self.arrived.notify_one();
    }

    /// Waits, `until` then at most, and takes all that is there.
    pub(super) fn take(&self, what: For, until: Option<Instant>) -> (Vec<Arc<Entry>>, Going) {
        let mut inner = lock(&self.inner);
        loop {
            let is_there = match what {
                For::Any => !inner.entries.is_empty() || inner.is_urgent,
                For::Urgent => inner.is_urgent,
                For::Nothing => true,
            };
            let now = Instant::now();
            if is_there || inner.is_closed || until.is_some_and(|until| until <= now) {
                break;
            }
            inner = match until {
                None => self
                    .arrived
                    .wait(inner)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let waited = self.arrived.wait_timeout(inner, until - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        inner.is_urgent = false;
        let going = if inner.is_closed {
            Going::Closed
        } else {
            Going::On
        };
        (std::mem::take(&mut inner.entries), going)
    }
}
