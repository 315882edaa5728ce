//! One call: its conversation with a gate, from the opening to what is still to be stored.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use tonic::{Status, Streaming};

use super::Setting;
use super::answers::{stored, verdict};
use super::events::{next, size_of_facts};
use super::facts::{ruling, session_facts};
use super::reader::{READING_PATIENCE, Unsent, send};
use crate::model::EscalationDecision;
use crate::pb::audit::v1::{self as record, AnswerMode, StoredAnswer};
use crate::pb::v1::session_request::Event;
use crate::pb::v1::session_response::Answer;
use crate::pb::{TraceParent, v1};
use crate::policyd::admission::Admitted;
use crate::policyd::approvals::{
    Answered, Control, Decided, NO_LONGER_ASKED, Question, Termination,
};
use crate::policyd::arrival::LongMessages;
use crate::policyd::authenticate::{Caller, not_a_gate, promoted, revoked};
use crate::policyd::bounds;
use crate::policyd::identity::GateIdentity;
use crate::policyd::numbers::Counted;
use crate::policyd::owners::Claim;
use crate::policyd::rate::{Allowance, Within};
use crate::policyd::rules::{SessionFacts, log_failures};
use crate::policyd::sessions::{CODE_TERMINATED, denied, words};
use crate::policyd::store::Journal;
use crate::policyd::text;
use crate::policyd::throttle::Throttle;

/// How long a call may take to say which session it is.
const OPENING_PATIENCE: Duration = Duration::from_secs(30);
/// How long a call that ends waits for its events to be stored.
const STORING_PATIENCE: Duration = Duration::from_secs(5);
/// Between looks at whether a call that missed events should be made again.
const RESUMPTION_INTERVAL: Duration = Duration::from_secs(1);

static REFUSED: Throttle = Throttle::new(Duration::from_secs(1));
static REPEATED: Throttle = Throttle::new(Duration::from_secs(1));
static TRESPASSES: Throttle = Throttle::new(Duration::from_secs(1));
static UNREAD: Throttle = Throttle::new(Duration::from_secs(1));
static UNASKED: Throttle = Throttle::new(Duration::from_secs(60));
static RATE_LIMITED: Throttle = Throttle::new(Duration::from_secs(1));
/// Reason code of what is denied because its gate asks about more than it may.
const CODE_RATE_LIMITED: &str = "gate.rate_limited";
/// Reason codes of denials that no rules were asked about. All others are of rules, or of the person whom they ask.
pub(in crate::policyd) const CODES_OF_NO_RULES: [&str; 2] = [CODE_TERMINATED, CODE_RATE_LIMITED];

/// A denial that no rules were asked about; `code` is one of [`CODES_OF_NO_RULES`].
fn denied_without_rules(exec_id: u64, code: &'static str, reason: String) -> Answered {
    Answered::Decided(Box::new(Decided::from(v1::Verdict {
        exec_id,
        decision: Some(v1::verdict::Decision::Deny(v1::Deny { reason })),
        reason_code: code.to_owned(),
        ..v1::Verdict::default()
    })))
}

pub(super) struct Call {
    /// The trace that it belongs to, as the gate says.
    pub(super) trace: Option<TraceParent>,
    pub(super) events: Streaming<v1::SessionRequest>,
    /// What of them is long.
    pub(super) long: LongMessages,
    pub(super) answers: mpsc::Sender<Result<v1::SessionResponse, Status>>,
    pub(super) caller: Caller,
    /// The session that it is about, once that is known; for the log.
    pub(super) session: Option<String>,
    pub(super) setting: Setting,
    pub(super) _counted: Counted,
    pub(super) control: mpsc::Sender<Control>,
    pub(super) controls: mpsc::Receiver<Control>,
    /// Why the session is to end, where an operator has said so.
    pub(super) terminated: Option<String>,
    /// Whether the session's gate came back, and asks again what is open.
    pub(super) is_resumed: bool,
    /// What the gate may ask about, where that has a bound.
    pub(super) allowance: Option<Arc<Allowance>>,
    pub(super) _admitted: Admitted<GateIdentity>,
}

/// The gate is gone: there is nobody to tell anything.
struct Gone;

/// What a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Conversation {
    /// A session that goes on.
    Decisions,
    /// What a gate left in its journal.
    Delivery,
}

/// Why a call ends.
enum End {
    Gone,
    Status(Status),
}

impl From<Gone> for End {
    fn from(Gone: Gone) -> Self {
        Self::Gone
    }
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl Call {
    pub(super) async fn run(mut self) {
        match self.converse().await {
            Ok(()) | Err(End::Gone) => {}
            Err(End::Status(status)) => {
                let (gate, code, text) = (&self.caller.gate, status.code(), status.message());
                let (session, trace) = (self.session.as_deref(), self.trace_id());
                if code == tonic::Code::Unavailable {
                    tracing::info!(session, %gate, trace, ?code, "ending a call: {text}");
                } else if let Some(held_back) = REFUSED.admit() {
                    tracing::warn!(session, %gate, trace, ?code, held_back, "refused a call: {text}");
                }
                // Nobody reads it if the gate is gone.
                let _ = send(&self.answers, Err(status)).await;
            }
        }
    }

    fn trace_id(&self) -> Option<&str> {
        self.trace.as_ref().map(TraceParent::trace)
    }

    async fn converse(&mut self) -> Result<(), End> {
        let (opening, session) = self.opening().await?;
        let room = self.setting.room_of_sessions.of(self.caller.gate.clone());
        let _held = room.take(size_of_facts(&session)).ok_or_else(|| {
            Status::resource_exhausted(
                "this session and others of this gate say more of themselves than is kept; shorten their \
                 commands and labels, or end some",
            )
        })?;
        self.session = Some(session.id.clone());
        let claimed = self.setting.owners.claim(&session.id, &self.caller.gate);
        let claim = claimed.map_err(|owner| self.trespass(&session.id, &owner))?;
        tracing::info!(
            session = session.id,
            gate = %self.caller.gate,
            hostname = session.hostname,
            trace = self.trace_id(),
            resumed = opening.sequence == 0,
            "session connected"
        );
        self.is_resumed = opening.sequence == 0;
        let resumption = match &opening.event {
            Some(Event::SessionStarted(started)) => started.resumption,
            _ => None,
        };
        // Gates say that they go on. Who doesn't repeats what a gate once said, with its credential.
        if claim == Claim::Again
            && resumption.is_none()
            && let Some(held_back) = REPEATED.admit()
        {
            tracing::warn!(
                session = session.id, gate = %self.caller.gate, trace = self.trace_id(), held_back,
                "a session that is known is told once more from its beginning; what is on record of it stays as it is"
            );
        }
        let conversation = match resumption.map(|resumption| resumption.reason()) {
            Some(v1::ResumptionReason::Delivery) => Conversation::Delivery,
            _ => Conversation::Decisions,
        };
        let store = self.setting.store.as_ref();
        let mut journal =
            store.map(|store| Journal::begin(store, &session.id, &self.caller.gate, opening));
        let mut stored = 0;
        if conversation == Conversation::Delivery
            && let Some(journal) = &mut journal
        {
            let highest = tokio::time::timeout(STORING_PATIENCE, journal.go_on_behind_the_last());
            stored = highest.await.ok().flatten().ok_or_else(not_stored)?;
        }
        let acknowledgement = match journal {
            Some(_) => v1::EventAcknowledgement::Stored,
            None => v1::EventAcknowledgement::None,
        };
        let accepted = self.acceptance(acknowledgement, stored);
        self.answer(Answer::SessionAccepted(accepted)).await?;
        let present = match conversation {
            Conversation::Decisions => {
                let (present, terminated) = self.setting.sessions.connect(&session, &self.control);
                if let Some(termination) = terminated {
                    self.terminate(termination, journal.as_mut()).await?;
                }
                Some(present)
            }
            Conversation::Delivery => None,
        };
        let ended = self.follow(&session, conversation, journal.as_mut()).await;
        drop(present);
        if let Some(desk) = &self.setting.desk {
            desk.call_ended(&self.control, SystemTime::now());
        }
        if let Some(journal) = &mut journal
            && !matches!(ended, Err(End::Gone))
        {
            self.finish_storing(journal).await?;
            if ended.is_ok() && (journal.has_missed() || !journal.is_stored()) {
                return Err(not_stored().into());
            }
        }
        tracing::info!(
            session = session.id,
            gate = %self.caller.gate,
            trace = self.trace_id(),
            "session disconnected"
        );
        ended
    }

    /// What a session is told when it begins: what the rules are, and what they need to know.
    fn acceptance(
        &mut self,
        acknowledgement: v1::EventAcknowledgement,
        stored: u64,
    ) -> v1::SessionAccepted {
        // What was changed before isn't news to a session that begins now.
        let rules = self.setting.rules.borrow_and_update();
        let asked = rules.requested_environment().iter();
        let digest = if rules.requests_digests() {
            v1::ExecutableDigest::Sha256
        } else {
            v1::ExecutableDigest::Unspecified
        };
        v1::SessionAccepted {
            event_acknowledgement: acknowledgement.into(),
            policy_revision: rules.revision().to_owned(),
            requested_environment_names: asked.map(|name| name.clone().into()).collect(),
            stored_sequence: stored,
            requested_executable_digest: digest.into(),
        }
    }

    /// Reads the event that opens the call.
    async fn opening(&mut self) -> Result<(v1::SessionRequest, SessionFacts), End> {
        let first = tokio::select! {
            first = tokio::time::timeout(OPENING_PATIENCE, next(&mut self.events, &self.long)) => first,
            () = self.setting.stopping.cancelled() => return Err(stopping().into()),
        };
        let (first, _held) = first
            .map_err(|_| {
                Status::invalid_argument(format!(
                    "no SessionStarted within {} seconds",
                    OPENING_PATIENCE.as_secs()
                ))
            })?
            .map_err(|status| unreadable(&status))?
            .ok_or_else(|| Status::invalid_argument("the call ended without SessionStarted"))?;
        let Some(Event::SessionStarted(started)) = &first.event else {
            return Err(Status::invalid_argument(
                "the first event of a call must be SessionStarted",
            )
            .into());
        };
        within_bounds(&first)?;
        let facts = session_facts(started, &self.caller.gate)?;
        Ok((first, facts))
    }

    /// Answers events until the gate half-closes the call.
    async fn follow(
        &mut self,
        session: &SessionFacts,
        conversation: Conversation,
        mut journal: Option<&mut Journal>,
    ) -> Result<(), End> {
        // Without a store nothing is ever stored: a channel that stays silent stands for it.
        let silent = watch::Sender::default();
        let mut progress = journal
            .as_ref()
            .map_or_else(|| silent.subscribe(), |journal| journal.progress());
        let mut tokens = self.setting.tokens.clone();
        let mut operators = self.setting.operators.clone();
        let mut look = tokio::time::interval(RESUMPTION_INTERVAL);
        loop {
            tokio::select! {
                () = self.setting.stopping.cancelled() => return Err(stopping().into()),
                // The gate keeps verdicts of the rules that were, and may have no reason to ask.
                Ok(()) = self.setting.rules.changed() => {
                    self.answer(Answer::ForgetVerdicts(v1::ForgetVerdicts::default())).await?;
                }
                Ok(()) = progress.changed() => {
                    let (through, owner) = {
                        let progress = progress.borrow_and_update();
                        (progress.through, progress.owner.clone())
                    };
                    if let Some(owner) = owner {
                        self.setting.owners.give_back(&session.id, &owner);
                        return Err(self.trespass(&session.id, &owner).into());
                    }
                    self.acknowledge(through).await?;
                }
                Some(control) = self.controls.recv() => match control {
                    Control::Verdict(decided) => {
                        let (exec_id, answered) = (decided.verdict.exec_id, Answered::Decided(decided));
                        let answer = self.reply_later(exec_id, answered, None).await?;
                        if let Some(journal) = &mut journal {
                            journal.answered(answer);
                        }
                    }
                    Control::Anew(anew) => {
                        let answer = self.reply_later(anew.exec_id, anew.answered, anew.monitored).await?;
                        if let Some(journal) = &mut journal {
                            journal.answered(answer);
                        }
                    }
                    Control::Terminate(termination) => {
                        let journal = journal.as_deref_mut();
                        self.terminate(*termination, journal).await?;
                    }
                },
                () = revoked(self.caller.token.as_ref(), &mut tokens) => return Err(no_longer_valid().into()),
                () = promoted(self.caller.credential.as_ref(), &mut operators) => return Err(not_a_gate().into()),
                _ = look.tick() => {
                    if journal.as_ref().is_some_and(|journal| journal.is_to_be_resumed()) {
                        return Err(not_stored().into());
                    }
                }
                event = next(&mut self.events, &self.long) => {
                    // It has its room until it is answered, and handed to the store, which has room of its own.
                    let Some((request, _held)) = event.map_err(|status| unreadable(&status))? else {
                        return Ok(());
                    };
                    let received = Instant::now();
                    within_bounds(&request)?;
                    let answer = self.react(session, conversation, &request, received).await?;
                    if let Some(journal) = &mut journal {
                        journal.record(request, answer);
                    }
                }
            }
        }
    }

    /// Another gate's session: says so here, and to the gate no more than that it isn't its own.
    fn trespass(&self, session: &str, owner: &GateIdentity) -> Status {
        if let Some(held_back) = TRESPASSES.admit() {
            tracing::warn!(
                session, %owner, gate = %self.caller.gate, trace = self.trace_id(), held_back,
                "a gate went on with a session that another one started; nothing of it is recorded"
            );
        }
        Status::permission_denied("the session isn't this gate's: another one started it")
    }

    /// Does what an event asks for; gives the verdict that was sent.
    async fn react(
        &mut self,
        session: &SessionFacts,
        conversation: Conversation,
        request: &v1::SessionRequest,
        received: Instant,
    ) -> Result<Option<StoredAnswer>, End> {
        match &request.event {
            // Nobody waits for the verdict any more.
            Some(Event::ExecRequested(_)) if conversation == Conversation::Delivery => Ok(None),
            Some(Event::ExecRequested(exec)) => {
                let (mut answered, monitored) = self.decide(session, exec);
                if let Answered::Decided(decided) = &mut answered {
                    decided.verdict.service_time = received.elapsed().try_into().ok();
                }
                let answer = self.reply(exec.exec_id, answered, monitored).await?;
                Ok(Some(answer))
            }
            Some(Event::ExecWithdrawn(withdrawn)) => {
                self.withdrawn(session, withdrawn);
                Ok(None)
            }
            Some(Event::SessionEnded(_)) => {
                if let Some(desk) = &self.setting.desk {
                    desk.session_ended(&session.id, SystemTime::now());
                }
                Ok(None)
            }
            Some(Event::SessionStarted(_)) => Err(Status::invalid_argument(
                "SessionStarted may stand only first in a call",
            )
            .into()),
            // Facts for the record.
            Some(
                Event::ExecReused(_)
                | Event::ExecDecided(_)
                | Event::ExecFinished(_)
                | Event::EventsLost(_),
            )
            // Newer than this service.
            | None => Ok(None),
        }
    }

    /// Answers an exec that has waited; gives what is to be recorded.
    async fn reply_later(
        &mut self,
        exec_id: u64,
        answered: Answered,
        monitored: Option<EscalationDecision>,
    ) -> Result<StoredAnswer, Gone> {
        // Whatever was decided, the session is to end.
        if let Some(words) = &self.terminated {
            let denied = Answered::Decided(Box::new(denied(exec_id, words).into()));
            return self.reply(exec_id, denied, None).await;
        }
        self.reply(exec_id, answered, monitored).await
    }

    /// Answers an exec; gives what is to be recorded.
    async fn reply(
        &mut self,
        exec_id: u64,
        answered: Answered,
        monitored: Option<EscalationDecision>,
    ) -> Result<StoredAnswer, Gone> {
        match answered {
            Answered::Decided(decided) => {
                self.answer(Answer::Verdict(decided.verdict.clone()))
                    .await?;
                Ok(stored(*decided, monitored))
            }
            Answered::Pending {
                within,
                message,
                approval_id,
            } => {
                self.answer(Answer::VerdictPending(v1::VerdictPending {
                    exec_id,
                    expected_within: within.try_into().ok(),
                    message,
                }))
                .await?;
                Ok(StoredAnswer {
                    verdict: Some(v1::Verdict {
                        exec_id,
                        ..v1::Verdict::default()
                    }),
                    mode: AnswerMode::Pending.into(),
                    approval_id,
                    decided_by: String::new(),
                    termination: None,
                })
            }
        }
    }

    /// Decides by the rules, or has a person asked where they say so.
    /// What the gate is answered, and what would have been decided where that is only monitored.
    fn decide(
        &self,
        session: &SessionFacts,
        exec: &v1::ExecRequested,
    ) -> (Answered, Option<EscalationDecision>) {
        if let Some(words) = &self.terminated {
            let denied = denied(exec.exec_id, words);
            return (Answered::Decided(Box::new(denied.into())), None);
        }
        // A gate that comes back asks about all at once that waits for a person. It has been counted.
        let is_counted = || {
            let desk = self.setting.desk.as_ref();
            desk.is_some_and(|desk| desk.awaits_its_gate(&session.id, exec.exec_id))
        };
        if let Some(allowance) = &self.allowance
            && !is_counted()
            && allowance.take(Instant::now()) == Within::No
        {
            return (self.rate_limited(exec.exec_id, allowance), None);
        }
        let rules = Arc::clone(&self.setting.rules.borrow());
        let began = Instant::now();
        // A `decide()` may loop until it is cut off: a thread of the runtime isn't kept from other calls by it.
        let ruling = if rules.may_take_long() {
            tokio::task::block_in_place(|| ruling(&rules, session, exec))
        } else {
            ruling(&rules, session, exec)
        };
        rules.took(began.elapsed());
        log_failures(&ruling, session, exec);
        let monitored = ruling.monitored.clone();
        let numbers = &self.setting.numbers;
        if ruling.ask.is_some() && self.setting.desk.is_some() && monitored.is_none() {
            numbers.asked(began.elapsed());
        } else {
            numbers.decided(&ruling.decision, monitored.as_ref(), began.elapsed());
        }
        let answered = if let (Some(ask), Some(desk)) = (&ruling.ask, &self.setting.desk) {
            desk.ask(
                &Question {
                    session,
                    exec,
                    ruling: &ruling,
                    ask,
                    revision: rules.revision(),
                },
                &self.control,
                SystemTime::now(),
            )
        } else {
            if let Some(desk) = &self.setting.desk
                && self.is_resumed
            {
                // It may have been asked about before, by other rules.
                let now = SystemTime::now();
                desk.withdraw(&session.id, exec.exec_id, NO_LONGER_ASKED, now);
            }
            if ruling.ask.is_some()
                && let Some(held_back) = UNASKED.admit()
            {
                tracing::warn!(
                    session = session.id, exec = exec.exec_id, gate = %self.caller.gate, held_back,
                    "denied an exec: the rule {} asks a person, and without --operators nobody can be asked",
                    text::shortened(&text::shown(ruling.rule.as_bytes()), 200)
                );
            }
            Answered::Decided(Box::new(verdict(&rules, exec, ruling).into()))
        };
        (answered, monitored)
    }

    fn rate_limited(&self, exec_id: u64, allowance: &Allowance) -> Answered {
        self.setting.numbers.rate_limited.inc();
        let most = allowance.per_second();
        if let Some(held_back) = RATE_LIMITED.admit() {
            tracing::warn!(
                gate = %self.caller.gate, held_back,
                "denied an exec: this gate asks about more than {most} a second"
            );
        }
        let reason = format!(
            "more than {most} commands a second ask the policy service; try again in a moment"
        );
        denied_without_rules(exec_id, CODE_RATE_LIMITED, reason)
    }

    fn withdrawn(&self, session: &SessionFacts, withdrawn: &v1::ExecWithdrawn) {
        let Some(desk) = &self.setting.desk else {
            return;
        };
        let note = match withdrawn.reason() {
            v1::WithdrawalReason::DeadlinePassed => "its gate waits no longer",
            v1::WithdrawalReason::SessionEnded => "the session ended",
            v1::WithdrawalReason::AskerGone | v1::WithdrawalReason::Unspecified => {
                "the process that asked is gone"
            }
        };
        desk.withdraw(&session.id, withdrawn.exec_id, note, SystemTime::now());
    }

    /// Has the gate end the session, and denies what it still asks.
    async fn terminate(
        &mut self,
        termination: Termination,
        journal: Option<&mut Journal>,
    ) -> Result<(), Gone> {
        let reason = words(&termination);
        self.terminated = Some(reason.clone());
        self.answer(Answer::TerminateSession(v1::TerminateSession {
            reason: reason.clone(),
        }))
        .await?;
        // What began to wait while the operator said so.
        if let Some(desk) = &self.setting.desk {
            desk.session_terminated(&termination.session, &reason, SystemTime::now());
        }
        if let Some(journal) = journal {
            journal.answered(StoredAnswer {
                termination: Some(record::Termination {
                    terminated_by: termination.operator,
                    reason: termination.reason,
                    termination_time: Some(termination.at.into()),
                }),
                ..StoredAnswer::default()
            });
        }
        Ok(())
    }

    /// Waits until what was taken is stored, and acknowledges it.
    async fn finish_storing(&mut self, journal: &Journal) -> Result<(), Gone> {
        let pending = journal.pending();
        let mut progress = journal.progress();
        let all =
            progress.wait_for(|progress| progress.through >= pending || progress.owner.is_some());
        // After a failure the gate keeps what isn't acknowledged.
        let _ = tokio::time::timeout(STORING_PATIENCE, all).await;
        let through = progress.borrow().through;
        if through > 0 {
            self.acknowledge(through).await?;
        }
        Ok(())
    }

    async fn acknowledge(&mut self, through_sequence: u64) -> Result<(), Gone> {
        self.answer(Answer::EventsAcknowledged(v1::EventsAcknowledged {
            through_sequence,
        }))
        .await
    }

    async fn answer(&mut self, answer: Answer) -> Result<(), Gone> {
        let response = v1::SessionResponse {
            answer: Some(answer),
        };
        let sent = send(&self.answers, Ok(response)).await;
        if sent == Err(Unsent::Unread)
            && let Some(held_back) = UNREAD.admit()
        {
            tracing::warn!(
                gate = %self.caller.gate, held_back,
                "ending a call: the gate has read none of its answers for {} seconds",
                READING_PATIENCE.as_secs()
            );
        }
        sent.map_err(|_| Gone)
    }
}

fn stopping() -> Status {
    Status::unavailable("the policy service is stopping")
}

fn not_stored() -> Status {
    Status::unavailable(
        "events couldn't be stored for a while; connect again and send what wasn't acknowledged",
    )
}

/// The gate may have another one: it is to call again at once.
fn no_longer_valid() -> Status {
    Status::unavailable("the token of this call isn't valid any more")
}

/// A stream that can't be read any further. A message that is too large or garbled is the gate's
/// fault and is said so; otherwise the connection is gone.
fn unreadable(status: &Status) -> End {
    use tonic::Code::{Internal, InvalidArgument, OutOfRange, ResourceExhausted, Unimplemented};
    match status.code() {
        Internal | InvalidArgument | OutOfRange | ResourceExhausted | Unimplemented => End::Status(
            Status::invalid_argument(format!("an event can't be read: {}", status.message())),
        ),
        _ => End::Gone,
    }
}

fn within_bounds(request: &v1::SessionRequest) -> Result<(), Status> {
    match request.event.as_ref().and_then(bounds::excess) {
        None => Ok(()),
        Some(field) => Err(Status::invalid_argument(format!(
            "event {}: {field} is longer than any",
            request.sequence
        ))),
    }
}
