//! What happens to approvals, for those who watch.
//!
//! The channel has no approvals, but their numbers: what one watcher doesn't read stays in it, however much that is. The
//! latest are kept beside it, as many as fit; whoever is further behind has missed some.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::state::size_in_memory;
use crate::pb::approval::v1 as pb;

/// Changes that a watcher may be behind, and bytes of their approvals.
const UNSEEN_CHANGES: usize = 1_024;
const UNSEEN_BYTES: usize = 32 << 20;

/// Something that happened to an approval.
#[derive(Debug, Clone)]
pub(in crate::policyd) struct Happened {
    pub(in crate::policyd) change: pb::ApprovalChange,
    pub(in crate::policyd) approval: Arc<pb::Approval>,
}

/// Where changes are told, by their numbers.
#[derive(Debug)]
pub(super) struct Changes {
    sender: broadcast::Sender<u64>,
    latest: Arc<Mutex<Latest>>,
}

#[derive(Debug, Default)]
struct Latest {
    /// The number of the earliest.
    first: u64,
    /// With what each takes in memory.
    changes: VecDeque<(Happened, usize)>,
    bytes: usize,
}

impl Changes {
    pub(super) fn new() -> Self {
        Self {
            sender: broadcast::Sender::new(UNSEEN_CHANGES),
            latest: Arc::default(),
        }
    }

    pub(super) fn tell(&self, change: pb::ApprovalChange, approval: &Arc<pb::Approval>) {
        let mut latest = lock(&self.latest);
        if self.sender.receiver_count() == 0 {
            latest.clear();
            return;
        }
        let number = latest.keep(Happened {
            change,
            approval: Arc::clone(approval),
        });
        // Whoever watched may have gone meanwhile.
        let _ = self.sender.send(number);
    }

    /// All changes from now on.
    pub(super) fn watch(&self) -> Watch {
        Watch {
            receiver: self.sender.subscribe(),
            latest: Arc::clone(&self.latest),
            next: None,
        }
    }
}

fn lock(latest: &Mutex<Latest>) -> MutexGuard<'_, Latest> {
    // Nothing that is done with it panics half-way.
    latest.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Latest {
    /// Keeps one more, whose number it gives; the earliest go for it.
    fn keep(&mut self, happened: Happened) -> u64 {
        let number = self.first + self.changes.len() as u64;
        let size = size_in_memory(&happened.approval);
        self.changes.push_back((happened, size));
        self.bytes += size;
        while self.changes.len() > UNSEEN_CHANGES || self.bytes > UNSEEN_BYTES {
            let Some((_, size)) = self.changes.pop_front() else {
                break;
            };
            self.first += 1;
            self.bytes -= size;
        }
        number
    }

    fn clear(&mut self) {
        self.first += self.changes.len() as u64;
        self.changes.clear();
        self.bytes = 0;
    }

    fn get(&self, number: u64) -> Option<Happened> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.changes.get(at).map(|(happened, _)| happened.clone())
    }
}

/// Where they are learned of.
#[derive(Debug)]
pub(in crate::policyd) struct Watch {
    receiver: broadcast::Receiver<u64>,
    latest: Arc<Mutex<Latest>>,
    /// What follows those that were missed.
    next: Option<Happened>,
}

impl Watch {
    /// The next change, or how many were missed. May be dropped at any time: nothing is lost by it.
    pub(in crate::policyd) async fn recv(&mut self) -> Result<Happened, RecvError> {
        if let Some(next) = self.next.take() {
            return Ok(next);
        }
        let mut missed = match self.receiver.recv().await {
            Ok(number) => match self.kept(number) {
                Some(happened) => return Ok(happened),
                None => 1,
            },
            Err(RecvError::Lagged(missed)) => missed,
            Err(RecvError::Closed) => return Err(RecvError::Closed),
        };
        // All that are missed in a row are told of at once.
        loop {
            match self.receiver.try_recv() {
                Ok(number) => match self.kept(number) {
                    Some(happened) => {
                        self.next = Some(happened);
                        break;
                    }
                    None => missed += 1,
                },
                Err(TryRecvError::Lagged(more)) => missed += more,
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        Err(RecvError::Lagged(missed))
    }

    fn kept(&self, number: u64) -> Option<Happened> {
        lock(&self.latest).get(number)
    }
}
