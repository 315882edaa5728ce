//! Answers requests of the audit protocol from the store, wherever they come from.

use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prost::Message;
use rusqlite::Connection;
use sha2::{Digest, Sha256};

use crate::pb::audit::v1::{
    ChainLink, ExecFilter, ExecView, GetHeadResponse, GetSessionRequest, GetSessionResponse,
    ListRequest, ListResponse, Outcome,
};
use crate::policyd::identity::GateIdentity;
use crate::policyd::store::{self, Arguments, Filter, Link, Want};

/// Execs of a page, where it isn't said, and at most.
const PAGE: u32 = 100;
const MOST_PAGE: u32 = 1_000;
/// Most labels of a filter, and most bytes of any text in it.
const MOST_LABELS: usize = 16;
const MOST_TEXT: usize = 4_096;
/// Longest page token.
const MOST_TOKEN: usize = 128;

/// Why a request isn't answered.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// There is no such session.
    #[error("there is no session {0} on record")]
    NoSession(String),
    /// The store can't be read.
    #[error("reading the event store: {0}")]
    Read(#[from] rusqlite::Error),
}

fn invalid<T>(what: impl Into<String>) -> Result<T, RequestError> {
    Err(RequestError::Invalid(what.into()))
}

/// Reads a filter; what isn't set isn't asked for.
pub(super) fn filter(asked: Option<&ExecFilter>) -> Result<Filter, RequestError> {
    let Some(asked) = asked else {
        return Ok(Filter::default());
    };
    for (name, text) in [
        ("gate", &asked.gate),
        ("program", &asked.program),
        ("code", &asked.code),
    ] {
        if text.len() > MOST_TEXT || text.contains('\0') {
            return invalid(format!(
                "filter.{name} is longer than {MOST_TEXT} bytes, or holds a NUL"
            ));
        }
    }
    if asked.labels.len() > MOST_LABELS {
        return invalid(format!("filter.labels has more than {MOST_LABELS} labels"));
    }
    let is_long = |text: &String| text.len() > MOST_TEXT;
    if asked
        .labels
        .iter()
        .any(|(key, value)| is_long(key) || is_long(value))
    {
        return invalid(format!(
            "filter.labels holds more than {MOST_TEXT} bytes in one text"
        ));
    }
    let set = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let session = match set(&asked.session_id_prefix) {
        None => None,
        Some(prefix) => Some(session_id(&prefix, "filter.session_id_prefix", 1)?),
    };
    if let Some(gate) = set(&asked.gate)
        && let Err(error) = GateIdentity::parse(&gate)
    {
        return invalid(format!("filter.gate: {error}"));
    }
    let outcome = match Outcome::try_from(asked.outcome) {
        Ok(Outcome::Unspecified) => None,
        Ok(outcome) => Some(outcome),
        // Rather than everything, which wasn't asked for.
        Err(_) => {
            return invalid(format!(
                "filter.outcome {} isn't one that this service knows",
                asked.outcome
            ));
        }
    };
    let since = match &asked.since_time {
        None => None,
        Some(time) => {
            let nanoseconds = time
                .seconds
                .checked_mul(1_000_000_000)
                .and_then(|seconds| seconds.checked_add(time.nanos.into()));
            if nanoseconds.is_none() {
                return invalid("filter.since_time is outside of the years 1678 to 2262");
            }
            nanoseconds
        }
    };
    Ok(Filter {
        session,
        labels: asked.labels.clone().into_iter().collect(),
        gate: set(&asked.gate),
        program: set(&asked.program),
        outcome,
        code: set(&asked.code),
        since,
    })
}

fn session_id(text: &str, field: &str, least: usize) -> Result<String, RequestError> {
    let is_id =
        (least..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_id {
        Ok(text.to_ascii_lowercase())
    } else {
        invalid(format!(
            "{field} isn't {} hexadecimal digits",
            if least == 32 { "32" } else { "1 to 32" }
        ))
    }
}

pub(super) fn arguments(view: i32) -> Result<Arguments, RequestError> {
    match ExecView::try_from(view) {
        Ok(ExecView::Unspecified | ExecView::Basic) => Ok(Arguments::Left),
        Ok(ExecView::Full) => Ok(Arguments::Read),
        Err(_) => invalid(format!("view {view} isn't one that this service knows")),
    }
}

fn page_size(asked: u32) -> Result<usize, RequestError> {
    match asked {
        0 => Ok(PAGE as usize),
        1..=MOST_PAGE => Ok(asked as usize),
        _ => invalid(format!("page_size is {asked}, and {MOST_PAGE} at most")),
    }
}

/// What a page token is good for: the very request that it came from.
fn subject(kind: &str, asked: &impl Message) -> [u8; 8] {
    let digest = Sha256::new()
        .chain_update(kind)
        .chain_update(asked.encode_to_vec())
        .finalize();
    let mut subject = [0; 8];
    subject.copy_from_slice(&digest[..8]);
    subject
}

fn token(subject: [u8; 8], position: i64) -> String {
    URL_SAFE_NO_PAD.encode([subject, position.to_be_bytes()].concat())
}

fn read_token(text: &str, subject: [u8; 8]) -> Result<Option<i64>, RequestError> {
    if text.is_empty() {
        return Ok(None);
    }
    let decoded = (text.len() <= MOST_TOKEN)
        .then(|| URL_SAFE_NO_PAD.decode(text).ok())
        .flatten();
    let position = decoded
        .as_deref()
        .and_then(|bytes| bytes.strip_prefix(&subject))
        .and_then(|bytes| bytes.try_into().ok())
        .map(i64::from_be_bytes);
    match position {
        Some(position) => Ok(Some(position)),
        None => invalid(
            "page_token isn't one of this request: pass on what the response before had, and change nothing else",
        ),
    }
}

/// Labels have no order of their own, and a token's subject needs one.
fn ordered(filter: &Filter) -> ExecFilter {
    let labels: Vec<_> = filter
        .labels
        .iter()
        .map(|(key, value)| format!("{}:{key}{}:{value}", key.len(), value.len()))
        .collect();
    let labels = labels.concat();
    ExecFilter {
        session_id_prefix: filter.session.clone().unwrap_or_default(),
        labels: std::iter::once((labels, String::new())).collect(),
        gate: filter.gate.clone().unwrap_or_default(),
        program: filter.program.clone().unwrap_or_default(),
        outcome: filter.outcome.map_or(0, i32::from),
        code: filter.code.clone().unwrap_or_default(),
        since_time: filter.since.map(|since| prost_types::Timestamp {
            seconds: since,
            nanos: 0,
        }),
    }
}

/// Answers `List`, `within` about so long.
///
/// # Errors
/// When the request makes no sense, or the store can't be read.
pub(super) fn list(
    connection: &Connection,
    request: &ListRequest,
    within: Duration,
) -> Result<ListResponse, RequestError> {
    let filter = filter(request.filter.as_ref())?;
    let subject = subject("list", &ordered(&filter));
    let below = read_token(&request.page_token, subject)?;
    let want = Want {
        execs: page_size(request.page_size)?,
        arguments: arguments(request.view)?,
        within,
    };
    let page = store::page(connection, &filter, below, want)?;
    Ok(ListResponse {
        execs: page.execs,
        next_page_token: page
            .next
            .map(|next| token(subject, next))
            .unwrap_or_default(),
    })
}

/// Answers `GetSession`.
///
/// # Errors
/// When the request makes no sense, there is no such session, or the store can't be read.
pub(super) fn get_session(
    connection: &Connection,
    request: &GetSessionRequest,
) -> Result<GetSessionResponse, RequestError> {
    let id = session_id(&request.session_id, "session_id", 32)?;
    let subject = subject(&format!("session {id}"), &());
    let after = read_token(&request.page_token, subject)?.unwrap_or(0);
    let want = Want {
        execs: page_size(request.page_size)?,
        arguments: arguments(request.view)?,
        within: Duration::MAX,
    };
    let found = store::session(connection, &id, after, want)?;
    let (session, page) = found.ok_or(RequestError::NoSession(id))?;
    Ok(GetSessionResponse {
        session: Some(session),
        execs: page.execs,
        next_page_token: page
            .next
            .map(|next| token(subject, next))
            .unwrap_or_default(),
    })
}

/// Answers `GetHead`.
///
/// # Errors
/// When the store can't be read.
pub(super) fn get_head(connection: &Connection) -> Result<GetHeadResponse, RequestError> {
    let (start, head) = store::ends(connection)?;
    let link = |link: Link| ChainLink {
        position: link.position.cast_unsigned(),
        hash: link.hash.to_vec().into(),
    };
    Ok(GetHeadResponse {
        head: Some(link(head)),
        start: Some(link(start)),
    })
}

/// Opens the store in a directory.
pub(super) fn open(directory: &Path) -> Result<Connection, store::StoreError> {
    store::open_for_reading(directory)
}
