//! The sessions whose gates are connected, and those that operators have ended.
//!
//! A session that was ended stays so: its gate is told again whenever it connects, and what it still asks
//! is denied.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use super::approvals::{Control, Desk, Ledger, Termination};
use super::authenticate::{operator, reader};
use super::operators::Operator;
use super::owners::Owners;
use super::rules::SessionFacts;
use super::store::Store;
use crate::pb::session::v1 as pb;
use crate::pb::session::v1::session_service_server::SessionService;
use crate::pb::v1;

/// Reason code of what is denied because an operator has ended the session.
pub(super) const CODE_TERMINATED: &str = "session.terminated";
/// Most ended sessions that are remembered in memory.
pub(super) const MOST_ENDED: usize = 4_096;
/// Most bytes of a reason.
const LONGEST_REASON: usize = 1_024;
/// Sessions of one answer, where nothing is said, and at most; and about how many bytes of them.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1_000;
const PAGE_BYTES: usize = 8 << 20;

/// Which sessions there are. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Sessions(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Each with its calls, the earliest first: a session may have called again before its last call has ended.
    connected: BTreeMap<String, Vec<Connected>>,
    ended: HashMap<String, Termination>,
    /// The earliest first.
    order: VecDeque<String>,
}

#[derive(Debug, Clone)]
struct Connected {
    facts: Arc<SessionFacts>,
    since: SystemTime,
    call: mpsc::Sender<Control>,
}

/// A session that is connected, until this is dropped.
#[derive(Debug)]
pub(super) struct Present {
    sessions: Sessions,
    session: String,
    call: mpsc::Sender<Control>,
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut known = self.sessions.lock();
        if let Some(calls) = known.connected.get_mut(&self.session) {
            calls.retain(|connected| !connected.call.same_channel(&self.call));
            if calls.is_empty() {
                known.connected.remove(&self.session);
            }
        }
    }
}

impl Sessions {
    /// With sessions that were ended earlier, the latest first.
    pub(super) fn new(terminations: Vec<Termination>) -> Self {
        let sessions = Self::default();
        for termination in terminations.into_iter().rev() {
            sessions.lock().end(termination);
        }
        sessions
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session's call has begun; what it is to be told is sent to `call`. Tells why the session is to end,
    /// if it is.
    pub(super) fn connect(
        &self,
        facts: &SessionFacts,
        call: &mpsc::Sender<Control>,
    ) -> (Present, Option<Termination>) {
        let mut known = self.lock();
        let connected = Connected {
            facts: Arc::new(facts.clone()),
            since: SystemTime::now(),
            call: call.clone(),
        };
        let calls = known.connected.entry(facts.id.clone()).or_default();
        calls.push(connected);
        let ended = known.ended.get(&facts.id).cloned();
        let present = Present {
            sessions: self.clone(),
            session: facts.id.clone(),
            call: call.clone(),
        };
        (present, ended)
    }

    fn ended(&self, session: &str) -> Option<Termination> {
        self.lock().ended.get(session).cloned()
    }

    /// Remembers that a session is to end, and tells its gate, if that is there.
    fn end(&self, termination: &Termination) -> pb::TerminateOutcome {
        let mut known = self.lock();
        let session = termination.session.clone();
        known.end(termination.clone());
        let calls = known.connected.get(&session).map_or(&[][..], Vec::as_slice);
        let mut outcome = pb::TerminateOutcome::GateAway;
        for connected in calls {
            let control = Control::Terminate(Box::new(termination.clone()));
            // A call that takes it no more is about to end, or doesn't read: its gate is told when it comes again.
            if connected.call.try_send(control).is_ok() {
                outcome = pb::TerminateOutcome::Told;
            }
        }
        outcome
    }
}

impl Known {
    fn end(&mut self, termination: Termination) {
        if self.ended.contains_key(&termination.session) {
            return;
        }
        if self.order.len() >= MOST_ENDED
            && let Some(earliest) = self.order.pop_front()
        {
            self.ended.remove(&earliest);
        }
        self.order.push_back(termination.session.clone());
        self.ended.insert(termination.session.clone(), termination);
    }
}

/// What a gate is told.
pub(super) fn words(termination: &Termination) -> String {
    match termination.reason.as_str() {
        "" => format!("ended by {}", termination.operator),
        reason => format!("ended by {}: {reason}", termination.operator),
    }
}

/// The verdict on what a session asks that an operator has ended, in words that a gate is told.
pub(super) fn denied(exec_id: u64, words: &str) -> v1::Verdict {
    v1::Verdict {
        exec_id,
        decision: Some(v1::verdict::Decision::Deny(v1::Deny {
            reason: format!("the session was {words}"),
        })),
        reason_code: CODE_TERMINATED.to_owned(),
        ..v1::Verdict::default()
    }
}

/// Lists sessions, and ends them.
#[derive(Debug, Clone)]
pub(super) struct SessionsService {
    pub(super) sessions: Sessions,
    pub(super) owners: Owners,
    pub(super) desk: Desk,
    pub(super) ledger: Option<Ledger>,
    pub(super) store: Option<Store>,
}

impl SessionsService {
    /// When a session that isn't connected ended, and why, if that is on record.
    async fn ended_on_record(&self, session: &str) -> Option<(SystemTime, String)> {
        if self.sessions.lock().connected.contains_key(session) {
            return None;
        }
        let (store, id) = (self.store.clone()?, session.to_owned());
        let ended = tokio::task::spawn_blocking(move || store.ended(&id)).await;
        // What can't be told doesn't keep an operator from ending it.
        ended.ok()?.unwrap_or_else(|error| {
            tracing::warn!(session, "looking whether a session has ended: {error}");
            None
        })
    }

    /// It is in force already, whatever the disk does.
    async fn record(&self, termination: &Termination) -> Result<(), Status> {
        let Some(ledger) = &self.ledger else {
            return Ok(());
        };
        let written = ledger.write_termination(termination.clone()).await;
        written.map_err(|error| {
            Status::unavailable(format!(
                "the session is ended, but {error}: where the service is started anew, the session may go on; see to the \
                 disk, and end it once more to have that written"
            ))
        })
    }

    /// Has a session end, and nothing of it wait for a person.
    fn end(&self, termination: &Termination) -> pb::TerminateOutcome {
        let (session, words) = (termination.session.clone(), words(termination));
        // First, so that its calls deny what is decided in between.
        let outcome = self.sessions.end(termination);
        self.desk
            .session_terminated(&session, &words, SystemTime::now());
        outcome
    }

    async fn terminate(
        &self,
        session: String,
        reason: String,
        operator: &Operator,
    ) -> Result<pb::TerminateSessionResponse, Status> {
        let is_known = self.sessions.lock().connected.contains_key(&session)
            || self.owners.knows(&session)
            || self.sessions.ended(&session).is_some();
        if !is_known {
            return Err(Status::not_found("no such session is known"));
        }
        let before = self.sessions.ended(&session);
        let on_record = self.ended_on_record(&session).await;
        let termination = Termination {
            session,
            operator: operator.to_string(),
            reason,
            at: SystemTime::now(),
        };
        if let Some((ended, why)) = on_record {
            if before.is_none() {
                // A gate that goes on with it all the same is told.
                self.end(&termination);
            }
            self.record(before.as_ref().unwrap_or(&termination)).await?;
            // One that ended by itself was ended by nobody, though somebody said afterwards that it must not go on.
            let by_itself = !matches!(why.as_str(), "terminated" | "gate-failed");
            return Ok(pb::TerminateSessionResponse {
                ended_at: Some(ended.into()),
                end_reason: why,
                ..response(
                    pb::TerminateOutcome::EndedBefore,
                    before.filter(|_| !by_itself),
                )
            });
        }
        if let Some(first) = before {
            // Its gate may not have read it, nor the disk have taken it.
            self.end(&first);
            self.record(&first).await?;
            return Ok(response(
                pb::TerminateOutcome::TerminatedBefore,
                Some(first),
            ));
        }
        tracing::warn!(
            session = termination.session,
            by = termination.operator,
            reason = termination.reason,
            "a session is ended by an operator"
        );
        let outcome = self.end(&termination);
        let first = self.sessions.ended(&termination.session);
        let first = first.unwrap_or_else(|| termination.clone());
        self.record(&first).await?;
        Ok(if first == termination {
            response(outcome, Some(termination))
        } else {
            // Two came at once.
            response(pb::TerminateOutcome::TerminatedBefore, Some(first))
        })
    }
}

/// What has come of it, and who ended the session first, if anybody did.
fn response(
    outcome: pb::TerminateOutcome,
    first: Option<Termination>,
) -> pb::TerminateSessionResponse {
    let response = pb::TerminateSessionResponse {
        outcome: outcome.into(),
        ..pb::TerminateSessionResponse::default()
    };
    match first {
        Some(first) => pb::TerminateSessionResponse {
            terminated_by: first.operator,
            terminated_at: Some(first.at.into()),
            reason: first.reason,
            ..response
        },
        None => response,
    }
}

#[tonic::async_trait]
impl SessionService for SessionsService {
    async fn list_sessions(
        &self,
        request: Request<pb::ListSessionsRequest>,
    ) -> Result<Response<pb::ListSessionsResponse>, Status> {
        // Whoever may read what sessions did may see which there are: every operator, and auditors.
        reader(&request)?;
        let request = request.into_inner();
        let most = match usize::try_from(request.page_size) {
            Ok(0) => PAGE,
            Ok(size) => size.min(LARGEST_PAGE),
            Err(_) => LARGEST_PAGE,
        };
        let waiting = self.desk.waiting();
        let mut sessions: Vec<pb::Session> = Vec::new();
        let mut bytes = 0;
        let mut next_page_token = String::new();
        let known = self.sessions.lock();
        let behind = (
            std::ops::Bound::Excluded(request.page_token),
            std::ops::Bound::Unbounded,
        );
        for (id, calls) in known.connected.range::<String, _>(behind) {
            let Some(connected) = calls.last() else {
                continue;
            };
            if sessions.len() == most || bytes > PAGE_BYTES {
                let last = sessions.last().map(|session| session.session_id.clone());
                next_page_token = last.unwrap_or_default();
                break;
            }
            let session = message(connected, waiting.get(id).copied().unwrap_or_default());
            bytes += prost::Message::encoded_len(&session);
            sessions.push(session);
        }
        Ok(Response::new(pb::ListSessionsResponse {
            sessions,
            next_page_token,
        }))
    }

    async fn terminate_session(
        &self,
        request: Request<pb::TerminateSessionRequest>,
    ) -> Result<Response<pb::TerminateSessionResponse>, Status> {
        let caller = operator(&request)?;
        let pb::TerminateSessionRequest { session_id, reason } = request.into_inner();
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if session_id.len() != 32 || !session_id.bytes().all(is_digit) {
            return Err(Status::invalid_argument(
                "session_id: it must be 32 lowercase hexadecimal digits",
            ));
        }
        if reason.len() > LONGEST_REASON {
            return Err(Status::invalid_argument(format!(
                "reason: it has {} bytes, and {LONGEST_REASON} at most",
                reason.len()
            )));
        }
        // What has been begun is done, whether its caller waits for it or not.
        let service = self.clone();
        let terminating = tokio::spawn(async move {
            let operator = &caller.operator;
            service.terminate(session_id, reason, operator).await
        });
        let ended = terminating
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        ended.map(Response::new)
    }
}

fn message(connected: &Connected, pending_approvals: u32) -> pb::Session {
    let facts = &connected.facts;
    pb::Session {
        session_id: facts.id.clone(),
        gate: facts.gate.to_string(),
        hostname: facts.hostname.clone(),
        labels: facts
            .labels
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        user_id: facts.user.uid,
        user_name: facts.user.name.clone(),
        workdir: facts.workdir.clone().into(),
        command: shown(&facts.command),
        sandbox: facts.sandbox.clone(),
        connected_at: Some(connected.since.into()),
        pending_approvals,
        sandbox_info: Some(facts.sandbox_info()),
    }
}

/// The first words of a command: it may be as long as the kernel takes them.
fn shown(command: &[Vec<u8>]) -> Vec<prost::bytes::Bytes> {
    const MOST_WORDS: usize = 64;
    const LONGEST_WORD: usize = 4 << 10;
    let words = command.iter().take(MOST_WORDS);
    words
        .map(|word| word[..word.len().min(LONGEST_WORD)].to_vec().into())
        .collect()
}
