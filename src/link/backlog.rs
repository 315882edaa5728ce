use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use prost::Message;
use prost::bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};

use super::backoff::{Awaited, Backoff};
use super::codec::{EncodedEvent, LinkCodec, MESSAGE_LIMIT};
use super::dialer::Dialer;
use super::driver::{PATH, concerns_all, describe};
use super::route::{Others, Round, Route};
use crate::journal::{Journal, JournalError, KeptEvent, Left, LeftLoad, LeftSession};
use crate::model::{SessionEndReason, SessionEvent, SessionId};
use crate::pb::v1::session_request::Event;
use crate::pb::v1::{Resumption, ResumptionReason, SessionRequest};
use crate::pb::{self, Acknowledgement, Answer, Reconnect};

/// Between looks for sessions that were left.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// How long a service may take to say how far it has stored a session; one that doesn't say is sent all.
/// Longer than pings take to find that it hangs.
const ACCEPT_PATIENCE: Duration = Duration::from_secs(10);
/// How long a service may take from one answer to the next.
const PATIENCE: Duration = Duration::from_secs(30);
/// Events between the journal and the transport.
const AHEAD: usize = 16;
/// What is said of a session whose gate was killed.
const KILLED: &str =
    "the gate ended without telling the session's end; another one found its journal";

/// Whether there is something left to deliver that may get through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// It is being delivered, or looked for.
    Going,
    /// There was none, or the service doesn't take it.
    Resting,
}

/// Delivers, again and again, what is left in the journal.
pub(super) async fn deliver_what_is_left(
    journal: Arc<Journal>,
    route: Arc<Route>,
    work: watch::Sender<Work>,
) {
    let mut backoff = Backoff::new();
    let mut refused = HashSet::new();
    loop {
        let next = deliver_once(&journal, &route, &mut refused).await;
        work.send_replace(Work::Resting);
        match next {
            None => {
                backoff.reset();
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            Some(next) => tokio::time::sleep(backoff.next(next, Awaited::No)).await,
        }
        work.send_replace(Work::Going);
    }
}

/// Goes through what is left once. `None`: it has been delivered, as far as the service takes it; else
/// when to try again.
async fn deliver_once(
    journal: &Arc<Journal>,
    route: &Route,
    refused: &mut HashSet<SessionId>,
) -> Option<Reconnect> {
    let here = Arc::clone(journal);
    let look = move || {
        let left = here.left()?;
        here.note_left(load(&left)?);
        Ok(left)
    };
    let left = match blocking(look).await {
        Ok(left) => left,
        Err(error) => {
            tracing::warn!("looking for events of gates that are no more: {error}");
            return None;
        }
    };
    let mut noted = journal.load().left;
    for session in left {
        let id = session.id();
        let whose = session.whose();
        match deliver_somewhere(route, session).await {
            Ok(events) => {
                noted.sessions = noted.sessions.saturating_sub(1);
                noted.events = noted.events.saturating_sub(events);
                journal.note_left(noted);
                refused.remove(&id);
                if whose == Left::ByAnotherGate {
                    tracing::info!(session = %id, events, "delivered what a gate that is no more had left");
                }
            }
            Err(status) if concerns_all(&status) => {
                tracing::debug!(session = %id, "delivering what was left: {}", describe(&status));
                return Some(pb::after_status(status.code()));
            }
            // This session alone is refused: another gate's, for one, that has shown other credentials.
            Err(status) => {
                if refused.insert(id) {
                    tracing::error!(
                        session = %id,
                        "the policy service doesn't take the events that are left of a session; they stay in \
                         the journal: {}", describe(&status)
                    );
                }
            }
        }
    }
    None
}

/// How much that is.
fn load(left: &[LeftSession]) -> Result<LeftLoad, JournalError> {
    let mut load = LeftLoad::default();
    for session in left {
        load.sessions += 1;
        load.events += session.count()?;
        let told = session
            .first()?
            .and_then(|body| SessionRequest::decode(body).ok()?.event_time)
            .and_then(|time| SystemTime::try_from(time).ok());
        load.oldest = match (load.oldest, told) {
            (Some(oldest), Some(told)) => Some(oldest.min(told)),
            (oldest, told) => oldest.or(told),
        };
    }
    Ok(load)
}

/// Delivers a session at the first endpoint that takes it; tells how many events that were.
async fn deliver_somewhere(route: &Route, session: LeftSession) -> Result<u64, Status> {
    let mut round = Round::new();
    loop {
        let Some((place, dialer)) = route.next(&round, Instant::now()) else {
            return Err(Status::unavailable("there is no endpoint"));
        };
        let status = match deliver(dialer, session.clone()).await {
            Ok(events) => return Ok(events),
            Err(status) => dialer.explain(status),
        };
        let others = route.tried(&mut round, place, pb::after_status(status.code()));
        if others == Others::AllTried {
            return Err(status);
        }
    }
}

/// Delivers a session in one call.
async fn deliver(dialer: &Dialer, session: LeftSession) -> Result<u64, Status> {
    let (events, stream) = mpsc::channel(AHEAD);
    let (accepted, acceptance) = oneshot::channel();
    let sent = AtomicU64::new(0);
    let feed = feed(session.clone(), acceptance, events, &sent);
    let receive = receive(dialer, session.clone(), stream, accepted, &sent);
    let (fed, received) = tokio::join!(feed, receive);
    let acknowledged = received?;
    let fed = fed?;
    match fed.acknowledgement {
        Acknowledgement::Stored if acknowledged < fed.last => {
            return Err(Status::unavailable(
                "the service ended the call before it had acknowledged all",
            ));
        }
        Acknowledgement::Stored | Acknowledgement::None => {}
    }
    let events = fed.events;
    blocking(move || session.delivered())
        .await
        .map_err(|error| unread(&error))?;
    Ok(events)
}

/// What was sent of a session.
struct Fed {
    acknowledgement: Acknowledgement,
    last: u64,
    events: u64,
}

/// What a service has accepted.
struct Acceptance {
    acknowledgement: Acknowledgement,
    stored: u64,
}

/// Sends what the journal has of a session, and its end where that is missing.
async fn feed(
    mut session: LeftSession,
    acceptance: oneshot::Receiver<Acceptance>,
    stream: mpsc::Sender<EncodedEvent>,
    sent: &AtomicU64,
) -> Result<Fed, Status> {
    let send = async |event: EncodedEvent| {
        let sequence = event.sequence;
        let gone = stream.send(event).await.is_err();
        sent.fetch_max(sequence, Ordering::AcqRel);
        if gone {
            return Err(Status::unavailable("the call ended"));
        }
        Ok(())
    };
    send(EncodedEvent {
        sequence: 0,
        body: opening(&session)?,
    })
    .await?;
    let acceptance = match timeout(ACCEPT_PATIENCE, acceptance).await {
        Ok(Ok(acceptance)) => acceptance,
        // It has chosen nothing.
        Err(_) => Acceptance {
            acknowledgement: Acknowledgement::None,
            stored: 0,
        },
        Ok(Err(_)) => return Err(Status::unavailable("the call ended")),
    };
    let stored = acceptance.stored;
    sent.fetch_max(stored, Ordering::AcqRel);
    if !session.has_ended() && !ends(&session)? {
        let sequence = session.told().max(stored).saturating_add(1);
        let body = killed();
        session = blocking(move || session.end(sequence, body).map(|()| session))
            .await
            .map_err(|error| unread(&error))?;
    }
    let mut fed = Fed {
        acknowledgement: acceptance.acknowledgement,
        last: session.settled().max(stored),
        events: 0,
    };
    loop {
        let (page, after) = (session.clone(), fed.last);
        let page = blocking(move || page.events(after))
            .await
            .map_err(|error| unread(&error))?;
        if page.is_empty() {
            return Ok(fed);
        }
        for event in page {
            fed.last = event.sequence;
            fed.events += 1;
            send(encoded(event)).await?;
        }
    }
}

/// Makes the call and takes its answers, to its end; tells up to where events were acknowledged.
async fn receive(
    dialer: &Dialer,
    mut session: LeftSession,
    stream: mpsc::Receiver<EncodedEvent>,
    accepted: oneshot::Sender<Acceptance>,
    sent: &AtomicU64,
) -> Result<u64, Status> {
    let mut client = Grpc::new(dialer.channel())
        .max_decoding_message_size(MESSAGE_LIMIT)
        .max_encoding_message_size(MESSAGE_LIMIT);
    client
        .ready()
        .await
        .map_err(|error| Status::from_error(error.into()))?;
    let mut request = Request::new(ReceiverStream::new(stream));
    dialer.authorize(request.metadata_mut()).await?;
    let path = PathAndQuery::from_static(PATH);
    let silent = |_| Status::deadline_exceeded("the service says nothing");
    let response = client.streaming(request, path, LinkCodec);
    let mut answers = timeout(PATIENCE, response)
        .await
        .map_err(silent)??
        .into_inner();
    let mut accepted = Some(accepted);
    let mut acknowledged = 0;
    while let Some(answer) = timeout(PATIENCE, answers.message())
        .await
        .map_err(silent)??
    {
        match answer {
            Ok(Answer::Accepted {
                acknowledgement,
                stored,
                ..
            }) => {
                acknowledged = acknowledged.max(stored);
                if let Some(accepted) = accepted.take() {
                    let _ = accepted.send(Acceptance {
                        acknowledgement,
                        stored,
                    });
                }
            }
            Ok(Answer::Acknowledged(through)) => {
                let through = through.min(sent.load(Ordering::Acquire));
                if through > acknowledged {
                    acknowledged = through;
                    session = blocking(move || session.settle(through).map(|()| session))
                        .await
                        .map_err(|error| unread(&error))?;
                }
            }
            // Nobody waits for a verdict any more, and there is nothing that could be ended.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(acknowledged)
}

/// The first message of the call.
fn opening(session: &LeftSession) -> Result<Bytes, Status> {
    let first = SessionRequest::decode(session.opening().clone())
        .map_err(|error| Status::data_loss(format!("the journal has no session: {error}")))?;
    let resumption = Resumption {
        attempt: 0,
        next_sequence: session.settled().max(1).saturating_add(1),
        reason: ResumptionReason::Delivery.into(),
    };
    let first = pb::resumed(&first, resumption, SystemTime::now());
    Ok(first.encode_to_vec().into())
}

/// Whether the session's end is the last that its gate told: it may have been killed right then.
fn ends(session: &LeftSession) -> Result<bool, Status> {
    let last = session.last().map_err(|error| unread(&error))?;
    let last = last.and_then(|body| SessionRequest::decode(body).ok()?.event);
    Ok(matches!(last, Some(Event::SessionEnded(_))))
}

fn killed() -> Bytes {
    let event = SessionEvent::SessionEnded {
        reason: SessionEndReason::GateFailed,
        detail: KILLED.to_owned(),
        shell: None,
        at: SystemTime::now(),
    };
    pb::session_event(event).encode_to_vec().into()
}

fn encoded(event: KeptEvent) -> EncodedEvent {
    EncodedEvent {
        sequence: event.sequence,
        body: event.body.unwrap_or_else(|| {
            pb::events_lost(event.first, event.sequence, SystemTime::now())
                .encode_to_vec()
                .into()
        }),
    }
}

fn unread(error: &JournalError) -> Status {
    Status::data_loss(error.to_string())
}

/// Does what waits for the disk where nothing else waits for it.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, JournalError> + Send + 'static,
) -> Result<T, JournalError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(JournalError::Thread(std::io::Error::other(error))),
    }
}
