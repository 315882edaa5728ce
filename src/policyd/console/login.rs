//! Who looks at the console. A browser holds a cookie of random bits, and the service which token it stands for.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::header::{CONTENT_TYPE, COOKIE, HOST, ORIGIN, SET_COOKIE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::api::Problem;
use super::{Console, Cookies, header};
use crate::policyd::authenticate::{OperatorCaller, Reader};
use crate::policyd::operators::{Duty, Operator};
use crate::policyd::revision::hexadecimal;
use crate::policyd::throttle::Throttle;
use crate::policyd::tokens::{Credential, TokenDigest};
use crate::sys::random;

/// How long a login holds, whatever is done meanwhile.
const HOLDS: Duration = Duration::from_secs(12 * 3600);
/// Most logins at once; the oldest makes room.
const MOST: usize = 1_024;
/// How long a login that fails takes at least. Tokens have 256 random bits: this is for the log's sake.
const FAILURE_PAUSE: Duration = Duration::from_millis(500);
/// Longest token, in bytes.
const LONGEST_TOKEN: usize = 4_096;

static FAILED: Throttle = Throttle::new(Duration::from_secs(1));

/// Which cookie stands for which token.
#[derive(Debug, Default)]
pub(super) struct Logins(Mutex<HashMap<TokenDigest, Login>>);

#[derive(Debug)]
struct Login {
    token: TokenDigest,
    until: Instant,
}

impl Logins {
    fn lock(&self) -> MutexGuard<'_, HashMap<TokenDigest, Login>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, cookie: TokenDigest, token: TokenDigest, now: Instant) {
        let mut logins = self.lock();
        logins.retain(|_, login| login.until > now);
        if logins.len() >= MOST
            && let Some(oldest) = logins.iter().min_by_key(|(_, login)| login.until)
        {
            let oldest = *oldest.0;
            logins.remove(&oldest);
        }
        logins.insert(
            cookie,
            Login {
                token,
                until: now + HOLDS,
            },
        );
    }

    fn token(&self, cookie: TokenDigest, now: Instant) -> Option<TokenDigest> {
        let logins = self.lock();
        let login = logins.get(&cookie)?;
        (login.until > now).then_some(login.token)
    }
}

impl Cookies {
    /// A name with `__Host-` is one that browsers take by TLS alone, and for this very host.
    fn name(self) -> &'static str {
        match self {
            Self::Secure => "__Host-execgate",
            Self::Loopback => "execgate",
        }
    }

    fn cookie(self, value: &str, age: Duration) -> String {
        let secure = match self {
            Self::Secure => "; Secure",
            Self::Loopback => "",
        };
        let (name, age) = (self.name(), age.as_secs());
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}")
    }

    fn shown(self, headers: &HeaderMap) -> Option<TokenDigest> {
        let mut cookies = headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'));
        cookies.find_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            (name == self.name()).then(|| TokenDigest::of(value.as_bytes()))
        })
    }
}

/// Whoever is logged in, and whose token is still valid.
#[derive(Debug, Clone)]
pub(super) struct LoggedIn {
    pub(super) operator: Operator,
    token: TokenDigest,
}

impl LoggedIn {
    /// A call of this operator's, as if it had come over gRPC with the token.
    pub(super) fn call<M>(&self, message: M) -> tonic::Request<M> {
        let mut request = tonic::Request::new(message);
        request.extensions_mut().insert(Reader {
            name: self.operator.as_str().into(),
            credential: Some(Credential::Token(self.token)),
        });
        if self.operator.duty() == Duty::Operate {
            request.extensions_mut().insert(OperatorCaller {
                operator: self.operator.clone(),
                credential: Credential::Token(self.token),
            });
        }
        request
    }
}

impl FromRequestParts<Console> for LoggedIn {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, console: &Console) -> Result<Self, Problem> {
        let logged_out = || Problem::new(StatusCode::UNAUTHORIZED, "You aren't logged in.");
        let inner = &console.0;
        let cookie = inner.cookies.shown(&parts.headers).ok_or_else(logged_out)?;
        let token = inner.logins.token(cookie, Instant::now());
        let token = token.ok_or_else(logged_out)?;
        let operator = inner.operators.borrow().owner(token).cloned();
        let operator = operator.ok_or_else(logged_out)?;
        Ok(Self { operator, token })
    }
}

/// What a browser sends to log in.
#[derive(Deserialize)]
pub(super) struct Shown {
    token: String,
}

pub(super) async fn log_in(
    State(console): State<Console>,
    Json(shown): Json<Shown>,
) -> Result<Response, Problem> {
    let inner = &console.0;
    let token = TokenDigest::of(shown.token.trim().as_bytes());
    let operator = (shown.token.len() <= LONGEST_TOKEN)
        .then(|| inner.operators.borrow().owner(token).cloned())
        .flatten();
    let Some(operator) = operator else {
        if let Some(held_back) = FAILED.admit() {
            tracing::warn!(held_back, "a login to the console failed");
        }
        tokio::time::sleep(FAILURE_PAUSE).await;
        return Err(Problem::new(
            StatusCode::UNAUTHORIZED,
            "That isn't an operator's or auditor's token that this policy service knows.",
        ));
    };
    let random = || random::sixteen_bytes().map_err(|error| Problem::internal(&error));
    let value = hexadecimal(&[random()?, random()?].concat());
    inner
        .logins
        .add(TokenDigest::of(value.as_bytes()), token, Instant::now());
    tracing::info!(%operator, "logged in to the console");
    let cookie = inner.cookies.cookie(&value, HOLDS);
    Ok(([(SET_COOKIE, cookie)], Json(json!({}))).into_response())
}

pub(super) async fn log_out(
    State(console): State<Console>,
    headers: HeaderMap,
) -> Result<Response, Infallible> {
    let inner = &console.0;
    if let Some(cookie) = inner.cookies.shown(&headers) {
        inner.logins.lock().remove(&cookie);
    }
    let cookie = inner.cookies.cookie("", Duration::ZERO);
    Ok(([(SET_COOKIE, cookie)], Json(json!({}))).into_response())
}

/// Lets nobody's page but this one ask for anything. The cookie's `SameSite` says so to browsers already; this is
/// for those that don't listen.
pub(super) async fn same_origin(request: Request<axum::body::Body>, next: Next) -> Response {
    let is_elsewhere = match header(&request, "sec-fetch-site") {
        Some("same-origin" | "none") | None => false,
        // To open the page by a link is no harm.
        Some(_) => request.method() != Method::GET || request.uri().path().starts_with("/api/"),
    };
    // Whoever doesn't say the one may say the other: `scheme://` and what the request was sent to.
    let is_elsewhere = is_elsewhere
        || header(&request, ORIGIN.as_str()).is_some_and(|origin| {
            let host = header(&request, HOST.as_str());
            origin.split_once("://").map(|(_, authority)| authority) != host
        });
    let is_json = header(&request, CONTENT_TYPE.as_str()).is_some_and(|kind| {
        kind.split(';')
            .next()
            .is_some_and(|kind| kind.trim() == "application/json")
    });
    if is_elsewhere || (request.method() == Method::POST && !is_json) {
        let reason = "This is asked from another page, or not in JSON.";
        return Problem::new(StatusCode::FORBIDDEN, reason).into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(text: &str) -> TokenDigest {
        TokenDigest::of(text.as_bytes())
    }

    #[test]
    fn a_login_ends_in_time_and_the_oldest_makes_room() {
        let logins = Logins::default();
        let now = Instant::now();
        logins.add(digest("first"), digest("t"), now);
        assert_eq!(logins.token(digest("first"), now), Some(digest("t")));
        assert_eq!(logins.token(digest("other"), now), None);
        assert_eq!(logins.token(digest("first"), now + HOLDS), None);
        for number in 0..MOST {
            let later = now + Duration::from_secs(1);
            logins.add(digest(&number.to_string()), digest("t"), later);
        }
        assert_eq!(logins.lock().len(), MOST);
        assert_eq!(logins.token(digest("first"), now), None);
    }

    #[test]
    fn a_cookie_is_found_among_others_by_its_whole_name() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "x-execgate=a; execgate=b".parse().expect("a value"));
        assert_eq!(Cookies::Loopback.shown(&headers), Some(digest("b")));
        assert_eq!(Cookies::Secure.shown(&headers), None);
        assert!(Cookies::Secure.cookie("x", HOLDS).ends_with("; Secure"));
    }
}
