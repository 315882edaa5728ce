//! The gRPC service for auditors.
//!
//! ```text
//! store's writer --position--> watcher's task --blocking read--> store
//!                                    |
//!                                    +--bounded channel--> auditor
//! ```
//!
//! Invariants: nothing here is waited for by the writer, or by a session's call; a watcher holds a position, one
//! connection to the store, which is idle between reads, and a bounded number of changes; who isn't an auditor gets
//! nothing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::request::{self, RequestError};
use crate::pb::audit::v1::audit_service_server::AuditService;
use crate::pb::audit::v1::{
    EventsRemoved, ExecChanged, GetHeadRequest, GetHeadResponse, GetSessionRequest,
    GetSessionResponse, ListRequest, ListResponse, WatchRequest, WatchResponse, watch_request,
    watch_response,
};
use crate::policyd::admission::{Admission, Admitted, Bounds};
use crate::policyd::authenticate::{Reader, reader, revoked};
use crate::policyd::numbers::{Counted, ServiceNumbers};
use crate::policyd::operators::Operator;
use crate::policyd::store::{self, Filter, Link, Store, Want};
use crate::policyd::throttle::Throttle;
use crate::policyd::tokens::{Credential, Tokens};
use crate::sys::priority;

/// Watchers at once.
const MOST_WATCHERS: Bounds = Bounds {
    in_all: 64,
    of_one_peer: 16,
};
/// Other questions that are being answered at once; the next waits.
const MOST_READERS: usize = 4;
/// How long one page may be looked for.
const PAGE_TIME: Duration = Duration::from_millis(250);
/// How long a question may wait for its turn.
const TURN: Duration = Duration::from_secs(10);
/// Changes that may wait for a watcher that doesn't read them, each with what may be 64 KiB of every text of an exec; and
/// of one read, which has a bound in bytes besides.
const QUEUED_CHANGES: usize = 16;
const CHANGES: usize = 256;
/// How long a watcher hears nothing at most.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Pause between reads while there is always more: what comes meanwhile is read at once.
const BREATH: Duration = Duration::from_millis(20);
/// Most of the latest events that a watcher may begin with.
const MOST_LATEST: u64 = 100_000;

static FAILED: Throttle = Throttle::new(Duration::from_secs(1));

/// The audit service.
#[derive(Debug)]
pub(crate) struct StoreAudit {
    store: Option<Store>,
    tokens: Option<watch::Receiver<Arc<Tokens<Operator>>>>,
    watchers: Admission<String>,
    readers: Arc<Semaphore>,
    numbers: Arc<ServiceNumbers>,
    stopping: CancellationToken,
}

impl StoreAudit {
    pub(crate) fn new(
        store: Option<Store>,
        tokens: Option<watch::Receiver<Arc<Tokens<Operator>>>>,
        numbers: Arc<ServiceNumbers>,
        stopping: CancellationToken,
    ) -> Self {
        Self {
            store,
            tokens,
            watchers: Admission::new(MOST_WATCHERS),
            readers: Arc::new(Semaphore::new(MOST_READERS)),
            numbers,
            stopping,
        }
    }

    /// Who calls, if an auditor; and the store, if there is one.
    fn admit<T>(&self, request: &Request<T>) -> Result<(Reader, &Store), Status> {
        let caller = reader(request)?;
        let store = self.store.as_ref().ok_or_else(|| {
            Status::failed_precondition("nothing is stored: execgate-policyd runs without --data")
        })?;
        Ok((caller, store))
    }

    /// Answers a question from the store, on a thread that may block.
    async fn ask<T: Send + 'static>(
        &self,
        store: &Store,
        answer: impl FnOnce(&Connection) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let turn = tokio::time::timeout(TURN, Arc::clone(&self.readers).acquire_owned()).await;
        let turn = turn
            .ok()
            .and_then(Result::ok)
            .ok_or_else(|| Status::resource_exhausted("too many questions at once; try again"))?;
        let directory = store.directory().to_owned();
        let answered = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            step_back();
            answer(&open(&directory)?).map_err(status)
        });
        let answered = answered
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        answered.map(Response::new)
    }
}

/// Reads of the record let verdicts go first. What else these threads do has time as well.
fn step_back() {
    if let Err(error) = priority::give_way() {
        tracing::debug!("a thread that reads the record goes first as others do: {error}");
    }
}

fn open(directory: &std::path::Path) -> Result<Connection, Status> {
    request::open(directory).map_err(|error| {
        if let Some(held_back) = FAILED.admit() {
            tracing::error!(held_back, "a question of an auditor: {error}");
        }
        Status::internal("the event store can't be read; the service's log says why")
    })
}

fn status(error: RequestError) -> Status {
    match error {
        RequestError::Invalid(what) => Status::invalid_argument(what),
        RequestError::NoSession(_) => Status::not_found(error.to_string()),
        RequestError::Read(source) => {
            if let Some(held_back) = FAILED.admit() {
                tracing::error!(held_back, "a question of an auditor: {source}");
            }
            Status::internal("the event store can't be read; the service's log says why")
        }
    }
}

#[tonic::async_trait]
impl AuditService for StoreAudit {
    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (caller, store) = self.admit(&request)?;
        let asked = request.into_inner();
        let filter = request::filter(asked.filter.as_ref()).map_err(status)?;
        let arguments = request::arguments(asked.view).map_err(status)?;
        let mut head = store.head();
        let newest = head.borrow_and_update().position;
        let position = match asked.start {
            None => newest,
            Some(watch_request::Start::LatestEvents(latest)) if latest > MOST_LATEST => {
                return Err(Status::invalid_argument(format!(
                    "latest_events is {latest}, and {MOST_LATEST} at most"
                )));
            }
            Some(watch_request::Start::LatestEvents(latest)) => {
                newest.saturating_sub(i64::try_from(latest).unwrap_or(i64::MAX)).max(0)
            }
            Some(watch_request::Start::AfterPosition(position)) => i64::try_from(position)
                .ok()
                .filter(|position| *position <= newest)
                .ok_or_else(|| {
                    Status::out_of_range(format!(
                        "after_position is {position}, and the last event is {newest}: this isn't the store that \
                         the position is of"
                    ))
                })?,
        };
        let admitted = self.watchers.admit(caller.name.to_string()).map_err(|_| {
            Status::resource_exhausted("too many watch already; end one, or try again later")
        })?;
        tracing::info!(auditor = %caller.name, position, "watching begins");
        let (changes, stream) = mpsc::channel(QUEUED_CHANGES);
        let watcher = Watcher {
            directory: store.directory().to_owned(),
            filter: Arc::new(filter),
            want: Want {
                execs: CHANGES,
                arguments,
                within: Duration::MAX,
            },
            position,
            head,
            changes,
            credential: caller.credential,
            tokens: self.tokens.clone(),
            _counted: Counted::in_gauge(&self.numbers.watchers),
            _admitted: admitted,
        };
        tokio::spawn(watcher.run(self.stopping.clone()));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let (_, store) = self.admit(&request)?;
        let asked = request.into_inner();
        self.ask(store, move |connection| {
            request::list(connection, &asked, PAGE_TIME)
        })
        .await
    }

    async fn get_session(
        &self,
        request: Request<GetSessionRequest>,
    ) -> Result<Response<GetSessionResponse>, Status> {
        let (_, store) = self.admit(&request)?;
        let asked = request.into_inner();
        self.ask(store, move |connection| {
            request::get_session(connection, &asked)
        })
        .await
    }

    async fn get_head(
        &self,
        request: Request<GetHeadRequest>,
    ) -> Result<Response<GetHeadResponse>, Status> {
        let (_, store) = self.admit(&request)?;
        self.ask(store, request::get_head).await
    }
}

/// One that watches.
struct Watcher {
    directory: PathBuf,
    filter: Arc<Filter>,
    want: Want,
    position: i64,
    head: watch::Receiver<Link>,
    changes: mpsc::Sender<Result<WatchResponse, Status>>,
    credential: Option<Credential>,
    tokens: Option<watch::Receiver<Arc<Tokens<Operator>>>>,
    _counted: Counted,
    _admitted: Admitted<String>,
}

/// Nobody listens any more.
struct Gone;

impl Watcher {
    async fn run(mut self, stopping: CancellationToken) {
        let (credential, mut tokens) = (self.credential.clone(), self.tokens.clone());
        let changes = self.changes.clone();
        let end = tokio::select! {
            end = self.tell() => end,
            () = stopping.cancelled() => Err(Status::unavailable("the policy service is stopping")),
            () = revoked(credential.as_ref(), &mut tokens) => {
                Err(Status::unauthenticated("the credential of this call isn't valid any more"))
            }
            // Where nothing is told nobody would see it otherwise.
            () = changes.closed() => Ok(Gone),
        };
        if let Err(status) = end {
            // One that doesn't read is told nothing.
            let _ = changes.try_send(Err(status));
        }
    }

    async fn tell(&mut self) -> Result<Gone, Status> {
        let mut connection = None;
        // Where it begins may be nothing but now, and is where to go on after a call that broke before anything came.
        if self.send(self.position, None).await.is_err() {
            return Ok(Gone);
        }
        loop {
            let head = self.head.borrow_and_update().position;
            if head <= self.position {
                let moved = tokio::time::timeout(HEARTBEAT, self.head.changed()).await;
                match moved {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => {
                        return Err(Status::unavailable("the policy service is stopping"));
                    }
                    Err(_) => {
                        if self.send(self.position, None).await.is_err() {
                            return Ok(Gone);
                        }
                    }
                }
                continue;
            }
            let (directory, filter) = (self.directory.clone(), Arc::clone(&self.filter));
            let (after, want) = (self.position, self.want);
            let read = tokio::task::spawn_blocking(move || {
                step_back();
                let connection = match connection.take() {
                    Some(connection) => connection,
                    None => open(&directory)?,
                };
                let found = store::changes(&connection, &filter, after, want)
                    .map_err(|error| status(error.into()))?;
                Ok::<_, Status>((connection, found))
            });
            let (open, found) = read
                .await
                .map_err(|error| Status::internal(error.to_string()))??;
            connection = Some(open);
            if let Some(through) = found.removed {
                let update = watch_response::Update::EventsRemoved(EventsRemoved {
                    through_position: through.cast_unsigned(),
                });
                if self.send(through, Some(update)).await.is_err() {
                    return Ok(Gone);
                }
            }
            let mut told = found.removed.unwrap_or(after);
            for change in found.found {
                told = change.position;
                let update = watch_response::Update::ExecChanged(ExecChanged {
                    change: change.kind.into(),
                    exec: Some(change.exec),
                });
                if self.send(change.position, Some(update)).await.is_err() {
                    return Ok(Gone);
                }
            }
            self.position = found.through;
            // What the last events were may be nothing to tell. Whoever reads up to the store's head is to know that
            // it has all, and whoever calls again need not have what didn't fit be looked at again.
            if told < self.position && self.send(self.position, None).await.is_err() {
                return Ok(Gone);
            }
            tokio::time::sleep(BREATH).await;
        }
    }

    async fn send(
        &self,
        position: i64,
        update: Option<watch_response::Update>,
    ) -> Result<(), Gone> {
        let response = response(position, update);
        self.changes.send(Ok(response)).await.map_err(|_| Gone)
    }
}

fn response(position: i64, update: Option<watch_response::Update>) -> WatchResponse {
    WatchResponse {
        position: position.cast_unsigned(),
        update,
    }
}
