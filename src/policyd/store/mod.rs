//! The record of what happened: one database, written by one thread.
//!
//! ```text
//! session --try--> bounded queue --> writer thread --commit--> disk
//!    ^                                     |
//!    +------------ acknowledgements -------+
//! ```
//!
//! Invariants: recording never waits, so no verdict ever waits for the disk; the writer's thread leaves the
//! processor to others and rests between short steps, for as long as it keeps up; an event is acknowledged
//! after the commit that holds it and never before; a session's record is written by the gate that
//! started it and by no other; per session, acknowledgements name an unbroken
//! history. When the queue is full the event is not taken, and neither is anything after it on that
//! call: the gate still holds them, and sends them again when the call is made again, which
//! the service brings about once there is room.
//!
//! Not here: what is read from the record (`audit`).

mod chain;
mod error;
mod execs;
mod filter;
#[cfg(any(test, feature = "fuzzing"))]
pub(in crate::policyd) mod fuzzing;
mod lock;
mod pace;
mod place;
mod query;
mod reading;
mod recall;
mod retention;
mod schema;
mod upgrade;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant, SystemTime};

use prost::Message as _;
use retention::Pruned;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

pub use chain::Link;
pub(crate) use chain::ends;
pub use error::StoreError;
pub(in crate::policyd) use error::WriteError;
use execs::Execs;
pub(crate) use filter::Filter;
use pace::Pace;
pub(in crate::policyd) use place::Place;
pub(crate) use query::{Arguments, Want, changes, page, session};
pub use reading::open_for_reading;
pub(crate) use recall::complete_wholly;
pub use retention::Retention;
use schema::Written;
pub use verify::{Verification, Verified, verify};

use crate::pb::audit::v1::{AnswerMode, StoredAnswer};
use crate::pb::v1;
use crate::pb::v1::session_request::Event;
use crate::policyd::identity::GateIdentity;
use crate::policyd::throttle::Throttle;
use crate::sys::priority;

/// Most events that wait for the writer.
const QUEUED_EVENTS: usize = 16_384;
/// Most bytes of events that wait for the writer or are being written.
const QUEUED_BYTES: usize = 128 << 20;
/// What an event takes apart from its encoding.
const EVENT_OVERHEAD: usize = 512;
/// Most events, and about the most bytes, of one commit.
const BATCH_EVENTS: usize = 1_024;
const BATCH_BYTES: usize = 8 << 20;
/// How long the first event of a commit waits for others: a commit costs the disk and the processor,
/// which the verdicts' own work needs too, many times what another event in it does. The end of a
/// session waits for none, because its gate waits for the acknowledgement; nor do so many events that
/// they make a commit.
const GATHERING: Duration = Duration::from_millis(200);
/// Between attempts to write what couldn't be written.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How long a store that is closed goes on trying.
const CLOSING_PATIENCE: Duration = Duration::from_secs(3);

static FAILURES: Throttle = Throttle::new(Duration::from_secs(5));
static REFUSALS: Throttle = Throttle::new(Duration::from_secs(5));

/// An open store. Clones are the same store.
#[derive(Debug, Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    queue: mpsc::Sender<Message>,
    room: Arc<Semaphore>,
    state: Arc<WriterState>,
    head: watch::Receiver<Link>,
    /// Of the writer, which gathers until it is woken.
    thread: Thread,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct WriterState {
    is_failing: AtomicBool,
    is_closing: AtomicBool,
    /// Somebody waits for what is queued.
    is_hurried: AtomicBool,
    written: AtomicU64,
}

/// What a store is doing, for metrics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreNumbers {
    /// Events that wait to be written.
    pub(crate) queued: usize,
    /// Events written since the start.
    pub(crate) written: u64,
    /// Whether the latest attempt to write failed.
    pub(crate) is_failing: bool,
}

enum Message {
    Record(Box<Record>),
    /// How far a session is stored, with all that was queued before this.
    Highest(Arc<str>, oneshot::Sender<u64>),
    /// Remove what isn't kept.
    Prune,
    Close,
}

impl Message {
    /// Whether somebody waits for what comes of it.
    fn is_urgent(&self) -> bool {
        match self {
            Self::Record(record) => matches!(record.request.event, Some(Event::SessionEnded(_))),
            Self::Highest(..) | Self::Prune | Self::Close => true,
        }
    }
}

struct Record {
    session: Arc<str>,
    gate: GateIdentity,
    request: v1::SessionRequest,
    answer: Option<StoredAnswer>,
    received: SystemTime,
    size: usize,
    /// Up to where the session's history is stored with this event, if it adds to that.
    through: Option<u64>,
    /// Of the call that the event came by.
    progress: watch::Sender<Progress>,
    // Gives its bytes back to the queue when the record is dropped.
    _room: OwnedSemaphorePermit,
}

impl From<v1::Verdict> for StoredAnswer {
    /// An answer that the gate was told.
    fn from(verdict: v1::Verdict) -> Self {
        Self {
            verdict: Some(verdict),
            mode: AnswerMode::Enforced.into(),
            ..Self::default()
        }
    }
}

/// How far the record of a call has come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Up to where the session's history is stored.
    pub(crate) through: u64,
    /// The gate whose session it is, where that is another: nothing of this call is recorded.
    pub(crate) owner: Option<GateIdentity>,
}

impl Store {
    /// Opens the store in a directory; makes both where they aren't there yet.
    ///
    /// # Errors
    /// When it can't be made, opened or written, or isn't ours.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        Self::open_keeping(directory, Retention::default())
    }

    /// As [`open`](Self::open), for a store that keeps what `retention` says. What it doesn't is removed when
    /// [`prune`](Self::prune) is called.
    ///
    /// # Errors
    /// As those of `open`.
    pub fn open_keeping(directory: &Path, retention: Retention) -> Result<Self, StoreError> {
        let (connection, lock) = schema::open_for_writing(directory)?;
        let path = schema::file_in(directory);
        let place = Place::of(&path).map_err(|source| StoreError::CreateFile {
            path: path.clone(),
            source,
        })?;
        let head = chain::head(&connection).map_err(|source| StoreError::Open { path, source })?;
        let (reached, head) = watch::channel(head);
        let (queue, messages) = mpsc::channel(QUEUED_EVENTS);
        let state = Arc::new(WriterState::default());
        let writer = Writer {
            connection,
            place,
            _lock: lock,
            messages,
            state: Arc::clone(&state),
            reached,
            retention,
            is_pruning: !retention.keeps_everything(),
        };
        let writer = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| StoreError::Thread { source })?;
        Ok(Self {
            shared: Arc::new(Shared {
                path: schema::file_in(directory),
                queue,
                room: Arc::new(Semaphore::new(QUEUED_BYTES)),
                state,
                head,
                thread: writer.thread().clone(),
                writer: Mutex::new(Some(writer)),
            }),
        })
    }

    /// The database's file.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// The directory that it is in.
    pub fn directory(&self) -> &Path {
        self.shared.path.parent().unwrap_or(Path::new("."))
    }

    /// Tells, by its changes, the last event that is stored.
    pub(crate) fn head(&self) -> watch::Receiver<Link> {
        self.shared.head.clone()
    }

    /// What it is doing.
    pub(crate) fn numbers(&self) -> StoreNumbers {
        let state = &self.shared.state;
        StoreNumbers {
            queued: QUEUED_EVENTS - self.shared.queue.capacity(),
            written: state.written.load(Ordering::Relaxed),
            is_failing: state.is_failing.load(Ordering::Relaxed),
        }
    }

    /// Has what isn't kept be removed, soon, in steps between which events are written. Doesn't wait.
    pub fn prune(&self) {
        // Where there is no room for that it has time until the next call.
        let _ = self.send(Message::Prune);
    }

    /// Whose the latest sessions are, the earliest of them first.
    ///
    /// # Errors
    /// When it can't be read.
    pub(super) fn latest_owners(
        &self,
        most: usize,
    ) -> Result<Vec<(String, GateIdentity)>, StoreError> {
        schema::latest_owners(&open_for_reading(self.directory())?, most).map_err(|source| {
            StoreError::Open {
                path: self.shared.path.clone(),
                source,
            }
        })
    }

    /// When a session ended, by its gate's clock, and why, if the record says that it did. Blocks.
    ///
    /// # Errors
    /// When it can't be read.
    pub(super) fn ended(&self, session: &str) -> Result<Option<(SystemTime, String)>, StoreError> {
        schema::ended(&open_for_reading(self.directory())?, session).map_err(|source| {
            StoreError::Open {
                path: self.shared.path.clone(),
                source,
            }
        })
    }

    /// Queues a message, without waiting.
    fn send(&self, message: Message) -> Result<(), mpsc::error::TrySendError<Message>> {
        let is_urgent = message.is_urgent();
        if is_urgent {
            self.shared.state.is_hurried.store(true, Ordering::Relaxed);
        }
        let sent = self.shared.queue.try_send(message);
        if is_urgent || self.makes_a_commit() {
            self.shared.thread.unpark();
        }
        sent
    }

    /// Whether as much is queued as goes into one commit.
    fn makes_a_commit(&self) -> bool {
        self.shared.queue.capacity() <= QUEUED_EVENTS - BATCH_EVENTS
            || self.shared.room.available_permits() <= QUEUED_BYTES - BATCH_BYTES
    }

    /// Whether events are being written, and there is room for more.
    fn has_room(&self) -> bool {
        !self.shared.state.is_failing.load(Ordering::Relaxed)
            && self.shared.queue.capacity() > QUEUED_EVENTS / 2
            && self.shared.room.available_permits() > QUEUED_BYTES / 2
    }

    /// Writes what was received and closes. Blocks, for some seconds at most if writing fails.
    pub fn close(&self) {
        self.shared.state.is_closing.store(true, Ordering::Relaxed);
        let started = Instant::now();
        while let Err(mpsc::error::TrySendError::Full(_)) = self.send(Message::Close) {
            if started.elapsed() > 2 * CLOSING_PATIENCE {
                tracing::error!("the event store is stuck; leaving it as it is");
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let writer = self
            .shared
            .writer
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the thread that writes events has panicked; some may be missing");
        }
    }
}

/// What an event takes while it is kept: its parts refer to the message that they came in, so all of that, and each
/// of those of which there may be many.
fn size_in_memory(request: &v1::SessionRequest) -> usize {
    let exec = match &request.event {
        Some(Event::ExecRequested(exec)) => Some(exec),
        Some(Event::ExecReused(reused)) => reused.exec.as_ref(),
        _ => None,
    };
    let parts = match (exec, &request.event) {
        (Some(exec), _) => exec.arguments.len() + exec.environment_names.len(),
        (None, Some(Event::SessionStarted(started))) => started.command.len(),
        _ => 0,
    };
    request.encoded_len() + parts * size_of::<prost::bytes::Bytes>()
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
    exec.environment_variables = Vec::new();
}

/// One call's way into the store: knows where the session's history stands.
#[derive(Debug)]
pub(crate) struct Journal {
    store: Store,
    session: Arc<str>,
    gate: GateIdentity,
    /// The sequence that the next event must have for the history to be unbroken.
    expected: u64,
    /// A resumed call begins with the questions that are still open, under their old numbers, and
    /// passes over what was acknowledged between them and after them.
    may_skip: bool,
    /// Something of this call wasn't taken, so nothing after it can be acknowledged.
    has_missed: bool,
    /// The gate left out a sequence, so nothing after it can be acknowledged.
    has_gap: bool,
    /// The last sequence whose acknowledgement is to come.
    pending: u64,
    progress: watch::Sender<Progress>,
}

impl Journal {
    /// Begins the record of one call with the event that opens it.
    pub(crate) fn begin(
        store: &Store,
        session: &str,
        gate: &GateIdentity,
        opening: v1::SessionRequest,
    ) -> Self {
        let resumed_at = match &opening.event {
            Some(Event::SessionStarted(started)) => started
                .resumption
                .as_ref()
                .map(|resumption| resumption.next_sequence),
            _ => None,
        };
        let mut journal = Self {
            store: store.clone(),
            session: session.into(),
            gate: gate.clone(),
            expected: resumed_at.unwrap_or(1),
            may_skip: resumed_at.is_some(),
            has_missed: false,
            has_gap: false,
            pending: 0,
            progress: watch::Sender::default(),
        };
        journal.record(opening, None);
        journal
    }

    /// Waits until all that was queued is stored, and goes on behind the last event of the session that
    /// is; `None` if that can't be told now.
    pub(crate) async fn go_on_behind_the_last(&mut self) -> Option<u64> {
        let (reply, highest) = oneshot::channel();
        let question = Message::Highest(Arc::clone(&self.session), reply);
        self.store.send(question).ok()?;
        let highest = highest.await.ok()?;
        self.expected = self.expected.max(highest.saturating_add(1));
        Some(highest)
    }

    /// Takes one event, without waiting; `answer` is what was answered to it.
    pub(crate) fn record(&mut self, mut request: v1::SessionRequest, answer: Option<StoredAnswer>) {
        let sequence = request.sequence;
        let through = self.acknowledgeable(&request);
        if self.has_missed {
            return;
        }
        let size = size_in_memory(&request) + EVENT_OVERHEAD;
        forget_values(&mut request);
        let room = u32::try_from(size).ok().and_then(|size| {
            Arc::clone(&self.store.shared.room)
                .try_acquire_many_owned(size)
                .ok()
        });
        let queued = room.is_some_and(|room| {
            let record = Record {
                session: Arc::clone(&self.session),
                gate: self.gate.clone(),
                request,
                answer,
                received: SystemTime::now(),
                size,
                through,
                progress: self.progress.clone(),
                _room: room,
            };
            self.store.send(Message::Record(Box::new(record))).is_ok()
        });
        if queued {
            self.pending = self.pending.max(through.unwrap_or_default());
            return;
        }
        self.has_missed = true;
        if let Some(held_back) = REFUSALS.admit() {
            tracing::error!(
                session = &*self.session,
                sequence,
                held_back,
                "events can't be stored as fast as they come: verdicts go on, and the gate keeps the \
                 session's events from here on"
            );
        }
    }

    /// Takes an answer that was given later than its question, without waiting.
    pub(crate) fn answered(&mut self, answer: StoredAnswer) {
        // Of the gate's events there is none for it.
        self.record(v1::SessionRequest::default(), Some(answer));
    }

    /// Up to where the history is unbroken once this event is stored; `None` if it adds nothing to it.
    fn acknowledgeable(&mut self, request: &v1::SessionRequest) -> Option<u64> {
        let sequence = request.sequence;
        let (first, last) = match &request.event {
            Some(Event::EventsLost(lost)) => (
                lost.first_sequence.min(sequence),
                lost.last_sequence.max(sequence),
            ),
            _ => (sequence, sequence),
        };
        if sequence == 0 || last < self.expected {
            return None;
        }
        let is_skipping = self.may_skip;
        self.may_skip &= matches!(&request.event, Some(Event::ExecRequested(_)));
        if first > self.expected && !is_skipping && !self.has_gap {
            self.has_gap = true;
            tracing::warn!(
                session = &*self.session,
                expected = self.expected,
                sequence,
                "the gate left out an event; none is acknowledged from here on in this call"
            );
        }
        self.expected = last.saturating_add(1);
        (!self.has_gap).then_some(last)
    }

    /// Tells, by its changes, up to where events are stored.
    pub(crate) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Whether the call should be made again, so that the gate sends what wasn't taken.
    pub(crate) fn is_to_be_resumed(&self) -> bool {
        self.has_missed && self.store.has_room()
    }

    /// Whether something of this call wasn't taken.
    pub(crate) fn has_missed(&self) -> bool {
        self.has_missed
    }

    /// The sequence that all that was taken is stored with.
    pub(crate) fn pending(&self) -> u64 {
        self.pending
    }

    /// Whether all that was taken is stored.
    pub(crate) fn is_stored(&self) -> bool {
        self.progress.borrow().through >= self.pending
    }
}

struct Writer {
    connection: Connection,
    place: Place,
    /// Given up after the connection is closed.
    _lock: lock::WriteLock,
    messages: mpsc::Receiver<Message>,
    state: Arc<WriterState>,
    reached: watch::Sender<Link>,
    retention: Retention,
    /// There is something to remove, between batches.
    is_pruning: bool,
}

impl Writer {
    fn run(mut self) {
        if let Err(error) = priority::give_way() {
            tracing::debug!("the thread that writes events goes first as others do: {error}");
        }
        let mut is_open = true;
        while is_open {
            let first = if self.is_pruning {
                let began = Instant::now();
                self.prune();
                match self.messages.try_recv() {
                    Ok(first) => first,
                    Err(mpsc::error::TryRecvError::Empty) => {
                        std::thread::park_timeout(pace::rest_after(began.elapsed()));
                        continue;
                    }
                    Err(mpsc::error::TryRecvError::Disconnected) => break,
                }
            } else if let Some(first) = self.messages.blocking_recv() {
                first
            } else {
                break;
            };
            let mut batch = Vec::new();
            let mut questions = Vec::new();
            let mut bytes = 0;
            let mut next = Some(first);
            let gather_until = Instant::now() + GATHERING;
            self.state.is_hurried.store(false, Ordering::Relaxed);
            let mut is_urgent = false;
            loop {
                is_urgent |= next.as_ref().is_some_and(Message::is_urgent);
                match next {
                    Some(Message::Record(record)) => {
                        bytes += record.size;
                        batch.push(record);
                    }
                    Some(Message::Highest(session, reply)) => questions.push((session, reply)),
                    Some(Message::Prune) => {
                        self.is_pruning = !self.retention.keeps_everything();
                    }
                    Some(Message::Close) => is_open = false,
                    None => {
                        let left = gather_until.saturating_duration_since(Instant::now());
                        if left.is_zero() {
                            break;
                        }
                        std::thread::park_timeout(left);
                    }
                }
                if is_urgent || batch.len() == BATCH_EVENTS || bytes >= BATCH_BYTES {
                    break;
                }
                next = self.messages.try_recv().ok();
            }
            if is_urgent {
                self.state.is_hurried.store(true, Ordering::Relaxed);
            }
            self.store(&batch);
            for (session, reply) in questions {
                match self.highest(&session) {
                    Ok(highest) => drop(reply.send(highest)),
                    Err(error) => tracing::error!("reading how far a session is stored: {error}"),
                }
            }
        }
        // What was queued behind the request to close.
        let mut rest = Vec::new();
        while let Ok(message) = self.messages.try_recv() {
            if let Message::Record(record) = message {
                rest.push(record);
            }
        }
        self.store(&rest);
    }

    /// Writes a batch, however often that takes; gives up only when the store is being closed.
    fn store(&mut self, batch: &[Box<Record>]) {
        if batch.is_empty() {
            return;
        }
        let mut closing_since = None;
        while let Err(error) = self.commit(batch) {
            self.state.is_failing.store(true, Ordering::Relaxed);
            if let Some(held_back) = FAILURES.admit() {
                tracing::error!(
                    events = batch.len(),
                    held_back,
                    "writing events: {error}. Verdicts go on, events aren't acknowledged, and it is tried again"
                );
            }
            if self.state.is_closing.load(Ordering::Relaxed) {
                let since = *closing_since.get_or_insert_with(Instant::now);
                if since.elapsed() > CLOSING_PATIENCE {
                    tracing::error!(events = batch.len(), "closing: events were not stored");
                    return;
                }
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        if self.state.is_failing.swap(false, Ordering::Relaxed) {
            tracing::info!("events are being stored again");
        }
        // The last of each call first, so that its gate is told once.
        for record in batch.iter().rev() {
            if let Some(reached) = record.through {
                record.progress.send_if_modified(|progress| {
                    let is_more = reached > progress.through && progress.owner.is_none();
                    if is_more {
                        progress.through = reached;
                    }
                    is_more
                });
            }
        }
    }

    /// How far a session is stored where somebody may see it.
    fn highest(&self, session: &str) -> Result<u64, WriteError> {
        self.place.check()?;
        Ok(schema::highest(&self.connection, session)?)
    }

    /// Removes some of what isn't kept.
    fn prune(&mut self) {
        let pruned = self
            .retention
            .prune(&mut self.connection, SystemTime::now());
        match pruned {
            Ok(pruned) => {
                self.is_pruning = pruned == Pruned::More;
                // That it was done is an event. Should it not be read now, the next commit tells of it.
                if let Ok(head) = chain::head(&self.connection) {
                    self.reached.send_if_modified(|reached| {
                        let is_new = *reached != head;
                        *reached = head;
                        is_new
                    });
                }
            }
            Err(error) => {
                self.is_pruning = false;
                if let Some(held_back) = FAILURES.admit() {
                    tracing::error!(
                        held_back,
                        "removing old events: {error}; {}. It is tried again",
                        error::advice(&error)
                    );
                }
            }
        }
    }

    fn commit(&mut self, batch: &[Box<Record>]) -> Result<(), WriteError> {
        // Begun for writing: the end of the chain must stay what it is, also where others write.
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let (state, messages) = (&self.state, &self.messages);
        // Nobody waits for the commit, and what comes meanwhile doesn't make another.
        let may_rest = || {
            let is_wanted = |wanted: &AtomicBool| wanted.load(Ordering::Relaxed);
            !is_wanted(&state.is_hurried)
                && !is_wanted(&state.is_closing)
                && messages.len() < BATCH_EVENTS
        };
        let mut pace = Pace::new(&may_rest);
        let mut head = chain::head(&transaction)?;
        let mut execs = Execs::default();
        for record in batch {
            pace.step();
            if record.progress.borrow().owner.is_some() {
                continue;
            }
            let written = schema::write(
                &transaction,
                &mut execs,
                &mut head,
                &schema::Row {
                    session: &record.session,
                    gate: Some(&record.gate),
                    request: &record.request,
                    answer: record.answer.as_ref(),
                    received: record.received,
                },
            )?;
            if let Written::Foreign(owner) = written {
                record
                    .progress
                    .send_modify(|progress| progress.owner = Some(owner));
            }
        }
        execs.write(&transaction, || pace.step())?;
        self.place.check()?;
        transaction.commit()?;
        self.state
            .written
            .fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.reached.send_replace(head);
        Ok(())
    }
}

#[cfg(test)]
mod chain_tests;
#[cfg(test)]
mod execs_tests;
#[cfg(test)]
mod filter_tests;
#[cfg(test)]
mod tests;
