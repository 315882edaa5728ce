//! The gRPC service: one task for each call, which is one sandbox session.
//!
//! ```text
//! gate                     session task                 rules    store
//!  | SessionStarted ---------->|                          |        |
//!  |<-------- SessionAccepted -|                          |        |
//!  | ExecRequested ----------->|-- evaluate ------------->|        |
//!  |<---------------- Verdict -|                          |        |
//!  |                           |-- record (never waits) ---------->|
//!  |<----- EventsAcknowledged -|<------------------------ committed|
//! ```
//!
//! Invariants: each `ExecRequested` gets exactly one verdict in the same call, also when it is asked
//! again; the verdict is sent before the event is recorded; headers are sent before anything is read;
//! a session is its gate's, and no other's.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::admission::{Admission, Admitted, Bounds, Full};
use super::approvals::{Answered, Control, Decided, Desk, Question, WAITING_OF_ONE_SESSION};
use super::authenticate::{Caller, not_a_gate, revoked};
use super::bounds;
use super::identity::GateIdentity;
use super::numbers::{Counted, ServiceNumbers};
use super::owners::Owners;
use super::rate::{Allowance, Rates, Within};
use super::rules::{
    EnvironmentFact, ExecFacts, OpinionReuse, OpinionReuseScope, Rules, Ruling, SessionFacts,
    UserFacts,
};
use super::sessions::{CODE_TERMINATED, Sessions};
use super::store::{Journal, Store};
use super::text;
use super::throttle::Throttle;
use super::tokens::Tokens;
use crate::model::{
    Enforcement, EnvironmentRules, EscalationDecision, EscalationExecution, EscalationPermissions,
    EscalationTerms, ExecId, NamePattern, NetworkAccess, ProcessIdentity, Unprotected,
};
use crate::pb::audit::v1::{AnswerMode, StoredAnswer};
use crate::pb::v1::policy_service_server::PolicyService;
use crate::pb::v1::session_request::Event;
use crate::pb::v1::session_response::Answer;
use crate::pb::{TRACEPARENT, TraceParent, v1};

/// Largest message, both ways, in bytes; what the contract asks for.
pub(super) const MAX_MESSAGE_SIZE: usize = 16 << 20;
/// Most calls at once; those of one gate are half of it, so that there is room for others.
const MAX_CALLS: Bounds = Bounds {
    in_all: 4_096,
    of_one_peer: 2_048,
};
/// Answers that may wait for a gate that doesn't read them.
const QUEUED_ANSWERS: usize = 64;
/// How long they wait. A gate reads all the time, or it is no more.
const READING_PATIENCE: Duration = Duration::from_secs(30);
/// What a call may be told before it is seen to: all decisions that a session can wait for, twice over, since
/// those of execs that were withdrawn count no more, and that the session is to end.
const QUEUED_CONTROLS: usize = 2 * WAITING_OF_ONE_SESSION + 16;
/// How long a call may take to say which session it is.
const OPENING_PATIENCE: Duration = Duration::from_secs(30);
/// How long a call that ends waits for its events to be stored.
const STORING_PATIENCE: Duration = Duration::from_secs(5);
/// Between looks at whether a call that missed events should be made again.
const RESUMPTION_INTERVAL: Duration = Duration::from_secs(1);

static REFUSED: Throttle = Throttle::new(Duration::from_secs(1));
static TRESPASSES: Throttle = Throttle::new(Duration::from_secs(1));
static UNREAD: Throttle = Throttle::new(Duration::from_secs(1));
static UNASKED: Throttle = Throttle::new(Duration::from_secs(60));
static RATE_LIMITED: Throttle = Throttle::new(Duration::from_secs(1));
static FULL: Throttle = Throttle::new(Duration::from_secs(1));

/// Reason code of what is denied because its gate asks about more than it may.
const CODE_RATE_LIMITED: &str = "gate.rate_limited";

/// The policy service.
#[derive(Debug)]
pub(super) struct RulesService {
    setting: Setting,
    calls: Admission<GateIdentity>,
}

/// What all calls work with.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) rules: watch::Receiver<Arc<Rules>>,
    pub(super) tokens: Option<watch::Receiver<Arc<Tokens>>>,
    pub(super) store: Option<Store>,
    pub(super) owners: Owners,
    /// Where persons are asked; `None`: nobody can be.
    pub(super) desk: Option<Desk>,
    pub(super) numbers: Arc<ServiceNumbers>,
    /// How many execs a second a gate may ask about; `None`: any number.
    pub(super) rates: Option<Rates>,
    pub(super) sessions: Sessions,
    pub(super) stopping: CancellationToken,
}

impl RulesService {
    pub(super) fn new(setting: Setting) -> Self {
        Self {
            setting,
            calls: Admission::new(MAX_CALLS),
        }
    }
}

#[tonic::async_trait]
impl PolicyService for RulesService {
    type SessionStream = ReceiverStream<Result<v1::SessionResponse, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(not_a_gate)?;
        let admitted = self.calls.admit(caller.gate.clone()).map_err(|full| {
            let status = overfull(full);
            if let Some(held_back) = FULL.admit() {
                tracing::warn!(gate = %caller.gate, held_back, "refused a call: {}", status.message());
            }
            status
        })?;
        let trace = request
            .metadata()
            .get(TRACEPARENT)
            .and_then(|context| context.to_str().ok()?.parse().ok());
        let rates = self.setting.rates.as_ref();
        let allowance = rates.map(|rates| rates.of(&caller.gate));
        let (answers, stream) = mpsc::channel(QUEUED_ANSWERS);
        let (control, controls) = mpsc::channel(QUEUED_CONTROLS);
        let call = Call {
            control,
            controls,
            terminated: None,
            is_resumed: false,
            trace,
            events: request.into_inner(),
            answers,
            caller,
            session: None,
            _counted: Counted::in_gauge(&self.setting.numbers.sessions),
            allowance,
            setting: self.setting.clone(),
            _admitted: admitted,
        };
        tokio::spawn(call.run());
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

fn overfull(full: Full) -> Status {
    Status::resource_exhausted(match full {
        Full::InAll => format!("{} sessions are connected already", MAX_CALLS.in_all),
        Full::OfOnePeer => format!(
            "{} sessions of this gate are connected already",
            MAX_CALLS.of_one_peer
        ),
    })
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

struct Call {
    /// The trace that it belongs to, as the gate says.
    trace: Option<TraceParent>,
    events: Streaming<v1::SessionRequest>,
    answers: mpsc::Sender<Result<v1::SessionResponse, Status>>,
    caller: Caller,
    /// The session that it is about, once that is known; for the log.
    session: Option<String>,
    setting: Setting,
    _counted: Counted,
    control: mpsc::Sender<Control>,
    controls: mpsc::Receiver<Control>,
    /// Why the session is to end, where an operator has said so.
    terminated: Option<String>,
    /// Whether the session's gate came back, and asks again what is open.
    is_resumed: bool,
    /// What the gate may ask about, where that has a bound.
    allowance: Option<Arc<Allowance>>,
    _admitted: Admitted<GateIdentity>,
}

impl Call {
    async fn run(mut self) {
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
                let sending = self.answers.send(Err(status));
                let _ = tokio::time::timeout(READING_PATIENCE, sending).await;
            }
        }
    }

    fn trace_id(&self) -> Option<&str> {
        self.trace.as_ref().map(TraceParent::trace)
    }

    async fn converse(&mut self) -> Result<(), End> {
        let (opening, session) = self.opening().await?;
        self.session = Some(session.id.clone());
        let claimed = self.setting.owners.claim(&session.id, &self.caller.gate);
        claimed.map_err(|owner| self.trespass(&session.id, &owner))?;
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
        let (revision, variables, digest) = {
            // What was changed before isn't news to a session that begins now.
            let rules = self.setting.rules.borrow_and_update();
            let asked = rules.requested_environment().iter();
            let variables = asked.map(|name| name.clone().into()).collect();
            let digest = if rules.requests_digests() {
                v1::ExecutableDigest::Sha256
            } else {
                v1::ExecutableDigest::Unspecified
            };
            (rules.revision().to_owned(), variables, digest)
        };
        self.answer(Answer::SessionAccepted(v1::SessionAccepted {
            event_acknowledgement: acknowledgement.into(),
            policy_revision: revision,
            requested_environment_names: variables,
            stored_sequence: stored,
            requested_executable_digest: digest.into(),
        }))
        .await?;
        let present = match conversation {
            Conversation::Decisions => {
                let (present, terminated) = self.setting.sessions.connect(&session, &self.control);
                if let Some(reason) = terminated {
                    self.terminate(reason).await?;
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

    /// Reads the event that opens the call.
    async fn opening(&mut self) -> Result<(v1::SessionRequest, SessionFacts), End> {
        let first = tokio::select! {
            first = tokio::time::timeout(OPENING_PATIENCE, self.events.message()) => first,
            () = self.setting.stopping.cancelled() => return Err(stopping().into()),
        };
        let first = first
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
                        self.answer(Answer::Verdict(decided.verdict.clone())).await?;
                        if let Some(journal) = &mut journal {
                            journal.answered(stored(*decided, None));
                        }
                    }
                    Control::Terminate(reason) => self.terminate(reason).await?,
                },
                () = revoked(self.caller.token.as_ref(), &mut tokens) => return Err(no_longer_valid().into()),
                _ = look.tick() => {
                    if journal.as_ref().is_some_and(|journal| journal.is_to_be_resumed()) {
                        return Err(not_stored().into());
                    }
                }
                event = self.events.message() => {
                    let Some(mut request) = event.map_err(|status| unreadable(&status))? else {
                        return Ok(());
                    };
                    let received = Instant::now();
                    within_bounds(&request)?;
                    let answer = self.react(session, conversation, &request, received).await?;
                    if let Some(journal) = &mut journal {
                        forget_values(&mut request);
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
                match self.decide(session, exec) {
                    (Answered::Decided(mut decided), monitored) => {
                        decided.verdict.service_time = received.elapsed().try_into().ok();
                        self.answer(Answer::Verdict(decided.verdict.clone())).await?;
                        Ok(Some(stored(*decided, monitored)))
                    }
                    (
                        Answered::Pending {
                            within,
                            message,
                            approval_id,
                        },
                        _,
                    ) => {
                        self.answer(Answer::VerdictPending(v1::VerdictPending {
                            exec_id: exec.exec_id,
                            expected_within: within.try_into().ok(),
                            message,
                        }))
                        .await?;
                        Ok(Some(StoredAnswer {
                            verdict: Some(v1::Verdict {
                                exec_id: exec.exec_id,
                                ..v1::Verdict::default()
                            }),
                            mode: AnswerMode::Pending.into(),
                            approval_id,
                            decided_by: String::new(),
                        }))
                    }
                }
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

    /// Decides by the rules, or has a person asked where they say so.
    /// What the gate is answered, and what would have been decided where that is only monitored.
    fn decide(
        &self,
        session: &SessionFacts,
        exec: &v1::ExecRequested,
    ) -> (Answered, Option<EscalationDecision>) {
        if let Some(reason) = &self.terminated {
            let verdict = v1::Verdict {
                exec_id: exec.exec_id,
                decision: Some(v1::verdict::Decision::Deny(v1::Deny {
                    reason: format!("the session was {reason}"),
                })),
                reason_code: CODE_TERMINATED.to_owned(),
                ..v1::Verdict::default()
            };
            return (Answered::Decided(Box::new(verdict.into())), None);
        }
        if let Some(allowance) = &self.allowance
            && allowance.take(Instant::now()) == Within::No
        {
            return (self.rate_limited(exec.exec_id, allowance), None);
        }
        let rules = Arc::clone(&self.setting.rules.borrow());
        let began = Instant::now();
        let ruling = ruling(&rules, session, exec);
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
                let note = "the rules ask no longer";
                desk.withdraw(&session.id, exec.exec_id, note, SystemTime::now());
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
        Answered::Decided(Box::new(Decided::from(v1::Verdict {
            exec_id,
            decision: Some(v1::verdict::Decision::Deny(v1::Deny {
                reason: format!(
                    "more than {most} commands a second ask the policy service; try again in a moment"
                ),
            })),
            reason_code: CODE_RATE_LIMITED.to_owned(),
            ..v1::Verdict::default()
        })))
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
    async fn terminate(&mut self, reason: String) -> Result<(), Gone> {
        self.terminated = Some(reason.clone());
        self.answer(Answer::TerminateSession(v1::TerminateSession { reason }))
            .await
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
        let sending = self.answers.send(Ok(response));
        let Ok(sent) = tokio::time::timeout(READING_PATIENCE, sending).await else {
            if let Some(held_back) = UNREAD.admit() {
                tracing::warn!(
                    gate = %self.caller.gate, held_back,
                    "ending a call: the gate has read none of its answers for {} seconds",
                    READING_PATIENCE.as_secs()
                );
            }
            return Err(Gone);
        };
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

/// Values of the environment are for deciding by, and not for the record.
fn forget_values(request: &mut v1::SessionRequest) {
    let exec = match &mut request.event {
        Some(Event::ExecRequested(exec)) => exec,
        Some(Event::ExecReused(reused)) => match &mut reused.exec {
            Some(exec) => exec,
            None => return,
        },
        _ => return,
    };
    exec.environment_variables.clear();
}

/// The gate may have another one: it is to call again at once.
fn no_longer_valid() -> Status {
    Status::unavailable("the token of this call isn't valid any more")
}

pub(super) fn session_facts(
    started: &v1::SessionStarted,
    gate: &GateIdentity,
) -> Result<SessionFacts, Status> {
    let id = &started.session_id;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if id.len() != 32 || !id.bytes().all(is_digit) {
        return Err(Status::invalid_argument(
            "session_id must be 32 lowercase hexadecimal digits",
        ));
    }
    let user = started.user.clone().unwrap_or_default();
    let sandbox = started.sandbox.clone().unwrap_or_default();
    Ok(SessionFacts {
        id: id.clone(),
        gate: gate.clone(),
        labels: started
            .labels
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        hostname: started
            .gate
            .as_ref()
            .map(|gate| gate.hostname.clone())
            .unwrap_or_default(),
        user: UserFacts {
            uid: user.user_id,
            gid: user.group_id,
            name: user.name,
        },
        workdir: started.workdir.to_vec(),
        command: started.command.iter().map(|word| word.to_vec()).collect(),
        enforcement: match sandbox.enforcement() {
            v1::Enforcement::Full => Enforcement::Full,
            v1::Enforcement::Partial => Enforcement::Partial,
            v1::Enforcement::None | v1::Enforcement::Unspecified => Enforcement::None,
        },
        sandbox: sandbox.backend,
        profile: sandbox.profile,
        not_enforced: sandbox.unenforced_parts,
        sandbox_version: sandbox.version,
        sandbox_limits: sandbox.limits,
        not_granted: sandbox.ungranted_parts,
    })
}

pub(super) fn ruling(rules: &Rules, session: &SessionFacts, exec: &v1::ExecRequested) -> Ruling {
    let process = exec.process.unwrap_or_default();
    rules.evaluate(&ExecFacts {
        id: ExecId(exec.exec_id),
        file: &exec.file,
        argv: exec.arguments.iter().map(|word| &word[..]).collect(),
        workdir: &exec.workdir,
        environment_names: exec
            .environment_names
            .iter()
            .map(|name| &name[..])
            .collect(),
        environment: exec
            .environment_variables
            .iter()
            .map(|variable| EnvironmentFact {
                name: &variable.name,
                value: &variable.value,
                is_redacted: variable.redaction() == v1::Redaction::Replaced,
            })
            .collect(),
        redacted_arguments: &exec.redacted_arguments,
        executable: exec.executable.as_ref(),
        workdir_protection: exec.workdir_protection(),
        process: ProcessIdentity {
            pid: process.process_id,
            parent_pid: process.parent_process_id,
            uid: process.user_id,
            gid: process.group_id,
        },
        parent: Some(exec.parent_exec_id)
            .filter(|parent| *parent != 0)
            .map(ExecId),
        session,
    })
}

/// What is recorded of a verdict.
fn stored(decided: Decided, monitored: Option<EscalationDecision>) -> StoredAnswer {
    let Decided {
        mut verdict,
        approval_id,
        operator: decided_by,
    } = decided;
    let mode = match monitored {
        None => AnswerMode::Enforced,
        Some(would) => {
            verdict.decision = Some(decision_message(would, EscalationTerms::default()));
            AnswerMode::Monitored
        }
    };
    StoredAnswer {
        verdict: Some(verdict),
        mode: mode.into(),
        approval_id,
        decided_by,
    }
}

fn verdict(rules: &Rules, exec: &v1::ExecRequested, ruling: Ruling) -> v1::Verdict {
    let Ruling {
        decision,
        reason_code,
        rule,
        reuse,
        terms,
        ..
    } = ruling;
    v1::Verdict {
        exec_id: exec.exec_id,
        decision: Some(decision_message(decision, terms)),
        reason_code,
        rule,
        policy_revision: rules.revision().to_owned(),
        reuse: reuse.map(reuse_message),
        service_time: None,
    }
}

fn reuse_message(OpinionReuse { valid_for, scope }: OpinionReuse) -> v1::Reuse {
    let (scope, length) = match scope {
        OpinionReuseScope::Exec => (v1::ReuseScope::SameExec, 0),
        OpinionReuseScope::Prefix(length) => (
            v1::ReuseScope::ArgumentPrefix,
            u32::try_from(length).unwrap_or(u32::MAX),
        ),
    };
    v1::Reuse {
        valid_for: valid_for.try_into().ok(),
        scope: scope.into(),
        argument_prefix_length: length,
        // Rules may look at the session's labels, user and directory.
        reach: v1::ReuseReach::Session.into(),
    }
}

pub(super) fn decision_message(
    decision: EscalationDecision,
    terms: EscalationTerms,
) -> v1::verdict::Decision {
    use v1::verdict::Decision;
    match decision {
        EscalationDecision::Run => Decision::Run(v1::Run {}),
        EscalationDecision::Escalate(execution) => Decision::Escalate(v1::Escalate {
            execution: Some(execution_message(execution)),
            environment: environment_rules(terms.environment),
            unprotected_programs: match terms.unprotected {
                Unprotected::Denied => v1::UnprotectedPrograms::Denied,
                Unprotected::Allowed => v1::UnprotectedPrograms::Allowed,
            }
            .into(),
        }),
        EscalationDecision::Deny { reason } => Decision::Deny(v1::Deny {
            reason: reason.unwrap_or_default(),
        }),
    }
}

fn environment_rules(rules: EnvironmentRules) -> Option<v1::EnvironmentRules> {
    use std::os::unix::ffi::OsStringExt;
    let bytes = |text: std::ffi::OsString| text.into_vec().into();
    let names = |patterns: Vec<NamePattern>| {
        let names = patterns.into_iter().map(|pattern| pattern.0.into());
        names.collect()
    };
    (rules != EnvironmentRules::default()).then(|| v1::EnvironmentRules {
        kept_names: names(rules.keep),
        unset_names: names(rules.unset),
        set_variables: rules
            .set
            .into_iter()
            .map(|(name, value)| v1::SetVariable {
                name: bytes(name),
                value: bytes(value),
            })
            .collect(),
    })
}

fn execution_message(execution: EscalationExecution) -> v1::escalate::Execution {
    use std::os::unix::ffi::OsStringExt;
    use v1::escalate::Execution;
    let paths = |paths: Vec<std::path::PathBuf>| {
        paths
            .into_iter()
            .map(|path| path.into_os_string().into_vec().into())
            .collect()
    };
    match execution {
        EscalationExecution::Unsandboxed => Execution::Unsandboxed(v1::Unsandboxed {}),
        EscalationExecution::TurnDefault => Execution::TurnDefault(v1::TurnDefault {}),
        EscalationExecution::Permissions(EscalationPermissions {
            network,
            readable,
            writable,
        }) => Execution::Permissions(v1::PermissionProfile {
            network_access: match network {
                NetworkAccess::Denied => v1::NetworkAccess::Denied,
                NetworkAccess::Allowed => v1::NetworkAccess::Allowed,
            }
            .into(),
            readable_paths: paths(readable),
            writable_paths: paths(writable),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_id_is_32_lowercase_hexadecimal_digits() {
        for (id, is_valid) in [
            ("0123456789abcdef0123456789abcdef", true),
            ("0123456789ABCDEF0123456789abcdef", false),
            ("0123456789abcdef0123456789abcde", false),
            ("0123456789abcdef0123456789abcdef0", false),
            ("../3456789abcdef0123456789abcdef", false),
            ("", false),
        ] {
            let started = v1::SessionStarted {
                session_id: id.to_owned(),
                ..v1::SessionStarted::default()
            };
            assert_eq!(
                session_facts(&started, &GateIdentity::anonymous()).is_ok(),
                is_valid,
                "{id:?}"
            );
        }
    }

    #[test]
    fn a_verdict_carries_all_that_the_rules_say() {
        let rules = Rules::parse(
            "x.rules",
            "prefix_rule([\"make\"], \"escalate\", execution = permissions(network = \"allowed\", \
             write = [\"/w\"]), name = \"n\", reason_code = \"c\")"
                .to_owned(),
        )
        .expect("rules");
        let exec = v1::ExecRequested {
            exec_id: 12,
            file: b"/usr/bin/make"[..].into(),
            ..v1::ExecRequested::default()
        };
        let ruling = ruling(&rules, &SessionFacts::default(), &exec);
        let verdict = verdict(&rules, &exec, ruling);
        assert_eq!(
            verdict,
            v1::Verdict {
                exec_id: 12,
                decision: Some(v1::verdict::Decision::Escalate(v1::Escalate {
                    execution: Some(v1::escalate::Execution::Permissions(
                        v1::PermissionProfile {
                            network_access: v1::NetworkAccess::Allowed.into(),
                            readable_paths: Vec::new(),
                            writable_paths: vec![b"/w"[..].into()],
                        }
                    )),
                    environment: None,
                    unprotected_programs: v1::UnprotectedPrograms::Denied.into(),
                })),
                reason_code: "c".to_owned(),
                rule: "n".to_owned(),
                policy_revision: rules.revision().to_owned(),
                reuse: None,
                service_time: None,
            }
        );
    }
}
