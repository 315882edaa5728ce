//! What is on the desk: what is open, what was closed lately, and how much that may be.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

use super::Control;
use crate::pb::approval::v1 as pb;
use crate::pb::v1;
use crate::policyd::approvals::approval::{self, CODE_OVERLOADED, CODE_TOO_LONG, Question};
use crate::policyd::approvals::grants::Grants;
use crate::policyd::approvals::ledger::Recorded;
use crate::policyd::rules::SessionFacts;
use crate::policyd::service::size_of_facts;
use crate::policyd::throttle::Throttle;
use crate::sys::random;

/// Most execs that wait for a person: in all, of one gate, and of one session.
pub(in crate::policyd::approvals) const WAITING_IN_ALL: usize = 4_096;
const WAITING_OF_ONE_GATE: usize = 1_024;
pub(in crate::policyd) const WAITING_OF_ONE_SESSION: usize = 256;
/// Most bytes that they take: in all, of one gate, and of one session.
pub(in crate::policyd::approvals) const WAITING_BYTES: usize = 64 << 20;
const WAITING_BYTES_OF_ONE_GATE: usize = 16 << 20;
const WAITING_BYTES_OF_ONE_SESSION: usize = 8 << 20;
/// Most closed approvals that are kept to be told of, and most bytes that they take.
pub(in crate::policyd) const CLOSED: usize = 4_096;
pub(in crate::policyd::approvals) const CLOSED_BYTES: usize = 64 << 20;
/// Letters of ids: none that are taken for another.
const LETTERS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Why a question can't wait for a person: a code, and words.
pub(super) type NoRoom = (&'static str, String);

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
    /// Decisions that hold no longer, and may still be on disk; of those that an operator took back, what they were.
    /// There are no more than were on disk: while that fails, none is added there.
    pub(super) unforgotten: BTreeMap<String, Option<pb::Grant>>,
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
        asked: Option<Asked>,
        waiter: Option<mpsc::Sender<Control>>,
        away_since: Option<SystemTime>,
    ) {
        let number = self.next;
        self.next += 1;
        let size =
            size_in_memory(&recorded.approval) + asked.as_ref().map_or(0, |asked| asked.size);
        let entry = Entry {
            recorded,
            asked: asked.map(Arc::new),
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
        let approval = Arc::make_mut(&mut entry.recorded.approval);
        approval.state = closing.state.into();
        approval.resolution = Some(closing.resolution);
        entry.away_since = None;
        self.waiting -= 1;
        self.waiting_bytes -= entry.size;
        entry.asked = None;
        entry.size = size_in_memory(&entry.recorded.approval);
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

    /// Keeps a question as it is asked now, with the approval that it has. There may be more of it than before.
    pub(super) fn keep(&mut self, number: u64, question: &Question<'_>) -> Result<(), NoRoom> {
        let Some(entry) = self.entries.get(&number).filter(|entry| entry.is_open()) else {
            return Ok(());
        };
        let known = entry.asked.as_ref();
        if known.is_some_and(|asked| asked.is_of(question)) {
            return Ok(());
        }
        let asked = self.asked(question);
        let size = size_in_memory(&entry.recorded.approval) + asked.size;
        self.has_room(question, size, Some(number))?;
        if let Some(entry) = self.entries.get_mut(&number) {
            self.waiting_bytes -= entry.size;
            entry.size = size;
            entry.asked = Some(Arc::new(asked));
            self.waiting_bytes += size;
        }
        Ok(())
    }

    /// What is kept of a question besides what its approval has of it.
    pub(super) fn asked(&self, question: &Question<'_>) -> Asked {
        let rest = approval::apart(&rest_of(question.exec));
        let parts = rest.environment_names.len()
            + rest.environment_variables.len() * 2
            + rest.redacted_arguments.len();
        let size = prost::Message::encoded_len(&rest)
            + parts * size_of::<prost::bytes::Bytes>()
            + size_of::<Asked>()
            + size_of_facts(question.session);
        let mut others = self
            .entries
            .values()
            .filter_map(|entry| entry.asked.as_ref());
        // What a session says of itself is there once, and counts each time: any may be the last to need it.
        let known = others.find(|other| *other.session == *question.session);
        let session = known.map_or_else(
            || Arc::new(question.session.clone()),
            |other| Arc::clone(&other.session),
        );
        Asked {
            session,
            rest,
            size,
        }
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

    /// Whether one of this size in memory may wait, in the place of the approval of this number if there is one.
    pub(super) fn has_room(
        &self,
        question: &Question<'_>,
        size: usize,
        in_place_of: Option<u64>,
    ) -> Result<(), NoRoom> {
        let most = WAITING_BYTES_OF_ONE_SESSION;
        if size > most {
            let reason = format!(
                "the command and its variables take {size} bytes, and one that waits for a person {most} at most"
            );
            return Err((CODE_TOO_LONG, reason));
        }
        let full = self.full(question, size, in_place_of);
        full.map_or(Ok(()), |reason| Err((CODE_OVERLOADED, reason)))
    }

    /// Why no more may wait, in words.
    fn full(
        &self,
        question: &Question<'_>,
        size: usize,
        in_place_of: Option<u64>,
    ) -> Option<String> {
        let open = || {
            let others = self
                .entries
                .iter()
                .filter(|(number, entry)| entry.is_open() && Some(**number) != in_place_of);
            others.map(|(_, entry)| entry)
        };
        let add = |(count, bytes), entry: &Entry| (count + 1, bytes + entry.size);
        let (of_gate, bytes_of_gate) = open()
            .filter(|entry| entry.gate() == question.session.gate.as_str())
            .fold((0, size), add);
        let (of_session, bytes_of_session) = open()
            .filter(|entry| entry.session() == question.session.id)
            .fold((0, size), add);
        let own = in_place_of.and_then(|number| self.entries.get(&number));
        let (waiting, bytes) = own.map_or((self.waiting, self.waiting_bytes), |own| {
            (self.waiting - 1, self.waiting_bytes - own.size)
        });
        if waiting >= WAITING_IN_ALL || bytes + size > WAITING_BYTES {
            return Some("too many commands wait for a person already".to_owned());
        }
        if of_gate >= WAITING_OF_ONE_GATE {
            return Some(format!(
                "{WAITING_OF_ONE_GATE} commands of this gate wait for a person already"
            ));
        }
        if bytes_of_gate > WAITING_BYTES_OF_ONE_GATE {
            return Some(format!(
                "commands of this gate of {} MiB wait for a person already",
                WAITING_BYTES_OF_ONE_GATE >> 20
            ));
        }
        if of_session >= WAITING_OF_ONE_SESSION {
            return Some(format!(
                "{WAITING_OF_ONE_SESSION} commands of this session wait for a person already"
            ));
        }
        (bytes_of_session > WAITING_BYTES_OF_ONE_SESSION).then(|| {
            format!(
                "commands of this session of {} MiB wait for a person already",
                WAITING_BYTES_OF_ONE_SESSION >> 20
            )
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

/// What was asked, so that rules which come later can be asked about it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) session: Arc<SessionFacts>,
    /// The exec, without what its approval has of it.
    rest: v1::ExecRequested,
    /// What it takes in memory besides its approval.
    pub(super) size: usize,
}

impl Asked {
    fn is_of(&self, question: &Question<'_>) -> bool {
        self.rest == rest_of(question.exec) && *self.session == *question.session
    }

    /// The exec as it was asked about, with what its approval shows.
    pub(super) fn exec(&self, approval: &pb::Approval) -> v1::ExecRequested {
        let shown = approval.exec.clone().unwrap_or_default();
        v1::ExecRequested {
            file: shown.file,
            arguments: shown.arguments,
            workdir: shown.workdir,
            executable: shown.executable,
            ..self.rest.clone()
        }
    }
}

fn rest_of(exec: &v1::ExecRequested) -> v1::ExecRequested {
    v1::ExecRequested {
        file: prost::bytes::Bytes::new(),
        arguments: Vec::new(),
        workdir: prost::bytes::Bytes::new(),
        executable: None,
        ..exec.clone()
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) recorded: Recorded,
    /// While it is open; `None`: its gate hasn't asked since the service began.
    pub(super) asked: Option<Arc<Asked>>,
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

    /// Rules of this revision ask for it.
    pub(super) fn judged_by(&mut self, revision: &str) {
        if self.recorded.approval.policy_revision != revision {
            let approval = Arc::make_mut(&mut self.recorded.approval);
            revision.clone_into(&mut approval.policy_revision);
        }
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
pub(in crate::policyd::approvals) fn size_in_memory(approval: &pb::Approval) -> usize {
    let parts = approval.exec.as_ref().map_or(0, |exec| {
        exec.arguments.len() + exec.environment_names.len()
    });
    let session = approval.session.as_ref();
    let labels = session.map_or(0, |session| session.labels.len());
    prost::Message::encoded_len(approval)
        + parts * size_of::<prost::bytes::Bytes>()
        + labels * size_of::<(String, String)>()
        + size_of::<pb::Approval>()
}
