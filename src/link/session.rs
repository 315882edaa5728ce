use std::collections::HashSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, SystemTime};

use prost::Message;
use prost::bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::codec::BODY_LIMIT;
use super::counters::{Counter, Tally};
use super::driver::concerns_all;
use super::load::Shares;
use super::options::{Audit, LinkOptions, OnUnavailable};
use super::outage::{Outages, Said};
use super::route::Others;
use super::state::{AttemptNow, CallNumber, Expiry, Load, Refusal, SessionState, Stray, ToSend};
use crate::journal::{Attendance, Changes, Fate, Outlives, Position, Since, Source};
use crate::model::{
    DecisionCode, EscalationDecision, ExecId, InterceptedExec, SessionEvent, SessionId, Verdict,
    WithdrawalReason,
};
use crate::pb::v1::session_request::Event;
use crate::pb::v1::{self, Resumption, SessionRequest};
use crate::pb::{self, Answer, BrokenAnswer, Reconnect, TraceParent};
use crate::server::{
    BoxFuture, Digest, EscalationPolicy, Forgotten, Pause, PolicyError, SessionContext,
};

/// The policy of one session.
#[derive(Debug)]
pub(super) struct SessionLink {
    shared: Arc<Shared>,
}

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

/// What was told of an exec's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Names,
    Values,
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

impl SessionLink {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    async fn ask(&self, exec: &InterceptedExec) -> Result<Verdict, PolicyError> {
        let shared = &*self.shared;
        if let Some(refusal) = shared.unrecorded() {
            shared.tally.unrecorded.add(1);
            return Ok(refusal);
        }
        let mut question = pb::exec_requested(exec, shared.options.verdict_deadline);
        let told = shared.disclose(&mut question, exec);
        let body = Bytes::from(question.encode_to_vec());
        if body.len() > BODY_LIMIT {
            return Ok(shared.overloaded("the command is too large to ask about"));
        }
        let (reply, mut answer) = oneshot::channel();
        let asker = Asker {
            reply,
            person: None,
        };
        let taken = shared.tell(|state| {
            let taken = state.ask(exec.id, body.clone(), asker, Instant::now())?;
            let outlives = shared.keep(taken.sequence, &body, Position::Within);
            if outlives == Outlives::Nothing && shared.options.audit == Audit::Strict {
                state.withdraw(exec.id);
                return Err(Refusal::Unkept);
            }
            Ok(taken)
        });
        let taken = match taken {
            Ok(taken) => taken,
            Err(Refusal::Overloaded) => {
                return Ok(shared.overloaded("too many commands wait for the policy service"));
            }
            Err(Refusal::Unreachable(cause)) => return Ok(shared.unreachable(&cause)),
            Err(Refusal::SessionEnded) => return Ok(session_ended()),
            Err(Refusal::Unkept) => {
                shared.tally.unrecorded.add(1);
                return Ok(unrecorded("there is no memory that outlives the gate"));
            }
            Err(Refusal::AlreadyAsked) => {
                return Err(PolicyError(
                    format!("exec {} is being asked already", exec.id).into(),
                ));
            }
        };
        let mut open = OpenQuestion {
            shared,
            exec: Some(exec.id),
        };
        if taken.attempt_now == AttemptNow::Yes {
            shared.attempt_now.notify_one();
        }

        let mut deadline = pin!(tokio::time::sleep_until(taken.deadline));
        let reply = loop {
            tokio::select! {
                biased;
                reply = &mut answer => break reply,
                () = deadline.as_mut() => match shared.update(|state| {
                    state.expire(exec.id, Instant::now())
                }) {
                    Expiry::NotBefore(later) => deadline.as_mut().reset(later),
                    Expiry::TimedOut(asker) => {
                        drop(asker);
                        open.exec = None;
                        shared.withdraw_at_deadline(exec.id);
                        return Ok(shared.timed_out());
                    }
                    Expiry::Unreachable(asker, cause) => {
                        drop(asker);
                        open.exec = None;
                        shared.withdraw_at_deadline(exec.id);
                        return Ok(shared.unreachable(&cause));
                    }
                    Expiry::Gone => break (&mut answer).await,
                },
            }
        };
        open.exec = None;
        Ok(match reply {
            // Values aren't looked at again, so a verdict that may depend on them is for this exec alone.
            Ok(Reply::Verdict(verdict)) if told == Told::Values => Verdict {
                reuse: None,
                ..verdict
            },
            Ok(Reply::Verdict(verdict)) => verdict,
            Ok(Reply::Unreachable(cause)) => shared.unreachable(&cause),
            // The driver has ended, with the session.
            Err(_) => session_ended(),
        })
    }
}

impl EscalationPolicy for SessionLink {
    fn decide<'a>(
        &'a self,
        exec: &'a InterceptedExec,
    ) -> BoxFuture<'a, Result<Verdict, PolicyError>> {
        Box::pin(self.ask(exec))
    }

    fn may_reuse(&self) -> bool {
        self.shared.unrecorded().is_none()
    }

    fn person_asked(&self, exec: ExecId) -> Option<String> {
        self.shared.update(|state| {
            let mut waiting = state.waiting();
            let (_, asker) = waiting.find(|(waiting, _)| *waiting == exec)?;
            let (message, _) = asker.person.as_ref()?;
            Some(match message.as_str() {
                "" => "waiting for a person's decision".to_owned(),
                message => message.to_owned(),
            })
        })
    }

    fn wanted_digest(&self) -> Digest {
        if self.shared.digests_wanted.load(Ordering::Relaxed) {
            Digest::Sha256
        } else {
            Digest::None
        }
    }

    fn observe(&self, event: SessionEvent) {
        let is_last = matches!(event, SessionEvent::SessionEnded { .. });
        let reused = match &event {
            SessionEvent::ExecReused { exec, .. } => Some(Arc::clone(exec)),
            _ => None,
        };
        let mut event = pb::session_event(event);
        if let Some(exec) = reused {
            self.shared.disclose(&mut event, &exec);
        }
        let body = Bytes::from(event.encode_to_vec());
        if is_last {
            self.shared.tell(|state| {
                self.shared
                    .place(state, &body, Position::Last, Instant::now());
                state.finish();
            });
            self.shared.over.cancel();
        } else {
            self.shared.record(&body);
        }
    }
}

impl Source for Shared {
    fn changes(&self, since: Since) -> Changes {
        self.update(|state| state.changes(since))
    }
}

impl Drop for SessionLink {
    fn drop(&mut self) {
        self.shared.tell(SessionState::finish);
        self.shared.over.cancel();
    }
}

/// Withdraws a question when its asker goes away.
struct OpenQuestion<'a> {
    shared: &'a Shared,
    /// `None` once it isn't open any more.
    exec: Option<ExecId>,
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        if let Some(exec) = self.exec {
            // The server tells the service.
            drop(self.shared.update(|state| state.abandon(exec)));
        }
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

    /// Why no exec may be admitted, where the gate's owner wants none without its record.
    fn unrecorded(&self) -> Option<Verdict> {
        if self.options.audit == Audit::BestEffort {
            return None;
        }
        let trouble = self
            .options
            .journal
            .as_ref()
            .and_then(|journal| journal.trouble());
        let is_behind = || self.update(|state| state.is_half_full());
        let cause = trouble.or_else(|| {
            is_behind()
                .then(|| "the policy service doesn't take them, and too many wait".to_owned())
        })?;
        Some(unrecorded(&cause))
    }

    /// Has an event outlive the gate, where there is a journal.
    fn keep(&self, sequence: u64, body: &[u8], position: Position) -> Outlives {
        let attendance = self.attendance.get();
        attendance.map_or(Outlives::Nothing, |attendance| {
            attendance.told(sequence, body, position)
        })
    }

    /// Takes out of an exec's description what isn't to leave the gate, and adds what may.
    fn disclose(&self, event: &mut SessionRequest, exec: &InterceptedExec) -> Told {
        let described = match &mut event.event {
            Some(Event::ExecRequested(described)) => described,
            Some(Event::ExecReused(reused)) => match &mut reused.exec {
                Some(described) => described,
                None => return Told::Names,
            },
            _ => return Told::Names,
        };
        let disclosure = &self.options.disclosure;
        described.redacted_arguments = disclosure.redact_words(&mut described.arguments);
        let names = self.environment_names(|names| Arc::clone(names));
        described.environment_variables = disclosure.variables(&exec.env, &names);
        if described.environment_variables.is_empty() {
            Told::Names
        } else {
            Told::Values
        }
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

    /// For the transport of `call`.
    pub(super) fn next_to_send(&self, call: CallNumber, waker: &Waker) -> ToSend {
        let mut locked = self.lock();
        let due = locked.gathered.map(|gathered| gathered.due);
        if let Some(due) = due.filter(|due| *due > Instant::now()) {
            locked.transport = Some(waker.clone());
            return ToSend::Later(due);
        }
        locked.gathered = None;
        let next = locked.state.next(call);
        self.note(&mut locked);
        if next == ToSend::Wait {
            locked.transport = Some(waker.clone());
        }
        next
    }

    pub(super) fn begin_call(&self) -> CallNumber {
        self.lock().gathered = None;
        self.update(|state| {
            state.begin_call(|attempt, next_sequence| {
                let resumption = Resumption {
                    attempt,
                    next_sequence,
                    reason: v1::ResumptionReason::Reconnection.into(),
                };
                pb::resumed(&self.first, resumption, SystemTime::now())
                    .encode_to_vec()
                    .into()
            })
        })
    }

    /// Acts on an answer.
    pub(super) fn take(&self, answer: Result<Answer, BrokenAnswer>) {
        match answer {
            Ok(Answer::Verdict { exec, verdict }) => {
                let verdict = verdict.unwrap_or_else(|broken| {
                    self.warn(
                        &self.tally.broken_verdicts,
                        Some(exec),
                        &format_args!("exec {exec}: {broken}"),
                    );
                    Verdict::from(broken)
                });
                self.in_force(&verdict.policy_revision);
                match self.update(|state| state.answered(exec)) {
                    Ok(asker) => {
                        self.tally.verdicts.add(1);
                        // The asker may have gone just now.
                        let _ = asker.reply.send(Reply::Verdict(verdict));
                    }
                    Err(stray) => self.stray(exec, stray),
                }
            }
            Ok(Answer::Pending {
                exec,
                expected_within,
                message,
            }) => {
                let person = (message, self.session.stopwatch.pause());
                let before = self.update(|state| {
                    let asker = state.extend(exec, expected_within, Instant::now())?;
                    Ok(asker.person.replace(person))
                });
                match before {
                    // Dropped here, outside the lock, because that sets the clock going.
                    Ok(before) => drop(before),
                    Err(stray) => self.stray(exec, stray),
                }
            }
            Ok(Answer::Accepted {
                acknowledgement,
                policy_revision,
                environment_names,
                executable_digest,
                stored: _,
            }) => {
                let wanted = executable_digest == pb::ExecutableDigest::Sha256;
                self.digests_wanted.store(wanted, Ordering::Relaxed);
                let allowed = self.options.disclosure.allowed_of(environment_names);
                self.environment_names(|names| *names = Arc::new(allowed));
                self.update(|state| state.heard(acknowledgement));
                self.in_force(&policy_revision);
            }
            Ok(Answer::Acknowledged(through)) => {
                self.update(|state| state.acknowledged(through));
                self.changed();
            }
            Ok(Answer::VerdictsForgotten { policy_revision }) => {
                self.update(|state| state.heard(pb::Acknowledgement::None));
                self.session
                    .verdicts
                    .forget(match policy_revision.as_str() {
                        "" => Forgotten::All,
                        revision => Forgotten::Revision(revision),
                    });
            }
            Ok(Answer::Terminated { reason }) => {
                self.update(|state| state.heard(pb::Acknowledgement::None));
                // Nothing may wait that would be denied with the reason: whoever started it reads it here.
                tracing::warn!(
                    session = %self.session.description.id,
                    trace = self.trace().trace(),
                    "the policy service ends this session: {reason:?}"
                );
                self.session.terminator.terminate(reason);
            }
            Err(broken) => {
                self.update(|state| state.heard(pb::Acknowledgement::None));
                self.warn(&self.tally.broken_answers, None, &broken);
            }
        }
    }

    /// The revision in force, as the service has just said; verdicts of an earlier one hold no longer.
    fn in_force(&self, policy_revision: &str) {
        if !policy_revision.is_empty() {
            let others = Forgotten::AllBut(policy_revision);
            self.session.verdicts.forget(others);
        }
    }

    fn stray(&self, exec: ExecId, stray: Stray) {
        match stray {
            Stray::Unknown => self.warn(
                &self.tally.unknown_verdicts,
                Some(exec),
                &format_args!("exec {exec} was never asked"),
            ),
            // Nobody's fault.
            Stray::Crossed => {
                self.tally.superfluous_verdicts.add(1);
            }
            Stray::Superfluous => self.warn(
                &self.tally.superfluous_verdicts,
                Some(exec),
                &format_args!("exec {exec} isn't open any more"),
            ),
        }
    }

    /// Counts, and logs the first, second, fourth and so on, so that a service can't flood the log.
    fn warn(&self, counter: &Counter, exec: Option<ExecId>, what: &dyn std::fmt::Display) {
        let count = counter.add(1);
        if count.is_power_of_two() {
            tracing::warn!(
                session = %self.session.description.id,
                exec = exec.map(tracing::field::display),
                trace = self.trace().trace(),
                count,
                "ignored an answer: {what}"
            );
        }
    }

    pub(super) fn lost(&self, events: u64, why: &str) {
        let lost = self.tally.lost_events.add(events);
        if (lost - events).checked_ilog2() != lost.checked_ilog2() {
            tracing::warn!(
                session = %self.session.description.id,
                trace = self.trace().trace(),
                lost,
                "events were lost: {why}"
            );
        }
    }

    /// Counts a call that ended early, and says so where that is news.
    pub(super) fn call_broke(&self, status: &Status, others: Others, cause: &str) {
        self.tally.broken_calls.add(1);
        let (session, trace) = (self.session.description.id, self.trace());
        let (trace, code) = (trace.trace(), status.code());
        if others == Others::Untried {
            tracing::info!(%session, trace, ?code, "a call ended, and another endpoint is tried: {cause}");
            return;
        }
        tracing::debug!(%session, trace, ?code, "a call ended: {cause}");
        let now = Instant::now();
        // A service that restarts may end calls cleanly.
        let (what, said) = if code == Code::Ok || concerns_all(status) {
            ("can't be reached", self.outages.lost(now))
        } else {
            ("refuses the session", self.refusals.lost(now))
        };
        match said {
            Some(Said::Lost) => tracing::warn!(
                %session, trace, ?code,
                "the policy service {what}: {cause}; it is tried again until it is back"
            ),
            Some(Said::StillLost(since, attempts)) => tracing::warn!(
                %session, trace, ?code, ?since, attempts,
                "the policy service still {what}: {cause}"
            ),
            Some(Said::Back(..)) | None => {}
        }
    }

    /// The service has taken a call, and hasn't refused it at once.
    pub(super) fn call_accepted(&self, number: CallNumber) {
        if number.is_another() {
            self.tally.resumed_calls.add(1);
        }
        let now = Instant::now();
        for outages in [&*self.outages, &self.refusals] {
            if let Some(Said::Back(since, attempts)) = outages.back(now) {
                tracing::warn!(
                    session = %self.session.description.id,
                    trace = self.trace().trace(),
                    ?since,
                    attempts,
                    "the policy service is back"
                );
            }
        }
    }

    /// The call has ended or failed: records that, and answers those who wait no longer.
    pub(super) fn call_ended(&self, others: Others, next: Reconnect, cause: &str) {
        // Telling has the transport of the ended call look again, and find that it has ended.
        let given_up =
            self.tell(|state| state.call_ended(others, next, cause.to_owned(), Instant::now()));
        for (exec, asker) in given_up {
            self.withdraw_at_deadline(exec);
            let _ = asker.reply.send(Reply::Unreachable(cause.to_owned()));
        }
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

    fn timed_out(&self) -> Verdict {
        self.tally.timed_out.add(1);
        self.unavailable(
            DecisionCode::TimedOut,
            "the policy service gave no verdict in time".to_owned(),
        )
    }

    fn unreachable(&self, cause: &str) -> Verdict {
        self.tally.unreachable.add(1);
        let reason = pb::one_line(format!("the policy service can't be reached: {cause}"));
        self.unavailable(DecisionCode::Unreachable, reason)
    }

    fn unavailable(&self, code: DecisionCode, reason: String) -> Verdict {
        match self.options.on_unavailable {
            OnUnavailable::Deny => Verdict::denied(code, reason),
            OnUnavailable::Run => Verdict {
                code,
                ..Verdict::from(EscalationDecision::Run)
            },
        }
    }

    fn overloaded(&self, reason: &str) -> Verdict {
        self.tally.overloaded.add(1);
        Verdict::denied(DecisionCode::Overloaded, reason)
    }
}

fn unrecorded(cause: &str) -> Verdict {
    let reason = pb::one_line(format!("events can't be kept: {cause}"));
    Verdict::denied(DecisionCode::Unrecorded, reason)
}

fn session_ended() -> Verdict {
    Verdict::denied(DecisionCode::SessionEnded, "the session has ended")
}
