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

mod answers;
mod call;
mod events;
mod facts;
mod reader;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use self::call::Call;
use super::admission::{Admission, Bounds, Full};
use super::approvals::{Desk, WAITING_OF_ONE_SESSION};
use super::authenticate::{Caller, not_a_gate};
use super::identity::GateIdentity;
use super::numbers::{Counted, ServiceNumbers};
use super::operators::Operator;
use super::owners::Owners;
use super::rate::Rates;
use super::reception::Room;
use super::rules::Rules;
use super::sessions::Sessions;
use super::store::Store;
use super::throttle::Throttle;
use super::tokens::Tokens;
use crate::pb::v1::policy_service_server::PolicyService;
use crate::pb::{TRACEPARENT, v1};

pub(super) use self::answers::{decision_message, verdict};
pub(super) use self::call::CODES_OF_NO_RULES;
pub(super) use self::events::size_of_facts;
pub(super) use self::facts::{ruling, session_facts};

/// Largest message, both ways, in bytes; what the contract asks for.
pub(super) const MAX_MESSAGE_SIZE: usize = 16 << 20;
/// Most calls at once; those of one gate are half of it, so that there is room for others.
const MAX_CALLS: Bounds = Bounds {
    in_all: 4_096,
    of_one_peer: 2_048,
};
/// Answers that may wait for a gate that doesn't read them.
const QUEUED_ANSWERS: usize = 64;
/// What a call may be told before it is seen to: all decisions that a session can wait for, twice over, since
/// those of execs that were withdrawn count no more, and that the session is to end.
const QUEUED_CONTROLS: usize = 2 * WAITING_OF_ONE_SESSION + 16;

static FULL: Throttle = Throttle::new(Duration::from_secs(1));

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
    pub(super) operators: Option<watch::Receiver<Arc<Tokens<Operator>>>>,
    pub(super) store: Option<Store>,
    pub(super) owners: Owners,
    /// Where persons are asked; `None`: nobody can be.
    pub(super) desk: Option<Desk>,
    pub(super) numbers: Arc<ServiceNumbers>,
    /// How many execs a second a gate may ask about; `None`: any number.
    pub(super) rates: Option<Rates>,
    pub(super) sessions: Sessions,
    /// For what sessions say of themselves, which is there as long as they are.
    pub(super) room_of_sessions: Arc<Room>,
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
            long: request.extensions().get().cloned().unwrap_or_default(),
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
