//! What is on the desk: what is open, what was closed lately, and how much that may be.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

use super::Control;
use crate::pb::approval::v1 as pb;
use crate::policyd::approvals::approval::{self, Question};
use crate::policyd::approvals::grants::Grants;
use crate::policyd::approvals::ledger::Recorded;
use crate::policyd::throttle::Throttle;
use crate::sys::random;

/// Most execs that wait for a person: in all, of one gate, and of one session.
const WAITING_IN_ALL: usize = 4_096;
const WAITING_OF_ONE_GATE: usize = 1_024;
pub(in crate::policyd) const WAITING_OF_ONE_SESSION: usize = 256;
/// Most bytes of their commands.
const WAITING_BYTES: usize = 64 << 20;
/// Most closed approvals that are kept to be told of, and most bytes of their commands.
pub(in crate::policyd) const CLOSED: usize = 4_096;
const CLOSED_BYTES: usize = 64 << 20;
/// Letters of ids: none that are taken for another.
const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

static NO_ID: Throttle = Throttle::new(Duration::from_secs(5));

#[derive(Debug, Default)]
pub(super) struct State {
    /// By the order in which they were opened.
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) by_id: HashMap<String, u64>,
    pub(super) by_exec: HashMap<(String, u64), u64>,
    pub(super) next: u64,
    pub(super) waiting: usize,
    pub(super) waiting_bytes: usize,
    pub(super) closed: usize,
    pub(super) closed_bytes: usize,
    pub(super) grants: Grants,
}

impl State {
    /// An approval as it is told: what is remembered of it may hold no longer, and has been used meanwhile.
    pub(super) fn told(&self, approval: &pb::Approval) -> pb::Approval {
        let mut told = approval.clone();
        if let Some(resolution) = told.resolution.as_mut().filter(|it| it.grant.is_some()) {
            resolution.grant = self.grants.of(&approval.approval_id).cloned();
        }
        told
    }

    pub(super) fn insert(
        &mut self,
        recorded: Recorded,
        waiter: Option<mpsc::Sender<Control>>,
        away_since: Option<SystemTime>,
    ) {
        let number = self.next;
        self.next += 1;
        let size = size_in_memory(&recorded.approval);
        let entry = Entry {
            recorded,
            size,
            waiter,
            away_since,
        };
        let id = entry.recorded.approval.approval_id.clone();
        self.by_id.insert(id, number);
        let key = (entry.session().to_owned(), entry.exec());
        self.by_exec.insert(key, number);
        if entry.is_open() {
            self.waiting += 1;
            self.waiting_bytes += size;
        } else {
            self.closed += 1;
            self.closed_bytes += size;
        }
        self.entries.insert(number, entry);
        self.forget_closed();
    }

    /// Closes an open one, and tells who waits; `None` if it isn't open.
    pub(super) fn close(&mut self, number: u64, closing: Closing) -> Option<Recorded> {
        let entry = self
            .entries
            .get_mut(&number)
            .filter(|entry| entry.is_open())?;
        entry.recorded.approval.state = closing.state.into();
        entry.recorded.approval.resolution = Some(closing.resolution);
        entry.away_since = None;
        self.waiting -= 1;
        self.waiting_bytes -= entry.size;
        self.closed += 1;
        self.closed_bytes += entry.size;
        let waiter = entry.waiter.take();
        if let (Some(waiter), Some(decided)) = (waiter, approval::decided(&entry.recorded.approval))
        {
            // There is room for as many as one session may have waiting. A call that has ended asks again.
            let _ = waiter.try_send(Control::Verdict(Box::new(decided)));
        }
        let recorded = entry.recorded.clone();
        self.forget_closed();
        Some(recorded)
    }

    fn forget_closed(&mut self) {
        while self.closed > CLOSED || self.closed_bytes > CLOSED_BYTES {
            let mut entries = self.entries.iter();
            let Some((number, _)) = entries.find(|(_, entry)| !entry.is_open()) else {
                return;
            };
            let number = *number;
            let Some(entry) = self.entries.remove(&number) else {
                return;
            };
            self.closed -= 1;
            self.closed_bytes -= entry.size;
            self.by_id.remove(&entry.recorded.approval.approval_id);
            let key = (entry.session().to_owned(), entry.exec());
            if self.by_exec.get(&key) == Some(&number) {
                self.by_exec.remove(&key);
            }
        }
    }

    pub(super) fn open(&self, is_meant: impl Fn(&Entry) -> bool) -> Vec<u64> {
        let open = self.entries.iter().filter(|(_, entry)| entry.is_open());
        let meant = open.filter(|(_, entry)| is_meant(entry));
        meant.map(|(number, _)| *number).collect()
    }

    /// Why no more may wait, in words.
    pub(super) fn full(&self, question: &Question<'_>, size: usize) -> Option<String> {
        let open = || self.entries.values().filter(|entry| entry.is_open());
        let of_gate = open().filter(|entry| entry.gate() == question.session.gate.as_str());
        let of_session = open().filter(|entry| entry.session() == question.session.id);
        if self.waiting >= WAITING_IN_ALL || self.waiting_bytes + size > WAITING_BYTES {
            return Some("too many commands wait for a person already".to_owned());
        }
        if of_gate.count() >= WAITING_OF_ONE_GATE {
            return Some(format!(
                "{WAITING_OF_ONE_GATE} commands of this gate wait for a person already"
            ));
        }
        (of_session.count() >= WAITING_OF_ONE_SESSION).then(|| {
            format!("{WAITING_OF_ONE_SESSION} commands of this session wait for a person already")
        })
    }

    /// Forty random bits, as letters and digits; none that is in use.
    pub(super) fn new_id(&self) -> Option<String> {
        for _ in 0..8 {
            let bytes = match random::sixteen_bytes() {
                Ok(bytes) => bytes,
                Err(error) => {
                    if let Some(held_back) = NO_ID.admit() {
                        tracing::error!(held_back, "drawing random bytes: {error}");
                    }
                    return None;
                }
            };
            let letters = bytes.iter().take(8);
            let id: String = letters
                .map(|byte| char::from(LETTERS[usize::from(byte % 32)]))
                .collect();
            if !self.by_id.contains_key(&id) {
                return Some(id);
            }
        }
        None
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) recorded: Recorded,
    pub(super) size: usize,
    /// The call that waits.
    pub(super) waiter: Option<mpsc::Sender<Control>>,
    /// Since when none does.
    pub(super) away_since: Option<SystemTime>,
}

impl Entry {
    pub(super) fn is_open(&self) -> bool {
        self.recorded.approval.state() == pb::ApprovalState::Pending
    }

    pub(super) fn session(&self) -> &str {
        let session = self.recorded.approval.session.as_ref();
        session.map_or("", |session| session.session_id.as_str())
    }

    pub(super) fn gate(&self) -> &str {
        let session = self.recorded.approval.session.as_ref();
        session.map_or("", |session| session.gate.as_str())
    }

    pub(super) fn exec(&self) -> u64 {
        let exec = self.recorded.approval.exec.as_ref();
        exec.map_or(0, |exec| exec.exec_id)
    }
}

/// How an approval is closed.
pub(super) struct Closing {
    pub(super) state: pb::ApprovalState,
    pub(super) resolution: pb::Resolution,
}

impl Closing {
    pub(super) fn by_nobody(
        state: pb::ApprovalState,
        note: impl Into<String>,
        now: SystemTime,
    ) -> Self {
        Self {
            state,
            resolution: pb::Resolution {
                resolved_by: String::new(),
                resolved_at: Some(now.into()),
                note: note.into(),
                grant: None,
            },
        }
    }
}

/// What it takes in memory, about: besides its bytes, each of what there may be many of.
fn size_in_memory(approval: &pb::Approval) -> usize {
    let parts = approval.exec.as_ref().map_or(0, |exec| {
        exec.arguments.len() + exec.environment_names.len()
    });
    prost::Message::encoded_len(approval) + parts * size_of::<prost::bytes::Bytes>()
}
