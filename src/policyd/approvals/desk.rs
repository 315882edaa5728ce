//! Where gates ask, and operators decide.

mod state;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::{broadcast, mpsc};

use super::approval::{
    self, CODE_OVERLOADED, CODE_TOO_LONG, Decided, LONGEST_COMMAND, Question, circumstances_digest,
    denial, digest_of, time,
};
use super::grants::{self, Remembered};
use super::ledger::{Change, Kept, Ledger, NotRecorded, Recorded, Termination};
use crate::pb::approval::v1 as pb;
use crate::pb::v1;
use crate::policyd::operators::Operator;

use self::state::{Closing, Entry, State};

pub(in crate::policyd) use self::state::{CLOSED, WAITING_OF_ONE_SESSION};

/// How long an approval stays open whose gate is away: gates that come back at all do so sooner.
const GATE_AWAY: Duration = Duration::from_secs(60);
/// What a gate is told to wait longer than the approval is open, so that it is told of its end.
const MARGIN: Duration = Duration::from_secs(5);
/// Between looks at what has expired.
const SWEEP: Duration = Duration::from_millis(500);
/// Changes that a watcher may be behind.
const UNSEEN_CHANGES: usize = 1_024;

/// What a session's call is told.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::policyd) enum Control {
    /// What was asked of a person is decided.
    Verdict(Box<Decided>),
    /// The session is to end; who says so, and why.
    Terminate(Box<Termination>),
}

/// What comes of a question.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::policyd) enum Answered {
    /// A person is asked; the verdict follows as a [`Control`].
    Pending {
        /// How long the gate is to wait.
        within: Duration,
        /// For the user who waits.
        message: String,
        /// The approval.
        approval_id: String,
    },
    /// It is decided already.
    Decided(Box<Decided>),
}

/// Something that happened to an approval.
#[derive(Debug, Clone)]
pub(in crate::policyd) struct Happened {
    pub(in crate::policyd) change: pb::ApprovalChange,
    pub(in crate::policyd) approval: Arc<pb::Approval>,
}

/// What came of a decision.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Resolved {
    pub(super) outcome: pb::ResolveOutcome,
    pub(super) approval: pb::Approval,
}

/// Why a decision wasn't taken.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum ResolveError {
    #[error("there is no approval {0}, or it was closed long ago")]
    Unknown(String),
    #[error("{0}")]
    Scope(String),
    #[error(transparent)]
    NotRecorded(#[from] NotRecorded),
}

/// What is open, what was closed lately, and what is remembered. Clones are the same.
#[derive(Debug, Clone)]
pub(in crate::policyd) struct Desk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// Held by whoever decides, so that of two who do so at once the second learns of the first.
    deciding: tokio::sync::Mutex<()>,
    changes: broadcast::Sender<Happened>,
    ledger: Option<Ledger>,
}

impl Desk {
    pub(in crate::policyd) fn new(ledger: Option<Ledger>, kept: Kept, now: SystemTime) -> Self {
        let Kept { approvals, grants } = kept;
        let mut state = State::default();
        for recorded in approvals {
            let is_open = recorded.approval.state() == pb::ApprovalState::Pending;
            state.insert(recorded, None, is_open.then_some(now));
        }
        for remembered in grants {
            state.grants.add(remembered);
        }
        Self(Arc::new(Inner {
            state: Mutex::new(state),
            deciding: tokio::sync::Mutex::new(()),
            changes: broadcast::Sender::new(UNSEEN_CHANGES),
            ledger,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No change panics half-way, so a panic elsewhere can't have spoiled the state.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, change: Change) {
        if let Some(ledger) = &self.0.ledger {
            ledger.note(change);
        }
    }

    fn tell(&self, change: pb::ApprovalChange, approval: &pb::Approval) {
        // Nobody may be watching.
        let _ = self.0.changes.send(Happened {
            change,
            approval: Arc::new(approval.clone()),
        });
    }

    /// Asks a person, unless somebody has decided already.
    pub(in crate::policyd) fn ask(
        &self,
        question: &Question<'_>,
        waiter: &mpsc::Sender<Control>,
        now: SystemTime,
    ) -> Answered {
        let digest = digest_of(question.exec);
        let size = approval::command_size(question.exec);
        let refused = |code: &str, reason: String| {
            let verdict = v1::Verdict {
                exec_id: question.exec.exec_id,
                decision: Some(denial(reason)),
                reason_code: code.to_owned(),
                rule: question.ruling.rule.clone(),
                policy_revision: question.revision.to_owned(),
                reuse: None,
                service_time: None,
            };
            Answered::Decided(Box::new(verdict.into()))
        };
        let mut state = self.lock();
        let key = (question.session.id.clone(), question.exec.exec_id);
        if let Some(number) = state.by_exec.get(&key).copied()
            && let Some(entry) = state.entries.get_mut(&number)
        {
            let effect = approval::effect_of(question);
            let approval = &entry.recorded.approval;
            let is_same = entry.recorded.question == digest
                && approval.rule == question.ruling.rule
                && approval.effect == effect;
            if is_same && entry.is_open() && time(approval.expires_at) > now {
                entry.waiter = Some(waiter.clone());
                entry.away_since = None;
                return pending(&entry.recorded.approval, now);
            }
            if is_same && let Some(decided) = approval::decided(approval) {
                return Answered::Decided(Box::new(decided));
            }
            if entry.is_open() {
                let note = "it was asked about anew, and differently";
                let closing = Closing::by_nobody(pb::ApprovalState::Withdrawn, note, now);
                self.close(&mut state, number, closing);
            }
        }
        if let Some(decided) = state.grants.verdict(question, now) {
            return Answered::Decided(Box::new(decided));
        }
        if size > LONGEST_COMMAND {
            let reason = format!(
                "the command has {size} bytes, and a person is asked about {LONGEST_COMMAND} at most"
            );
            return refused(CODE_TOO_LONG, reason);
        }
        if let Some(full) = state.full(question, size) {
            return refused(CODE_OVERLOADED, full);
        }
        let Some(id) = state.new_id() else {
            return refused(CODE_OVERLOADED, "no id could be drawn".to_owned());
        };
        let recorded = Recorded {
            approval: approval::opened(question, id, now),
            question: digest,
            circumstances: circumstances_digest(question.exec),
        };
        let answered = pending(&recorded.approval, now);
        state.insert(recorded.clone(), Some(waiter.clone()), None);
        self.tell(pb::ApprovalChange::Opened, &recorded.approval);
        // Before anybody else sees it, so that what is recorded next is newer.
        self.note(Change::Approval(Box::new(recorded.clone())));
        drop(state);
        // A session can have as many as it likes, one after the other.
        tracing::debug!(
            session = question.session.id,
            exec = question.exec.exec_id,
            gate = %question.session.gate,
            approval = recorded.approval.approval_id,
            rule = recorded.approval.rule,
            "waiting for a person"
        );
        answered
    }

    /// Closes an approval that is open. The caller has the state locked.
    fn close(&self, state: &mut State, number: u64, closing: Closing) {
        let Some(recorded) = state.close(number, closing) else {
            return;
        };
        self.closed(recorded);
    }

    fn closed(&self, recorded: Recorded) {
        let approval = &recorded.approval;
        self.tell(pb::ApprovalChange::Closed, approval);
        let resolution = approval.resolution.clone().unwrap_or_default();
        let session = approval.session.as_ref().map(|session| &session.session_id);
        let exec = approval.exec.as_ref().map(|exec| exec.exec_id);
        let (id, state) = (
            &approval.approval_id,
            super::json::state_name(approval.state()),
        );
        match resolution.resolved_by.as_str() {
            "" => tracing::debug!(approval = id, session, exec, state, "an approval is closed"),
            by => tracing::info!(
                approval = id,
                session,
                exec,
                by,
                state,
                "an operator has decided"
            ),
        }
        self.note(Change::Approval(Box::new(recorded)));
    }

    fn close_all(&self, note: &str, now: SystemTime, is_meant: impl Fn(&Entry) -> bool) {
        let mut state = self.lock();
        for number in state.open(is_meant) {
            let closing = Closing::by_nobody(pb::ApprovalState::Withdrawn, note, now);
            self.close(&mut state, number, closing);
        }
    }

    /// An exec needs no decision any more.
    pub(in crate::policyd) fn withdraw(
        &self,
        session: &str,
        exec: u64,
        note: &str,
        now: SystemTime,
    ) {
        let mut state = self.lock();
        let number = state.by_exec.get(&(session.to_owned(), exec)).copied();
        if let Some(number) = number {
            let closing = Closing::by_nobody(pb::ApprovalState::Withdrawn, note, now);
            self.close(&mut state, number, closing);
        }
    }

    /// A session is over: nothing of it waits, and what was decided for it holds no longer.
    pub(in crate::policyd) fn session_ended(&self, session: &str, now: SystemTime) {
        self.close_all("the session ended", now, |entry| entry.session() == session);
        let forgotten = self
            .lock()
            .grants
            .remove_those(|grant| grant.session_id == session);
        if !forgotten.is_empty() {
            self.note(Change::Forget(forgotten));
        }
    }

    /// A session's call has ended; it may come back.
    pub(in crate::policyd) fn call_ended(&self, waiter: &mpsc::Sender<Control>, now: SystemTime) {
        for entry in self.lock().entries.values_mut() {
            if entry.is_open()
                && entry
                    .waiter
                    .as_ref()
                    .is_some_and(|known| known.same_channel(waiter))
            {
                entry.waiter = None;
                entry.away_since = Some(now);
            }
        }
    }

    /// How many execs of each session wait.
    pub(in crate::policyd) fn waiting(&self) -> HashMap<String, u32> {
        let mut counts = HashMap::new();
        for entry in self.lock().entries.values().filter(|entry| entry.is_open()) {
            *counts.entry(entry.session().to_owned()).or_default() += 1;
        }
        counts
    }

    /// Decides. The decision is on disk before it has any effect.
    pub(super) async fn resolve(
        &self,
        id: &str,
        decision: pb::Decision,
        note: &str,
        scope: &pb::Scope,
        operator: &Operator,
    ) -> Result<Resolved, ResolveError> {
        let _alone = self.0.deciding.lock().await;
        let now = SystemTime::now();
        self.sweep(now);
        let (number, before) = {
            let state = self.lock();
            let unknown = || ResolveError::Unknown(id.to_owned());
            let number = state.by_id.get(id).copied().ok_or_else(unknown)?;
            let entry = state.entries.get(&number).ok_or_else(unknown)?;
            (number, entry.recorded.clone())
        };
        let closed_before = |approval| Resolved {
            outcome: pb::ResolveOutcome::ClosedBefore,
            approval,
        };
        if before.approval.state() != pb::ApprovalState::Pending {
            return Ok(closed_before(before.approval));
        }
        let grant = grants::grant(&before.approval, decision, scope, operator.as_str(), now)
            .map_err(ResolveError::Scope)?;
        let remembered = grant.clone().map(|grant| Remembered {
            grant,
            effect: before.approval.effect.clone(),
            circumstances: before.circumstances,
        });
        let closing = Closing {
            state: match decision {
                pb::Decision::Approve => pb::ApprovalState::Approved,
                pb::Decision::Deny | pb::Decision::Unspecified => pb::ApprovalState::Denied,
            },
            resolution: pb::Resolution {
                resolved_by: operator.to_string(),
                resolved_at: Some(now.into()),
                note: note.to_owned(),
                grant,
            },
        };
        if let Some(ledger) = &self.0.ledger {
            let mut after = before.clone();
            after.approval.state = closing.state.into();
            after.approval.resolution = Some(closing.resolution.clone());
            let change = Change::Decision(Box::new(after), remembered.clone().map(Box::new));
            ledger.write(change).await?;
        }
        let mut state = self.lock();
        let Some(recorded) = state.close(number, closing) else {
            // It was closed meanwhile, and nothing follows from the decision.
            let approval = state
                .entries
                .get(&number)
                .map(|entry| entry.recorded.clone());
            drop(state);
            if let Some(grant) = remembered {
                self.note(Change::Forget(vec![grant.grant.approval_id]));
            }
            return match approval {
                Some(recorded) => {
                    self.note(Change::Approval(Box::new(recorded.clone())));
                    Ok(closed_before(recorded.approval))
                }
                None => Err(ResolveError::Unknown(id.to_owned())),
            };
        };
        let evicted = remembered.and_then(|remembered| state.grants.add(remembered));
        let approval = recorded.approval.clone();
        self.closed(recorded);
        drop(state);
        if let Some(evicted) = evicted {
            self.note(Change::Forget(vec![evicted]));
        }
        Ok(Resolved {
            outcome: pb::ResolveOutcome::Resolved,
            approval,
        })
    }

    /// Closes what has expired, or whose gate doesn't come back; forgets what holds no longer.
    pub(super) fn sweep(&self, now: SystemTime) {
        let mut state = self.lock();
        let expired = state.open(|entry| time(entry.recorded.approval.expires_at) <= now);
        for number in expired {
            let note = state
                .entries
                .get(&number)
                .map_or_else(String::new, |entry| {
                    let approval = &entry.recorded.approval;
                    let open = time(approval.expires_at).duration_since(time(approval.opened_at));
                    format!(
                        "nobody approved it within {} (approval {})",
                        humantime::format_duration(Duration::from_secs(
                            open.unwrap_or_default().as_secs()
                        )),
                        approval.approval_id
                    )
                });
            let closing = Closing::by_nobody(pb::ApprovalState::Expired, note, now);
            self.close(&mut state, number, closing);
        }
        let is_left = |entry: &Entry| {
            let away = entry.away_since.map(|since| now.duration_since(since));
            away.is_some_and(|away| away.unwrap_or_default() >= GATE_AWAY)
        };
        for number in state.open(is_left) {
            let note = "its gate went away";
            let closing = Closing::by_nobody(pb::ApprovalState::Withdrawn, note, now);
            self.close(&mut state, number, closing);
        }
        let forgotten = state
            .grants
            .remove_those(|grant| time(grant.expires_at) <= now);
        drop(state);
        if !forgotten.is_empty() {
            self.note(Change::Forget(forgotten));
        }
    }

    /// Sweeps for as long as the service runs.
    pub(in crate::policyd) async fn keep_swept(self) {
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            sweep.tick().await;
            self.sweep(SystemTime::now());
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<pb::Approval> {
        let state = self.lock();
        let number = state.by_id.get(id)?;
        let entry = state.entries.get(number)?;
        Some(state.told(&entry.recorded.approval))
    }

    /// The latest first, opened before number `before`, and about so many bytes of them at most; and the
    /// number to go on before, if there are more.
    pub(super) fn list(
        &self,
        wanted: Option<pb::ApprovalState>,
        before: u64,
        most: usize,
        most_bytes: usize,
    ) -> (Vec<pb::Approval>, Option<u64>) {
        let state = self.lock();
        let mut found = Vec::new();
        let mut bytes = 0;
        let mut last = 0;
        for (number, entry) in state.entries.range(..before).rev() {
            let approval = &entry.recorded.approval;
            if wanted.is_some_and(|wanted| approval.state() != wanted) {
                continue;
            }
            if found.len() == most || bytes > most_bytes {
                return (found, Some(last));
            }
            bytes += entry.size;
            found.push(state.told(approval));
            last = *number;
        }
        (found, None)
    }

    /// What is open now, the earliest first, and all changes from now on.
    pub(in crate::policyd) fn watch(&self) -> (Vec<pb::Approval>, broadcast::Receiver<Happened>) {
        let state = self.lock();
        let open = state.entries.values().filter(|entry| entry.is_open());
        let open = open.map(|entry| entry.recorded.approval.clone()).collect();
        // Changes are told with the state locked, so none is missed and none told twice.
        (open, self.0.changes.subscribe())
    }

    /// What is remembered, the latest first.
    pub(super) fn grants(&self) -> Vec<pb::Grant> {
        let state = self.lock();
        let all = state.grants.all().rev();
        all.map(|remembered| remembered.grant.clone()).collect()
    }

    /// Has a decision hold no longer; `None` if it doesn't.
    pub(super) fn revoke(&self, approval_id: &str) -> Option<pb::Grant> {
        let removed = self.lock().grants.remove(approval_id)?;
        self.note(Change::Forget(vec![approval_id.to_owned()]));
        Some(removed.grant)
    }
}

fn pending(approval: &pb::Approval, now: SystemTime) -> Answered {
    let left = time(approval.expires_at).duration_since(now);
    let left = left.unwrap_or_default();
    Answered::Pending {
        within: left + MARGIN,
        message: approval::waiting(approval, left),
        approval_id: approval.approval_id.clone(),
    }
}
