//! What the page asks for.

use std::time::SystemTime;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::login::LoggedIn;
use super::{Console, show};
use crate::pb::approval::v1 as approval;
use crate::pb::approval::v1::approval_service_server::ApprovalService;
use crate::pb::audit::v1 as record;
use crate::pb::audit::v1::audit_service_server::AuditService;
use crate::pb::session::v1 as session;
use crate::pb::session::v1::session_service_server::SessionService;
use crate::policyd::operators::Duty;
use crate::policyd::rules::RuleMode;
use crate::policyd::text;

/// Most execs of one session that the page gets, in pages of so many.
const MOST_OF_SESSION: usize = 5_000;
const PAGE: u32 = 1_000;
/// Longest pattern that the page gets, in bytes.
const LONGEST_RULE: usize = 4_000;

/// Why the page doesn't get what it asks for.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    reason: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
        }
    }

    pub(super) fn internal(error: &dyn std::error::Error) -> Self {
        tracing::error!("the console: {error}");
        let reason = "The policy service failed; its log says why.";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, reason)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.reason }))).into_response()
    }
}

impl From<Status> for Problem {
    fn from(status: Status) -> Self {
        let code = match status.code() {
            Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::FailedPrecondition => StatusCode::CONFLICT,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(code, status.message())
    }
}

type Answer = Result<Json<Value>, Problem>;

pub(super) async fn me(login: LoggedIn) -> Json<Value> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Json(json!({
        "name": login.operator.as_str(),
        "may_operate": login.operator.duty() == Duty::Operate,
        "now": now.unwrap_or_default().as_secs_f64() * 1e3,
    }))
}

/// Which execs are looked for; what is empty isn't asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Search {
    program: String,
    session: String,
    gate: String,
    code: String,
    label: String,
    verdict: String,
    /// Seconds before now.
    since: String,
    limit: u32,
    page: String,
}

impl Search {
    fn filter(&self) -> Result<record::ExecFilter, Problem> {
        let bad = |what: &str| Problem::new(StatusCode::BAD_REQUEST, what);
        let labels = match self.label.as_str() {
            "" => Vec::new(),
            label => vec![
                label
                    .split_once('=')
                    .ok_or_else(|| bad("A label is written KEY=VALUE."))?,
            ],
        };
        let outcome = match self.verdict.as_str() {
            "" => record::Outcome::Unspecified,
            "run" => record::Outcome::Run,
            "escalate" => record::Outcome::Escalate,
            "deny" => record::Outcome::Deny,
            "pending" => record::Outcome::Pending,
            "monitored" => record::Outcome::Monitored,
            _ => {
                return Err(bad(
                    "The verdict is run, escalate, deny, pending or monitored.",
                ));
            }
        };
        let since = match self.since.as_str() {
            "" => None,
            seconds => {
                let seconds = seconds.parse().ok().map(std::time::Duration::from_secs);
                let then = seconds.and_then(|age| SystemTime::now().checked_sub(age));
                Some(
                    then.ok_or_else(|| bad("`since` is a number of seconds."))?
                        .into(),
                )
            }
        };
        Ok(record::ExecFilter {
            session_id_prefix: self.session.clone(),
            labels: labels
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            gate: self.gate.clone(),
            program: self.program.clone(),
            outcome: outcome.into(),
            code: self.code.clone(),
            since_time: since,
        })
    }
}

pub(super) async fn execs(
    State(console): State<Console>,
    login: LoggedIn,
    Query(search): Query<Search>,
) -> Answer {
    let asked = record::ListRequest {
        filter: Some(search.filter()?),
        page_size: search.limit,
        page_token: search.page,
        view: record::ExecView::Basic.into(),
    };
    let listed = console.0.audit.list(login.call(asked)).await?.into_inner();
    let next = Some(listed.next_page_token).filter(|token| !token.is_empty());
    Ok(Json(json!({
        "execs": listed.execs.iter().map(show::exec).collect::<Vec<_>>(),
        "next": next,
    })))
}

pub(super) async fn sessions(State(console): State<Console>, login: LoggedIn) -> Answer {
    let asked = session::ListSessionsRequest {
        page_size: PAGE,
        page_token: String::new(),
    };
    let listed = console.0.sessions.list_sessions(login.call(asked)).await?;
    let listed = listed.into_inner();
    Ok(Json(json!({
        "sessions": listed.sessions.iter().map(show::live_session).collect::<Vec<_>>(),
        "more": !listed.next_page_token.is_empty(),
    })))
}

pub(super) async fn session(
    State(console): State<Console>,
    login: LoggedIn,
    Path(id): Path<String>,
) -> Answer {
    let mut asked = record::GetSessionRequest {
        session_id: id,
        page_size: PAGE,
        page_token: String::new(),
        view: record::ExecView::Basic.into(),
    };
    let mut execs = Vec::new();
    loop {
        let found = console
            .0
            .audit
            .get_session(login.call(asked.clone()))
            .await?;
        let found = found.into_inner();
        execs.extend(found.execs.iter().map(show::exec));
        let is_all = found.next_page_token.is_empty();
        if is_all || execs.len() >= MOST_OF_SESSION {
            return Ok(Json(json!({
                "session": show::recorded_session(&found.session.unwrap_or_default()),
                "execs": execs,
                "truncated": !is_all,
            })));
        }
        asked.page_token = found.next_page_token;
    }
}

/// Why a session is ended.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Termination {
    reason: String,
}

pub(super) async fn terminate(
    State(console): State<Console>,
    login: LoggedIn,
    Path(id): Path<String>,
    Json(termination): Json<Termination>,
) -> Answer {
    let asked = session::TerminateSessionRequest {
        session_id: id,
        reason: termination.reason,
    };
    let ended = console
        .0
        .sessions
        .terminate_session(login.call(asked))
        .await?
        .into_inner();
    let had_ended = matches!(
        ended.outcome(),
        session::TerminateOutcome::EndedBefore | session::TerminateOutcome::TerminatedBefore
    );
    Ok(Json(
        json!({ "by": ended.terminated_by, "had_ended": had_ended }),
    ))
}

/// What a person decides of an approval.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Resolution {
    decision: String,
    #[serde(default)]
    note: String,
    #[serde(default)]
    scope: String,
    /// How many first arguments must be the same.
    #[serde(default)]
    prefix: u32,
    #[serde(default)]
    seconds: u32,
}

impl Resolution {
    fn scope(&self) -> Option<approval::Scope> {
        let (reach, argument_match) = match self.scope.as_str() {
            "" | "once" => return Some(approval::Scope::default()),
            "session" => (approval::ScopeReach::Session, approval::ArgumentMatch::Same),
            "session-prefix" => (
                approval::ScopeReach::Session,
                approval::ArgumentMatch::Prefix,
            ),
            "gate-prefix" => (approval::ScopeReach::Gate, approval::ArgumentMatch::Prefix),
            _ => return None,
        };
        let argument_prefix_length = match argument_match {
            approval::ArgumentMatch::Prefix => self.prefix,
            approval::ArgumentMatch::Same | approval::ArgumentMatch::Unspecified => 0,
        };
        Some(approval::Scope {
            reach: reach.into(),
            valid_for: Some(prost_types::Duration {
                seconds: self.seconds.into(),
                nanos: 0,
            }),
            argument_match: argument_match.into(),
            argument_prefix_length,
        })
    }
}

pub(super) async fn resolve(
    State(console): State<Console>,
    login: LoggedIn,
    Path(id): Path<String>,
    Json(resolution): Json<Resolution>,
) -> Answer {
    let bad = |what: &str| Problem::new(StatusCode::BAD_REQUEST, what);
    let decided = match resolution.decision.as_str() {
        "approve" => approval::Decision::Approve,
        "deny" => approval::Decision::Deny,
        _ => return Err(bad("The decision is approve or deny.")),
    };
    let scope = resolution.scope();
    let scope =
        scope.ok_or_else(|| bad("The scope is once, session, session-prefix or gate-prefix."))?;
    let asked = approval::ResolveApprovalRequest {
        approval_id: id,
        decision: decided.into(),
        note: resolution.note,
        scope: Some(scope),
    };
    let resolved = console
        .0
        .approvals
        .resolve_approval(login.call(asked))
        .await?;
    let resolved = resolved.into_inner();
    let outcome = match resolved.outcome() {
        approval::ResolveOutcome::Resolved => "resolved",
        approval::ResolveOutcome::ClosedBefore | approval::ResolveOutcome::Unspecified => {
            "closed-before"
        }
    };
    Ok(Json(json!({
        "outcome": outcome,
        "approval": show::approval(&resolved.approval.unwrap_or_default()),
    })))
}

pub(super) async fn rules(State(console): State<Console>, _login: LoggedIn) -> Json<Value> {
    let rules = console.0.rules.borrow().clone();
    Json(json!({
        "revision": rules.revision(),
        "error": *console.0.rules_fault.borrow(),
        "rules": rules.listing().iter().map(|rule| json!({
            "decision": rule.decision,
            "text": text::shortened(&rule.text, LONGEST_RULE),
            "place": rule.place,
            "reason": rule.reason,
            "decided": rule.decided,
            "monitored": rule.mode == RuleMode::Monitor,
        })).collect::<Vec<_>>(),
    }))
}
