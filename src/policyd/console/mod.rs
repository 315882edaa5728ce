//! The console: a page for operators and auditors, and what it asks for.
//!
//! ```text
//! browser --HTTP/1.1, cookie--> console --the same calls as over gRPC--> audit, approvals, sessions
//!         <--server-sent events--
//! ```
//!
//! Invariants: the console can do what the credential of whoever logged in can do over gRPC, and nothing else:
//! it calls the same services, which ask the same questions. A login holds as long as its token does. The page
//! loads nothing from elsewhere, and runs no script but its own. Whoever doesn't read holds up nobody.
//!
//! Not here: what is on record (`audit`), who decides what (`approvals`), connections (`accept`).

mod api;
mod assets;
mod live;
mod login;
mod show;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderName, HeaderValue, Request, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::approvals::Approvals;
use super::audit::StoreAudit;
use super::connection::Connection;
use super::operators::Operator;
use super::rules::Rules;
use super::sessions::SessionsService;
use super::tokens::Tokens;
use api::Problem;
use login::Logins;

/// Largest request, in bytes.
const MAX_BODY: usize = 64 << 10;
/// How long a request's head may take.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long the rest of a request, and what it asks for, may take before an answer begins.
const ANSWER_PATIENCE: Duration = Duration::from_secs(15);
/// What every answer says of itself: nothing from elsewhere, nothing inline, in no frame.
const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (
        HeaderName::from_static("content-security-policy"),
        HeaderValue::from_static(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
    ),
    (
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    ),
    (
        HeaderName::from_static("x-frame-options"),
        HeaderValue::from_static("DENY"),
    ),
    (
        HeaderName::from_static("referrer-policy"),
        HeaderValue::from_static("no-referrer"),
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    ),
    (
        HeaderName::from_static("cache-control"),
        HeaderValue::from_static("no-store"),
    ),
];

/// What the console shows, and by which calls it acts.
#[derive(Debug, Clone)]
pub(super) struct Console(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    audit: Arc<StoreAudit>,
    approvals: Arc<Approvals>,
    sessions: Arc<SessionsService>,
    rules: watch::Receiver<Arc<Rules>>,
    rules_fault: watch::Receiver<Option<String>>,
    operators: watch::Receiver<Arc<Tokens<Operator>>>,
    logins: Logins,
    cookies: Cookies,
    stopping: CancellationToken,
}

/// How browsers may send cookies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cookies {
    /// By TLS alone.
    Secure,
    /// To this host without TLS.
    Loopback,
}

/// What a [`Console`] is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) audit: Arc<StoreAudit>,
    pub(super) approvals: Arc<Approvals>,
    pub(super) sessions: Arc<SessionsService>,
    pub(super) rules: watch::Receiver<Arc<Rules>>,
    /// Why what the rules' files hold now isn't in force, if it isn't.
    pub(super) rules_fault: watch::Receiver<Option<String>>,
    pub(super) operators: watch::Receiver<Arc<Tokens<Operator>>>,
    pub(super) cookies: Cookies,
    pub(super) stopping: CancellationToken,
}

impl Console {
    pub(super) fn new(parts: Parts) -> Self {
        Self(Arc::new(Inner {
            audit: parts.audit,
            approvals: parts.approvals,
            sessions: parts.sessions,
            rules: parts.rules,
            rules_fault: parts.rules_fault,
            operators: parts.operators,
            logins: Logins::default(),
            cookies: parts.cookies,
            stopping: parts.stopping,
        }))
    }

    fn router(self) -> Router {
        Router::new()
            .route("/api/login", post(login::log_in))
            .route("/api/logout", post(login::log_out))
            .route("/api/me", get(api::me))
            .route("/api/events", get(live::events))
            .route("/api/execs", get(api::execs))
            .route("/api/sessions", get(api::sessions))
            .route("/api/sessions/{id}", get(api::session))
            .route("/api/sessions/{id}/terminate", post(api::terminate))
            .route("/api/approvals/{id}", post(api::resolve))
            .route("/api/rules", get(api::rules))
            .fallback(assets::asset)
            .layer(middleware::from_fn(login::same_origin))
            .layer(middleware::from_fn(in_time))
            .layer(middleware::map_response(with_headers))
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .with_state(self)
    }

    /// Serves connections until it is stopped.
    pub(super) async fn serve(self, mut connections: mpsc::Receiver<std::io::Result<Connection>>) {
        let stopping = self.0.stopping.clone();
        let router = self.router();
        loop {
            let connection = tokio::select! {
                connection = connections.recv() => connection,
                () = stopping.cancelled() => return,
            };
            let Some(Ok(connection)) = connection else {
                return;
            };
            tokio::spawn(serve_one(connection, router.clone(), stopping.clone()));
        }
    }
}

async fn serve_one(connection: Connection, router: Router, stopping: CancellationToken) {
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE)
        .serve_connection(TokioIo::new(connection), TowerToHyperService::new(router));
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stopping.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection of the console: {error}");
    }
}

/// Whoever sends half of a request, and no more, doesn't keep a connection by that.
async fn in_time(request: Request<Body>, next: Next) -> Response {
    let answer = tokio::time::timeout(ANSWER_PATIENCE, next.run(request)).await;
    answer.unwrap_or_else(|_| {
        let reason = "The request, or what it asks for, takes too long.";
        Problem::new(StatusCode::REQUEST_TIMEOUT, reason).into_response()
    })
}

async fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(value);
    }
    response
}

/// A header's text, where there is one and it is text.
fn header<'r, B>(request: &'r Request<B>, name: &str) -> Option<&'r str> {
    request.headers().get(name)?.to_str().ok()
}
