//! What a session's policy, its driver and the transport of its call share, under one lock.

mod answers;
mod calls;
mod policy;

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, SystemTime};

use prost::Message;
use prost::bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connector::Refusal;
use super::counters::Tally;
use super::load::Shares;
use super::options::LinkOptions;
use super::outage::Outages;
use super::state::{Load, SessionState};
use crate::journal::{Attendance, Changes, Fate, Outlives, Position, Since, Source};
use crate::model::{ExecId, SessionId, Verdict, WithdrawalReason};
use crate::pb::v1::SessionRequest;
use crate::pb::v1::session_request::Event;
use crate::pb::{self, TraceParent};
use crate::server::{Pause, SessionContext};

pub(super) use self::policy::SessionLink;

/// What a session's policy, its driver and the transport of its call share.
#[derive(Debug)]
pub(super) struct Shared {
    locked: Mutex<Locked>,
    /// Hastens the driver's next attempt.
    pub(super) attempt_now: Notify,
    /// Cancelled when nothing further will be told.
    pub(super) over: CancellationToken,
    pub(super) options: Arc<LinkOptions>,
    pub(super) tally: Arc<Tally>,
    session: SessionContext,
    /// Names of the environment variables whose values the service gets.
    environment: Mutex<Arc<HashSet<Vec<u8>>>>,
    /// Whether the service would like to see digests of programs.
    digests_wanted: AtomicBool,
    /// The session's first event.
    first: SessionRequest,
    /// The journal's attention, where there is a journal.
    attendance: OnceLock<Attendance>,
    /// The session's part of what all sessions may have.
    shares: Shares,
    /// When the service can't be reached, by any session.
    outages: Arc<Outages>,
    /// When it refuses this session alone.
    refusals: Outages,
}

#[derive(Debug)]
struct Locked {
    state: SessionState<Asker>,
    /// The transport, when it waits for something to send.
    transport: Option<Waker>,
    /// Events that wait for others, where the transport has sent all before them.
    gathered: Option<Gathered>,
    /// What of the session is noted in its shares.
    noted: Load,
    /// Where it calls, or did last, and what is wrong with the connection there.
    endpoint: String,
    refusal: Refusal,
}

/// Events that are sent together: with the next question, or when they have waited long enough.
#[derive(Debug, Clone, Copy)]
struct Gathered {
    count: usize,
    /// When they go at the latest.
    due: Instant,
}

/// How long an event that nobody waits for may wait for others. Each message that is sent by itself wakes the
/// service, at the cost of the command that has just begun.
pub(super) const GATHERING: Duration = Duration::from_millis(5);

/// As many events don't wait for more.
pub(super) const MOST_GATHERED: usize = 64;

/// Who waits for an answer.
#[derive(Debug)]
pub(super) struct Asker {
    reply: oneshot::Sender<Reply>,
    /// While a person decides: what the user may be told, and the pause of the session's clock.
    person: Option<(String, Pause)>,
}

#[derive(Debug)]
enum Reply {
    Verdict(Verdict),
    Unreachable(String),
}

/// An exec for which a person is deciding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersonWait {
    /// The session.
    pub session: SessionId,
    /// The exec.
    pub exec: ExecId,
    /// What the waiting user may be told; one line, safe for a terminal; may be empty.
    pub message: String,
}

impl Source for Shared {
    fn changes(&self, since: Since) -> Changes {
        self.update(|state| state.changes(since))
    }
}

impl Shared {
    pub(super) fn new(
        options: Arc<LinkOptions>,
        tally: Arc<Tally>,
        outages: Arc<Outages>,
        shares: Shares,
        session: SessionContext,
    ) -> Self {
        let mut first = pb::session_started(
            &session.description,
            options.gate.gate(),
            options.gate.user(),
        );
        if let Some(Event::SessionStarted(started)) = &mut first.event {
            options.disclosure.redact_words(&mut started.command);
        }
        let state = SessionState::new(options.bounds(), first.encode_to_vec().into());
        Self {
            locked: Mutex::new(Locked {
                state,
                transport: None,
                gathered: None,
                noted: Load::default(),
                endpoint: options.endpoint.to_string(),
                refusal: Refusal::default(),
            }),
            attempt_now: Notify::new(),
            over: CancellationToken::new(),
            options,
            tally,
            session,
            environment: Mutex::default(),
            digests_wanted: AtomicBool::new(false),
            first,
            attendance: OnceLock::new(),
            shares,
            outages,
            refusals: Outages::default(),
        }
    }

    /// Has the journal, if there is one, keep the session's events from here on.
    pub(super) fn attend(self: &Arc<Self>) {
        if let Some(journal) = &self.options.journal {
            let source: Weak<Self> = Arc::downgrade(self);
            let opening = self.first.encode_to_vec().into();
            let id = self.session.description.id;
            let _ = self.attendance.set(journal.attend(id, opening, source));
        }
    }

    /// The session's events change no more: what becomes of those that aren't settled.
    pub(super) async fn fate(&self) -> Fate {
        match self.attendance.get() {
            // Without its thread nothing is kept.
            Some(attendance) => attendance.close().await.unwrap_or(Fate::Lost),
            None => Fate::Lost,
        }
    }

    /// Tells the journal that there may be something to keep, or to forget.
    fn changed(&self) {
        if let Some(attendance) = self.attendance.get() {
            attendance.changed();
        }
    }

    /// Has an event outlive the gate, where there is a journal.
    fn keep(&self, sequence: u64, body: &[u8], position: Position) -> Outlives {
        let attendance = self.attendance.get();
        attendance.map_or(Outlives::Nothing, |attendance| {
            attendance.told(sequence, body, position)
        })
    }

    /// The trace that the session's calls belong to.
    pub(super) fn trace(&self) -> TraceParent {
        let wider = self.options.trace_parent.clone();
        wider.unwrap_or_else(|| TraceParent::of_session(self.session.description.id))
    }

    fn environment_names<T>(&self, look: impl FnOnce(&mut Arc<HashSet<Vec<u8>>>) -> T) -> T {
        let mut names = self
            .environment
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        look(&mut names)
    }

    /// Changes the state, where that gives the transport nothing to send.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut SessionState<Asker>) -> T) -> T {
        let mut locked = self.lock();
        let changed = change(&mut locked.state);
        self.note(&mut locked);
        changed
    }

    /// Records an event that nobody waits for.
    fn record(&self, body: &Bytes) {
        let now = Instant::now();
        self.tell_by(
            |gathered| {
                let due = gathered.map_or(now + GATHERING, |gathered| gathered.due);
                let count = gathered.map_or(0, |gathered| gathered.count) + 1;
                (count < MOST_GATHERED).then_some(Gathered { count, due })
            },
            |state| self.place(state, body, Position::Within, now),
        );
    }

    /// Gives an event its place among the session's.
    fn place(
        &self,
        state: &mut SessionState<Asker>,
        body: &Bytes,
        position: Position,
        now: Instant,
    ) {
        if let Some(sequence) = state.record(body.clone(), now) {
            self.keep(sequence, body, position);
        }
    }

    /// Changes the state, and tells the transport that there may be something to send.
    fn tell<T>(&self, change: impl FnOnce(&mut SessionState<Asker>) -> T) -> T {
        self.tell_by(|_| None, change)
    }

    /// The same, where `gather` says what waits for others behind that.
    fn tell_by<T>(
        &self,
        gather: impl FnOnce(Option<Gathered>) -> Option<Gathered>,
        change: impl FnOnce(&mut SessionState<Asker>) -> T,
    ) -> T {
        let (value, dropped, transport) = {
            let mut locked = self.lock();
            if locked.transport.is_some() || locked.gathered.is_some() {
                locked.gathered = gather(locked.gathered);
            }
            self.shares.allow(&mut locked.state);
            let value = change(&mut locked.state);
            self.note(&mut locked);
            self.shares.allow(&mut locked.state);
            let dropped = locked.state.shed();
            self.note(&mut locked);
            (value, dropped, locked.transport.take())
        };
        if let Some(transport) = transport {
            transport.wake();
        }
        self.changed();
        if dropped > 0 {
            self.lost(dropped, "the bound on kept events was reached");
        }
        value
    }

    fn note(&self, locked: &mut Locked) {
        let load = locked.state.load();
        self.shares.note(&mut locked.noted, load);
    }

    fn lock(&self) -> MutexGuard<'_, Locked> {
        // No change panics half-way, so a panic elsewhere can't have spoiled the state.
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the service stop deciding an exec that the link has waited for long enough.
    fn withdraw_at_deadline(&self, exec: ExecId) {
        let reason = WithdrawalReason::DeadlinePassed;
        let withdrawn = pb::exec_withdrawn(exec, reason, SystemTime::now());
        self.record(&withdrawn.encode_to_vec().into());
    }

    /// How long ago the oldest event was that isn't settled.
    pub(super) fn oldest_event(&self) -> Option<Duration> {
        self.shares.oldest_event()
    }

    pub(super) fn waiting_for_persons(&self) -> Vec<PersonWait> {
        let session = self.session.description.id;
        self.update(|state| {
            state
                .waiting()
                .filter_map(|(exec, asker)| {
                    let (message, _) = asker.person.as_ref()?;
                    Some(PersonWait {
                        session,
                        exec,
                        message: message.clone(),
                    })
                })
                .collect()
        })
    }
}
