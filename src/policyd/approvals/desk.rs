//! Where gates ask, and operators decide.

mod changes;
mod state;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};

use super::approval::{
    self, CODE_OVERLOADED, CODE_TOO_LONG, Decided, Question, circumstances_digest, denial,
    digest_of, time,
};
use super::grants::{self, Remembered};
use super::ledger::{Change, Kept, Ledger, NotRecorded, Recorded, Termination};
use crate::model::EscalationDecision;
use crate::pb::approval::v1 as pb;
use crate::pb::v1;
use crate::policyd::operators::Operator;
use crate::policyd::rules::{Rules, Ruling, SessionFacts, log_failures};
use crate::policyd::service::{ruling, verdict};
use crate::policyd::sessions;

use self::changes::Changes;
use self::state::{Closing, Entry, State};

pub(in crate::policyd) use self::changes::{Happened, Watch};
pub(in crate::policyd) use self::state::{CLOSED, WAITING_OF_ONE_SESSION};
pub(super) use self::state::{CLOSED_BYTES, WAITING_BYTES, WAITING_IN_ALL, size_in_memory};

/// How long an approval stays open whose gate is away: gates that come back at all do so sooner.
const GATE_AWAY: Duration = Duration::from_secs(60);
/// What a gate is told to wait longer than the approval is open, so that it is told of its end.
const MARGIN: Duration = Duration::from_secs(5);
/// Between looks at what has expired.
const SWEEP: Duration = Duration::from_millis(500);

/// Why an approval is withdrawn that rules which came later don't ask for.
pub(in crate::policyd) const NO_LONGER_ASKED: &str = "the rules ask no longer";
const ASKED_DIFFERENTLY: &str = "it was asked about anew, and differently";

/// What a session's call is told.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::policyd) enum Control {
    /// What was asked of a person is decided.
    Verdict(Box<Decided>),
    /// What was asked of a person is answered otherwise.
    Anew(Box<Anew>),
    /// The session is to end; who says so, and why.
    Terminate(Box<Termination>),
}

/// What comes of an exec that waited, by rules that came into force meanwhile or because its session is to end.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::policyd) struct Anew {
    pub(in crate::policyd) exec_id: u64,
    pub(in crate::policyd) answered: Answered,
    /// What would have been decided, where that is only monitored.
    pub(in crate::policyd) monitored: Option<EscalationDecision>,
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

/// Why a decision that was remembered isn't forgotten for good.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum RevokeError {
    #[error("nothing is remembered of an approval {0}")]
    Unknown(String),
    #[error(
        "the decision holds no longer, but {0}: where the service is started anew before that could be written, which is \
         tried on and on, the decision holds again; see to the disk, and forget it once more to learn whether it is written"
    )]
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
    changes: Changes,
    ledger: Option<Ledger>,
    /// What is in force.
    rules: OnceLock<watch::Receiver<Arc<Rules>>>,
}

impl Desk {
    pub(in crate::policyd) fn new(ledger: Option<Ledger>, kept: Kept, now: SystemTime) -> Self {
        let Kept { approvals, grants } = kept;
        let mut state = State::default();
        for recorded in approvals {
            let is_open = recorded.approval.state() == pb::ApprovalState::Pending;
            state.insert(recorded, None, None, is_open.then_some(now));
        }
        for remembered in grants {
            state.grants.add(remembered);
        }
        Self(Arc::new(Inner {
            state: Mutex::new(state),
            deciding: tokio::sync::Mutex::new(()),
            changes: Changes::new(),
            ledger,
            rules: OnceLock::new(),
        }))
    }

    /// From now on what waits is looked at again when other rules come into force.
    pub(in crate::policyd) fn follow(&self, rules: watch::Receiver<Arc<Rules>>) {
        // It is told once.
        let _ = self.0.rules.set(rules);
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

    /// Asks a person, unless somebody has decided already.
    pub(in crate::policyd) fn ask(
        &self,
        question: &Question<'_>,
        waiter: &mpsc::Sender<Control>,
        now: SystemTime,
    ) -> Answered {
        self.put(&mut self.lock(), question, waiter, now)
    }

    fn put(
        &self,
        state: &mut State,
        question: &Question<'_>,
        waiter: &mpsc::Sender<Control>,
        now: SystemTime,
    ) -> Answered {
        let digest = digest_of(question.exec);
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
        let key = (question.session.id.clone(), question.exec.exec_id);
        if let Some(number) = state.by_exec.get(&key).copied()
            && let Some(entry) = state.entries.get_mut(&number)
        {
            let approval = &entry.recorded.approval;
            let is_same = entry.recorded.question == digest && is_asked_so(approval, question);
            if is_same && entry.is_open() && time(approval.expires_at) > now {
                entry.judged_by(question.revision);
                entry.waiter = Some(waiter.clone());
                entry.away_since = None;
                let answered = pending(&entry.recorded.approval, now);
                let Err((code, reason)) = state.keep(number, question) else {
                    return answered;
                };
                let closing = Closing::by_nobody(pb::ApprovalState::Withdrawn, &*reason, now);
                self.close(state, number, closing);
                return refused(code, reason);
            }
            if is_same && let Some(decided) = approval::decided(approval) {
                return Answered::Decided(Box::new(decided));
            }
            if entry.is_open() {
                let closing =
                    Closing::by_nobody(pb::ApprovalState::Withdrawn, ASKED_DIFFERENTLY, now);
                self.close(state, number, closing);
            }
        }
        if let Some(decided) = state.grants.verdict(question, now) {
            return Answered::Decided(Box::new(decided));
        }
        if let Some(reason) = approval::too_long(question.exec) {
            return refused(CODE_TOO_LONG, reason);
        }
        let Some(id) = state.new_id() else {
            return refused(CODE_OVERLOADED, "no id could be drawn".to_owned());
        };
        let recorded = Recorded {
            approval: Arc::new(approval::opened(question, id, now)),
            question: digest,
            circumstances: circumstances_digest(question.exec),
        };
        let asked = state.asked(question);
        let size = size_in_memory(&recorded.approval) + asked.size;
        if let Err((code, reason)) = state.has_room(question, size, None) {
            return refused(code, reason);
        }
        let answered = pending(&recorded.approval, now);
        state.insert(recorded.clone(), Some(asked), Some(waiter.clone()), None);
        let opened = pb::ApprovalChange::Opened;
        self.0.changes.tell(opened, &recorded.approval);
        // Before anybody else sees it, so that what is recorded next is newer.
        self.note(Change::Approval(Box::new(recorded.clone())));
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
        self.0.changes.tell(pb::ApprovalChange::Closed, approval);
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

    /// An operator has a session end: nothing of it waits any longer, and what did is denied.
    pub(in crate::policyd) fn session_terminated(
        &self,
        session: &str,
        words: &str,
        now: SystemTime,
    ) {
        let mut state = self.lock();
        for number in state.open(|entry| entry.session() == session) {
            let exec_id = state.entries.get(&number).map_or(0, Entry::exec);
            let denied = sessions::denied(exec_id, words);
            let anew = Anew {
                exec_id,
                answered: Answered::Decided(Box::new(denied.into())),
                monitored: None,
            };
            let note = format!("the session was {words}");
            self.answer_anew(&mut state, number, &note, anew, now);
        }
    }

    /// Withdraws what waits, and has it answered otherwise. The caller has the state locked.
    fn answer_anew(&self, state: &mut State, number: u64, note: &str, anew: Anew, now: SystemTime) {
        let waiter = state
            .entries
            .get(&number)
            .and_then(|entry| entry.waiter.clone());
        let closing = Closing::by_nobody(pb::ApprovalState::Withdrawn, note, now);
        self.close(state, number, closing);
        if let Some(waiter) = waiter {
            // As for verdicts there is room, and a call that has ended asks again.
            let _ = waiter.try_send(Control::Anew(Box::new(anew)));
        }
    }

    /// Looks again at what waits, where other rules have come into force since they were last asked about it.
    async fn look_again(&self, number: u64) {
        let Some(rules) = self.0.rules.get().map(|rules| Arc::clone(&rules.borrow())) else {
            return;
        };
        let (session, exec) = {
            let state = self.lock();
            let entry = state.entries.get(&number);
            let entry = entry.filter(|entry| is_overtaken(entry, &rules));
            let Some((entry, asked)) = entry.and_then(|entry| Some((entry, entry.asked.as_ref()?)))
            else {
                return;
            };
            (
                Arc::clone(&asked.session),
                asked.exec(&entry.recorded.approval),
            )
        };
        // A `decide()` may loop until it is cut off.
        let judging = tokio::task::spawn_blocking({
            let (rules, session, exec) = (Arc::clone(&rules), Arc::clone(&session), exec.clone());
            move || {
                let ruling = ruling(&rules, &session, &exec);
                log_failures(&ruling, &session, &exec);
                ruling
            }
        });
        let ruling = judging.await.ok();
        self.judged(number, &rules, &session, &exec, ruling, SystemTime::now());
    }

    /// Does with what waits as rules have it that came into force meanwhile.
    fn judged(
        &self,
        number: u64,
        rules: &Rules,
        session: &SessionFacts,
        exec: &v1::ExecRequested,
        ruling: Option<Ruling>,
        now: SystemTime,
    ) {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(&number) else {
            return;
        };
        if !is_overtaken(entry, rules) {
            return;
        }
        let exec_id = exec.exec_id;
        let Some(ruling) = ruling else {
            let reason =
                "the rules were changed while it waited, and couldn't be asked about it; try again";
            let verdict = v1::Verdict {
                exec_id,
                decision: Some(denial(reason.to_owned())),
                reason_code: CODE_OVERLOADED.to_owned(),
                policy_revision: rules.revision().to_owned(),
                ..v1::Verdict::default()
            };
            let anew = Anew {
                exec_id,
                answered: Answered::Decided(Box::new(verdict.into())),
                monitored: None,
            };
            return self.answer_anew(&mut state, number, reason, anew, now);
        };
        let monitored = ruling.monitored.clone();
        let Some(ask) = &ruling.ask else {
            let verdict = verdict(rules, exec, ruling);
            let anew = Anew {
                exec_id,
                answered: Answered::Decided(Box::new(verdict.into())),
                monitored,
            };
            return self.answer_anew(&mut state, number, NO_LONGER_ASKED, anew, now);
        };
        let question = Question {
            session,
            exec,
            ruling: &ruling,
            ask,
            revision: rules.revision(),
        };
        let Some(waiter) = entry.waiter.clone() else {
            // Its gate asks again when it comes back.
            if is_asked_so(&entry.recorded.approval, &question) {
                entry.judged_by(rules.revision());
            } else {
                let closing =
                    Closing::by_nobody(pb::ApprovalState::Withdrawn, ASKED_DIFFERENTLY, now);
                self.close(&mut state, number, closing);
            }
            return;
        };
        let answered = self.put(&mut state, &question, &waiter, now);
        if state.entries.get(&number).is_some_and(Entry::is_open) {
            return;
        }
        let anew = Anew {
            exec_id,
            answered,
            monitored,
        };
        let _ = waiter.try_send(Control::Anew(Box::new(anew)));
    }

    /// Looks again at all that waits.
    async fn look_again_at_all(&self) {
        let Some(rules) = self.0.rules.get().map(|rules| Arc::clone(&rules.borrow())) else {
            return;
        };
        let overtaken = self.lock().open(|entry| is_overtaken(entry, &rules));
        for number in overtaken {
            self.look_again(number).await;
        }
    }

    /// A session is over: nothing of it waits, and what was decided for it holds no longer.
    pub(in crate::policyd) fn session_ended(&self, session: &str, now: SystemTime) {
        self.close_all("the session ended", now, |entry| entry.session() == session);
        let mut state = self.lock();
        let forgotten = state
            .grants
            .remove_those(|grant| grant.session_id == session);
        self.forget(&mut state, forgotten);
    }

    /// Has decisions that hold no longer taken from the disk, now or as soon as that can be written. The caller has the
    /// state locked.
    fn forget(&self, state: &mut State, forgotten: Vec<String>) {
        if self.0.ledger.is_none() || forgotten.is_empty() {
            return;
        }
        let ids = forgotten.iter().map(|id| (id.clone(), None));
        state.unforgotten.extend(ids);
        self.note(Change::Forget(forgotten));
    }

    /// Has the disk forget what it may not have forgotten yet.
    async fn forget_for_good(&self) {
        let Some(ledger) = &self.0.ledger else {
            return;
        };
        if self.lock().unforgotten.is_empty() {
            return;
        }
        // A decision on an approval whose first one wasn't recorded comes before this or after it.
        let _alone = self.0.deciding.lock().await;
        let ids: Vec<String> = self.lock().unforgotten.keys().cloned().collect();
        if ledger.write(Change::Forget(ids.clone())).await.is_ok() {
            let mut state = self.lock();
            for id in &ids {
                state.unforgotten.remove(id);
            }
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

    /// Whether an exec waits for a person whose gate hasn't asked again since its call, or the service, ended.
    pub(in crate::policyd) fn awaits_its_gate(&self, session: &str, exec: u64) -> bool {
        let state = self.lock();
        let number = state.by_exec.get(&(session.to_owned(), exec));
        let entry = number.and_then(|number| state.entries.get(number));
        entry.is_some_and(|entry| entry.is_open() && entry.waiter.is_none())
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
        let unknown = || ResolveError::Unknown(id.to_owned());
        let number = self.lock().by_id.get(id).copied().ok_or_else(unknown)?;
        self.look_again(number).await;
        let before = {
            let state = self.lock();
            let entry = state.entries.get(&number).ok_or_else(unknown)?;
            entry.recorded.clone()
        };
        let closed_before = |approval| Resolved {
            outcome: pb::ResolveOutcome::ClosedBefore,
            approval: Arc::unwrap_or_clone(approval),
        };
        if before.approval.state() != pb::ApprovalState::Pending {
            return Ok(closed_before(before.approval));
        }
        let grant = grants::grant(&before.approval, decision, scope, operator.as_str(), now)
            .map_err(ResolveError::Scope)?;
        let remembered = grant.clone().map(|grant| Remembered {
            grant,
            effect: before.approval.effect.clone(),
            asked: before.approval.asked.clone(),
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
            let approval = Arc::make_mut(&mut after.approval);
            approval.state = closing.state.into();
            approval.resolution = Some(closing.resolution.clone());
            let change = Change::Decision(Box::new(after), remembered.clone().map(Box::new));
            self.lock().unforgotten.remove(id);
            if let Err(error) = ledger.write(change).await {
                // A disk that is too slow may have taken it all the same.
                let mut state = self.lock();
                if let Some(entry) = state.entries.get(&number) {
                    self.note(Change::Approval(Box::new(entry.recorded.clone())));
                }
                if remembered.is_some() {
                    self.forget(&mut state, vec![id.to_owned()]);
                }
                return Err(error.into());
            }
        }
        // Other rules may have come into force while it was written.
        self.look_again(number).await;
        let mut state = self.lock();
        let Some(recorded) = state.close(number, closing) else {
            // It was closed meanwhile, and nothing follows from the decision.
            let approval = state
                .entries
                .get(&number)
                .map(|entry| entry.recorded.clone());
            if let Some(grant) = remembered {
                self.forget(&mut state, vec![grant.grant.approval_id]);
            }
            drop(state);
            return match approval {
                Some(recorded) => {
                    self.note(Change::Approval(Box::new(recorded.clone())));
                    Ok(closed_before(recorded.approval))
                }
                None => Err(ResolveError::Unknown(id.to_owned())),
            };
        };
        let evicted = remembered.and_then(|remembered| state.grants.add(remembered));
        let approval = Arc::clone(&recorded.approval);
        self.closed(recorded);
        self.forget(&mut state, evicted.into_iter().collect());
        Ok(Resolved {
            outcome: pb::ResolveOutcome::Resolved,
            approval: Arc::unwrap_or_clone(approval),
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
        self.forget(&mut state, forgotten);
    }

    /// Sweeps for as long as the service runs, looks again at what waits, and has the disk forget. None of these waits for
    /// another: rules and disks may be slow.
    pub(in crate::policyd) async fn keep_swept(self) {
        tokio::join!(
            self.keep_sweeping(),
            self.keep_looking(),
            self.keep_forgetting()
        );
    }

    async fn keep_sweeping(&self) {
        let mut ticks = ticks();
        loop {
            ticks.tick().await;
            self.sweep(SystemTime::now());
        }
    }

    async fn keep_looking(&self) {
        let mut ticks = ticks();
        loop {
            ticks.tick().await;
            self.look_again_at_all().await;
        }
    }

    async fn keep_forgetting(&self) {
        let mut ticks = ticks();
        loop {
            ticks.tick().await;
            self.forget_for_good().await;
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
    pub(in crate::policyd) fn watch(&self) -> (Vec<Arc<pb::Approval>>, Watch) {
        let state = self.lock();
        let open = state.entries.values().filter(|entry| entry.is_open());
        let open = open
            .map(|entry| Arc::clone(&entry.recorded.approval))
            .collect();
        // Changes are told with the state locked, so none is missed and none told twice.
        (open, self.0.changes.watch())
    }

    /// What is remembered, the latest first.
    pub(super) fn grants(&self) -> Vec<pb::Grant> {
        let state = self.lock();
        let all = state.grants.all().rev();
        all.map(|remembered| remembered.grant.clone()).collect()
    }

    /// Has a decision hold no longer, at once, and returns when the disk has forgotten it.
    pub(super) async fn revoke(&self, approval_id: &str) -> Result<pb::Grant, RevokeError> {
        let grant = {
            let mut state = self.lock();
            let removed = state.grants.remove(approval_id);
            let unforgotten = || state.unforgotten.get(approval_id).cloned().flatten();
            let grant = removed.map(|removed| removed.grant).or_else(unforgotten);
            let grant = grant.ok_or_else(|| RevokeError::Unknown(approval_id.to_owned()))?;
            if self.0.ledger.is_some() {
                let id = approval_id.to_owned();
                state.unforgotten.insert(id, Some(grant.clone()));
            }
            grant
        };
        if let Some(ledger) = &self.0.ledger {
            let change = Change::Forget(vec![approval_id.to_owned()]);
            ledger.write(change).await?;
            self.lock().unforgotten.remove(approval_id);
        }
        Ok(grant)
    }
}

/// Whether an approval is of the same rule, for the same, and of the same people as what is asked.
fn is_asked_so(approval: &pb::Approval, question: &Question<'_>) -> bool {
    approval.rule == question.ruling.rule
        && approval.asked == question.ask.asked.as_deref().unwrap_or_default()
        && approval.effect == approval::effect_of(question)
}

fn ticks() -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(SWEEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

/// Whether it waits, and these rules weren't asked about it. Where its gate hasn't asked since the service began, that is
/// done when it does.
fn is_overtaken(entry: &Entry, rules: &Rules) -> bool {
    entry.is_open()
        && entry.asked.is_some()
        && entry.recorded.approval.policy_revision != rules.revision()
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
