//! The gRPC service for those who decide.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::desk::{Desk, Happened, ResolveError, RevokeError, Watch};
use crate::pb::approval::v1 as pb;
use crate::pb::approval::v1::approval_service_server::ApprovalService;
use crate::policyd::admission::{Admission, Admitted, Bounds};
use crate::policyd::authenticate::{OperatorCaller, operator};
use crate::policyd::operators::{Duty, Operator};
use crate::policyd::throttle::Throttle;
use crate::policyd::tokens::Tokens;

/// Most bytes of a note.
pub(in crate::policyd) const LONGEST_NOTE: usize = 1_024;
/// Approvals of one answer, where nothing is said, and at most; and about how many bytes of them.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1_000;
const PAGE_BYTES: usize = 8 << 20;
/// Longest id, in bytes.
const LONGEST_ID: usize = 64;
/// Changes that wait for a watcher that doesn't read them, each with an approval of its own.
const QUEUED_CHANGES: usize = 8;
/// How long a watcher may not read.
const WATCHER_PATIENCE: Duration = Duration::from_secs(30);
/// Most watchers at once; those of one operator are half of it.
const WATCHERS: Bounds = Bounds {
    in_all: 256,
    of_one_peer: 128,
};

static DECISIONS_LOST: Throttle = Throttle::new(Duration::from_secs(5));

/// Lists approvals, and takes decisions.
#[derive(Debug)]
pub(in crate::policyd) struct Approvals {
    desk: Desk,
    operators: watch::Receiver<Arc<Tokens<Operator>>>,
    watchers: Admission<String>,
    stopping: CancellationToken,
}

impl Approvals {
    pub(in crate::policyd) fn new(
        desk: Desk,
        operators: watch::Receiver<Arc<Tokens<Operator>>>,
        stopping: CancellationToken,
    ) -> Self {
        Self {
            desk,
            operators,
            watchers: Admission::new(WATCHERS),
            stopping,
        }
    }
}

fn valid_id(id: &str) -> Result<&str, Status> {
    let is_valid =
        !id.is_empty() && id.len() <= LONGEST_ID && id.bytes().all(|b| b.is_ascii_graphic());
    is_valid
        .then_some(id)
        .ok_or_else(|| Status::invalid_argument("approval_id: give the id of an approval"))
}

#[tonic::async_trait]
impl ApprovalService for Approvals {
    type WatchApprovalsStream = ReceiverStream<Result<pb::WatchApprovalsResponse, Status>>;

    async fn list_approvals(
        &self,
        request: Request<pb::ListApprovalsRequest>,
    ) -> Result<Response<pb::ListApprovalsResponse>, Status> {
        operator(&request)?;
        let request = request.into_inner();
        let wanted = match pb::ApprovalState::try_from(request.state) {
            Ok(pb::ApprovalState::Unspecified) => None,
            Ok(state) => Some(state),
            Err(_) => {
                return Err(Status::invalid_argument(
                    "state: it isn't one that is known",
                ));
            }
        };
        let most = match usize::try_from(request.page_size) {
            Ok(0) => PAGE,
            Ok(size) => size.min(LARGEST_PAGE),
            Err(_) => LARGEST_PAGE,
        };
        let before = match request.page_token.as_str() {
            "" => u64::MAX,
            token => token
                .parse()
                .map_err(|_| Status::invalid_argument("page_token: no answer gave it"))?,
        };
        let (approvals, next) = self.desk.list(wanted, before, most, PAGE_BYTES);
        Ok(Response::new(pb::ListApprovalsResponse {
            approvals,
            next_page_token: next.map_or_else(String::new, |next| next.to_string()),
        }))
    }

    async fn watch_approvals(
        &self,
        request: Request<pb::WatchApprovalsRequest>,
    ) -> Result<Response<Self::WatchApprovalsStream>, Status> {
        let caller = operator(&request)?;
        let admitted = self
            .watchers
            .admit(caller.operator.to_string())
            .map_err(|_| Status::resource_exhausted("as many watch approvals already as may"))?;
        let (sender, receiver) = mpsc::channel(QUEUED_CHANGES);
        let (open, changes) = self.desk.watch();
        tokio::spawn(
            Watcher {
                caller,
                operators: self.operators.clone(),
                sender,
                stopping: self.stopping.clone(),
                _admitted: admitted,
            }
            .run(open, changes),
        );
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_approval(
        &self,
        request: Request<pb::GetApprovalRequest>,
    ) -> Result<Response<pb::GetApprovalResponse>, Status> {
        operator(&request)?;
        let id = request.into_inner().approval_id;
        let approval = self.desk.get(valid_id(&id)?);
        let unknown = || Status::not_found(ResolveError::Unknown(id.clone()).to_string());
        Ok(Response::new(pb::GetApprovalResponse {
            approval: Some(approval.ok_or_else(unknown)?),
        }))
    }

    async fn resolve_approval(
        &self,
        request: Request<pb::ResolveApprovalRequest>,
    ) -> Result<Response<pb::ResolveApprovalResponse>, Status> {
        let caller = operator(&request)?;
        let request = request.into_inner();
        let id = valid_id(&request.approval_id)?;
        let decision = match request.decision() {
            pb::Decision::Unspecified => {
                return Err(Status::invalid_argument("decision: approve or deny"));
            }
            decision => decision,
        };
        if request.note.len() > LONGEST_NOTE {
            return Err(Status::invalid_argument(format!(
                "note: it has {} bytes, and {LONGEST_NOTE} at most",
                request.note.len()
            )));
        }
        let scope = request.scope.unwrap_or_default();
        let is_known = pb::ScopeReach::try_from(scope.reach).is_ok()
            && pb::ArgumentMatch::try_from(scope.argument_match).is_ok();
        if !is_known {
            return Err(Status::invalid_argument(
                "scope: it isn't one that is known",
            ));
        }
        let desk = self.desk.clone();
        let (id, note) = (id.to_owned(), request.note.clone());
        // A decision that has been begun is taken, whether its caller waits for it or not.
        let resolving = tokio::spawn(async move {
            let operator = &caller.operator;
            desk.resolve(&id, decision, &note, &scope, operator).await
        });
        let resolved = resolving
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        let resolved = resolved.map_err(|error| match &error {
            ResolveError::Unknown(_) => Status::not_found(error.to_string()),
            ResolveError::Scope(_) => Status::invalid_argument(format!("scope: {error}")),
            ResolveError::NotRecorded(_) => {
                if let Some(held_back) = DECISIONS_LOST.admit() {
                    tracing::error!(held_back, "a decision wasn't taken: {error}");
                }
                Status::unavailable(format!("nothing is decided: {error}"))
            }
        })?;
        Ok(Response::new(pb::ResolveApprovalResponse {
            outcome: resolved.outcome.into(),
            approval: Some(resolved.approval),
        }))
    }

    async fn list_grants(
        &self,
        request: Request<pb::ListGrantsRequest>,
    ) -> Result<Response<pb::ListGrantsResponse>, Status> {
        operator(&request)?;
        Ok(Response::new(pb::ListGrantsResponse {
            grants: self.desk.grants(),
        }))
    }

    async fn revoke_grant(
        &self,
        request: Request<pb::RevokeGrantRequest>,
    ) -> Result<Response<pb::RevokeGrantResponse>, Status> {
        let caller = operator(&request)?;
        let id = request.into_inner().approval_id;
        let revoked = self.desk.revoke(valid_id(&id)?).await;
        let grant = revoked.map_err(|error| match &error {
            RevokeError::Unknown(_) => Status::not_found(error.to_string()),
            RevokeError::NotRecorded(_) => {
                tracing::error!(approval = id, by = %caller.operator, "{error}");
                Status::unavailable(error.to_string())
            }
        })?;
        tracing::info!(approval = id, by = %caller.operator, "a decision holds no longer");
        Ok(Response::new(pb::RevokeGrantResponse {
            grant: Some(grant),
        }))
    }
}

struct Watcher {
    caller: OperatorCaller,
    operators: watch::Receiver<Arc<Tokens<Operator>>>,
    sender: mpsc::Sender<Result<pb::WatchApprovalsResponse, Status>>,
    stopping: CancellationToken,
    _admitted: Admitted<String>,
}

impl Watcher {
    async fn run(mut self, open: Vec<Arc<pb::Approval>>, changes: Watch) {
        if let Err(Some(status)) = self.follow(open, changes).await {
            // Whether it is read or not, the call ends.
            let _ = tokio::time::timeout(WATCHER_PATIENCE, self.sender.send(Err(status))).await;
        }
    }

    async fn follow(
        &mut self,
        open: Vec<Arc<pb::Approval>>,
        mut changes: Watch,
    ) -> Result<(), Option<Status>> {
        for approval in open {
            let approval = Arc::unwrap_or_clone(approval);
            self.send(pb::ApprovalChange::Existing, Some(approval))
                .await?;
        }
        self.send(pb::ApprovalChange::CaughtUp, None).await?;
        loop {
            tokio::select! {
                () = self.stopping.cancelled() => {
                    return Err(Some(Status::unavailable("the policy service is stopping")));
                }
                () = self.sender.closed() => return Err(None),
                changed = self.operators.changed() => {
                    let credential = &self.caller.credential;
                    let duty = self.operators.borrow_and_update().holder(credential).map(Operator::duty);
                    match duty {
                        Some(Duty::Operate) if changed.is_ok() => {}
                        Some(Duty::Audit) => {
                            return Err(Some(Status::permission_denied(
                                "the credential of this call is an auditor's now: approvals are for operators",
                            )));
                        }
                        _ => {
                            return Err(Some(Status::unauthenticated(
                                "the credential of this call isn't valid any more",
                            )));
                        }
                    }
                }
                happened = changes.recv() => match happened {
                    Ok(Happened { change, approval }) => {
                        self.send(change, Some(Arc::unwrap_or_clone(approval))).await?;
                    }
                    Err(RecvError::Lagged(missed)) => {
                        return Err(Some(Status::data_loss(format!(
                            "{missed} changes were missed; watch again"
                        ))));
                    }
                    Err(RecvError::Closed) => return Ok(()),
                },
            }
        }
    }

    async fn send(
        &self,
        change: pb::ApprovalChange,
        approval: Option<pb::Approval>,
    ) -> Result<(), Option<Status>> {
        let response = pb::WatchApprovalsResponse {
            change: change.into(),
            approval,
        };
        match tokio::time::timeout(WATCHER_PATIENCE, self.sender.send(Ok(response))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(None),
            Err(_) => Err(Some(Status::data_loss("the watcher doesn't read"))),
        }
    }
}
