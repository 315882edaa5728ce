use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use prost::bytes::Bytes;
use tokio::sync::oneshot;

use super::directory::Directory;
use super::error::JournalError;
use super::file::{self, Growth, JournalFile, KeptEvent};
use super::queue::{For, Going, Queue};
use super::tail::{Outlives, Tail, What};
use super::{SharedFile, lock};
use crate::model::SessionId;

/// How long after a commit the disk has it, at the latest, where the disk does what it is asked.
const SYNCHRONIZED_WITHIN: Duration = Duration::from_secs(1);
/// Between attempts to write what couldn't be written, and between looks for room.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// A write that takes longer means that events can't be kept.
const DISK_PATIENCE: Duration = Duration::from_secs(5);

/// The events of a session, as its gate has them.
pub trait Source: Send + Sync + std::fmt::Debug {
    /// What has changed since the journal last looked. Is called by the journal's thread, and short.
    fn changes(&self, since: Since) -> Changes;
}

/// How much of a session's events the journal has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Since {
    /// The last sequence.
    pub sequence: u64,
    /// How many events had been dropped.
    pub dropped: u64,
}

/// What is new in a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// All up to this sequence are settled.
    pub settled: u64,
    /// The last sequence that was given to an event.
    pub told: u64,
    /// How many events have been dropped so far.
    pub dropped: u64,
    /// What was dropped of what the journal has seen.
    pub lost: Vec<KeptEvent>,
    /// Events, or losses, that the journal hasn't seen, in order; not all of them, perhaps.
    pub events: Vec<KeptEvent>,
    /// Whether these are all.
    pub are_all: bool,
}

/// What became of a session that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nothing was left to deliver.
    Settled,
    /// What is left is in the journal.
    Kept,
    /// What is left can't be kept.
    Lost,
}

/// A session that the journal attends.
#[derive(Debug)]
pub(super) struct Entry {
    id: SessionId,
    opening: Bytes,
    source: Weak<dyn Source>,
    /// Whether the journal will look anyway.
    is_queued: AtomicBool,
    /// Set at the session's end.
    closing: Mutex<Option<oneshot::Sender<Fate>>>,
}

/// The journal's attention to one session.
#[derive(Debug)]
pub struct Attendance {
    entry: Arc<Entry>,
    queue: Arc<Queue>,
    tail: Option<Arc<Tail>>,
}

/// Where an event is in its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Others may follow.
    Within,
    /// It is the session's end.
    Last,
}

impl Attendance {
    pub(super) fn new(
        id: SessionId,
        opening: Bytes,
        source: Weak<dyn Source>,
        queue: Arc<Queue>,
        tail: Option<Arc<Tail>>,
    ) -> Self {
        if let Some(tail) = &tail {
            let _ = tail.put(What::Opening, id, 0, &opening);
        }
        let attendance = Self {
            entry: Arc::new(Entry {
                id,
                opening,
                source,
                is_queued: AtomicBool::new(false),
                closing: Mutex::default(),
            }),
            queue,
            tail,
        };
        attendance.changed();
        attendance
    }

    /// Has an event outlive the gate, before the journal has looked at it. `body` is its encoding without its
    /// sequence. To be called in the order of the sequences. Waits for no disk.
    pub fn told(&self, sequence: u64, body: &[u8], position: Position) -> Outlives {
        let what = match position {
            Position::Within => What::Event,
            Position::Last => What::LastEvent,
        };
        self.tail.as_ref().map_or(Outlives::Nothing, |tail| {
            tail.put(what, self.entry.id, sequence, body)
        })
    }

    /// Says that the session's events have changed. Never waits.
    pub fn changed(&self) {
        if !self.entry.is_queued.swap(true, Ordering::AcqRel) {
            self.queue.push(Arc::clone(&self.entry));
        }
    }

    /// Says that the session's events change no more. What it returns completes when they are kept, or
    /// can't be.
    pub fn close(&self) -> oneshot::Receiver<Fate> {
        let (fate, receiver) = oneshot::channel();
        *lock(&self.entry.closing) = Some(fate);
        self.changed();
        self.queue.hurry();
        receiver
    }
}

/// When something began that waits for the disk, in milliseconds and never 0; 0: it isn't going on.
#[derive(Debug, Default)]
struct Work(AtomicU64);

impl Work {
    /// Whether it wasn't going on already.
    fn begin(&self, now: u64) -> bool {
        let begun = self
            .0
            .compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok()
    }

    fn end(&self) {
        self.0.store(0, Ordering::Release);
    }

    fn is_stuck(&self, now: u64) -> bool {
        let since = self.0.load(Ordering::Acquire);
        since != 0 && u128::from(now.saturating_sub(since)) > DISK_PATIENCE.as_millis()
    }
}

/// How the journal's thread is.
#[derive(Debug)]
pub(super) struct State {
    began: Instant,
    writing: Work,
    synchronizing: Work,
    is_troubled: AtomicBool,
    trouble: Mutex<String>,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            writing: Work::default(),
            synchronizing: Work::default(),
            is_troubled: AtomicBool::new(false),
            trouble: Mutex::default(),
        }
    }

    pub(super) fn trouble(&self) -> Option<String> {
        if self.is_troubled.load(Ordering::Acquire) {
            return Some(lock(&self.trouble).clone());
        }
        let now = self.now();
        let is_stuck = self.writing.is_stuck(now) || self.synchronizing.is_stuck(now);
        is_stuck.then(|| "the journal's disk doesn't answer".to_owned())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis())
            .unwrap_or(u64::MAX)
            .saturating_add(1)
    }

    fn writing<T>(&self, write: impl FnOnce() -> T) -> T {
        self.writing.begin(self.now());
        let written = write();
        self.writing.end();
        written
    }

    fn set_trouble(&self, trouble: Option<String>) {
        match trouble {
            Some(trouble) => {
                let is_new = !self.is_troubled.load(Ordering::Acquire);
                if is_new {
                    tracing::error!("events can't be kept: {trouble}; it is tried again");
                }
                *lock(&self.trouble) = trouble;
                self.is_troubled.store(true, Ordering::Release);
            }
            None => {
                if self.is_troubled.swap(false, Ordering::AcqRel) {
                    tracing::warn!("events are being kept again");
                }
            }
        }
    }
}

/// Says so if the thread ends in any other way than by being closed.
struct EndOfThread(Arc<State>);

impl Drop for EndOfThread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0
                .set_trouble(Some("the journal's thread has panicked".to_owned()));
        }
    }
}

/// What the file has of a session.
#[derive(Debug, Clone, Copy)]
struct Known {
    number: i64,
    seen: Since,
    settled: u64,
}

pub(super) struct Writer {
    file: SharedFile,
    directory: Directory,
    path: PathBuf,
    /// What the disk has to be told to keep.
    log: Option<PathBuf>,
    limit: u64,
    queue: Arc<Queue>,
    state: Arc<State>,
    tail: Option<Arc<Tail>>,
    sessions: HashMap<SessionId, Known>,
    /// Sessions to look at.
    waiting: Vec<Arc<Entry>>,
    /// What the rest of the directory takes, in bytes, and when that was measured.
    others: u64,
    measured: Option<Instant>,
    /// When the first commit was that the disk may not have yet.
    unsynchronized_since: Option<Instant>,
    /// When it was last tried in vain to write.
    failed: Option<Instant>,
    /// Whether there is no room for more.
    is_full: bool,
}

/// What is to be written of one session.
struct Look {
    entry: Arc<Entry>,
    changes: Changes,
    is_closing: bool,
}

/// What was written of one session.
struct Written {
    known: Known,
    are_all: bool,
    fate: Option<Fate>,
}

impl Writer {
    pub(super) fn new(
        file: SharedFile,
        directory: Directory,
        path: PathBuf,
        limit: u64,
        queue: Arc<Queue>,
        state: Arc<State>,
        tail: Option<Arc<Tail>>,
    ) -> Self {
        let log = lock(&file).as_ref().map(JournalFile::log_path);
        Self {
            log,
            file,
            directory,
            path,
            limit,
            queue,
            state,
            tail,
            sessions: HashMap::new(),
            waiting: Vec::new(),
            others: 0,
            measured: None,
            unsynchronized_since: None,
            failed: None,
            is_full: false,
        }
    }

    pub(super) fn run(mut self) {
        let _end = EndOfThread(Arc::clone(&self.state));
        while self.listen() == Going::On {
            self.work();
        }
        self.work();
        self.lose_the_closing();
        // What the file lacks stays where it is, for the next gate to add it.
        let is_needed = self.tail.as_ref().is_some_and(|tail| tail.is_needed());
        if !is_needed {
            if let Some(tail) = &self.tail {
                tail.remove();
            }
            super::left::remove_if_empty(&self.file);
        }
        // Gives up the lock: from here on others deliver what is left.
        drop(lock(&self.file).take());
    }

    /// Waits for something to do.
    fn listen(&mut self) -> Going {
        let (what, until) = match (self.failed, self.unsynchronized_since) {
            // A session that ends learns at once that what it has can't be kept.
            (Some(failed), _) => (For::Urgent, Some(failed + RETRY_INTERVAL)),
            (None, _) if !self.waiting.is_empty() => (For::Nothing, None),
            (None, _) if self.is_full => (For::Any, Some(Instant::now() + RETRY_INTERVAL)),
            (None, Some(since)) => (For::Any, Some(since + SYNCHRONIZED_WITHIN)),
            (None, None) => (For::Any, None),
        };
        let (entries, going) = self.queue.take(what, until);
        self.waiting.extend(entries);
        going
    }

    fn work(&mut self) {
        let state = Arc::clone(&self.state);
        loop {
            match state.writing(|| self.write()) {
                Ok(()) => {
                    self.failed = None;
                    if self.waiting.is_empty() {
                        break;
                    }
                }
                Err(error) => {
                    self.failed = Some(Instant::now());
                    state.set_trouble(Some(error.to_string()));
                    self.lose_the_closing();
                    return;
                }
            }
        }
        let shortened = state.writing(|| {
            let mut file = lock(&self.file);
            file.as_mut().map_or(Ok(()), JournalFile::shorten_log)
        });
        if let Err(error) = shortened {
            self.failed = Some(Instant::now());
            state.set_trouble(Some(error.to_string()));
        }
        if self
            .unsynchronized_since
            .is_some_and(|since| since.elapsed() >= SYNCHRONIZED_WITHIN)
        {
            self.unsynchronized_since = None;
            if let Some(log) = &self.log {
                synchronize(&state, log.clone());
            }
        }
    }

    /// Writes what is new in the sessions that wait.
    fn write(&mut self) -> Result<(), JournalError> {
        if let Some(tail) = &self.tail {
            tail.turn();
        }
        let mut looks: Vec<Look> = Vec::new();
        for entry in std::mem::take(&mut self.waiting) {
            if looks.iter().any(|look| Arc::ptr_eq(&look.entry, &entry)) {
                continue;
            }
            // Before it is looked at: what changes after that is looked at again.
            entry.is_queued.store(false, Ordering::Release);
            let is_closing = lock(&entry.closing).is_some();
            let since = self
                .sessions
                .get(&entry.id)
                .map_or_else(Since::default, |known| known.seen);
            if let Some(source) = entry.source.upgrade() {
                looks.push(Look {
                    changes: source.changes(since),
                    entry,
                    is_closing,
                });
            } else {
                self.settle(entry.id);
            }
        }
        self.measure();
        let room = self.limit.saturating_sub(self.others);
        let sessions = &self.sessions;
        let mut guard = lock(&self.file);
        let Some(file) = &mut *guard else {
            return Ok(());
        };
        let kept = file.kept().bytes();
        let written = file.change(|transaction| {
            let mut growth = Growth::default();
            let mut written = Vec::new();
            for look in &looks {
                let entry = &look.entry;
                let known = match sessions.get(&entry.id) {
                    Some(known) => *known,
                    None => Known {
                        number: file::begin(transaction, entry.id, &entry.opening)?,
                        seen: Since::default(),
                        settled: 0,
                    },
                };
                written.push(write_one(
                    transaction,
                    look,
                    known,
                    kept,
                    room,
                    &mut growth,
                )?);
            }
            Ok((written, growth))
        });
        let written = match written {
            Ok(written) => written,
            Err(error) => {
                self.waiting = looks.into_iter().map(|look| look.entry).collect();
                return Err(error);
            }
        };
        let kept = file.kept().bytes();
        drop(guard);
        if !looks.is_empty() {
            self.unsynchronized_since.get_or_insert_with(Instant::now);
        }
        for (look, written) in looks.into_iter().zip(written) {
            if let Some(fate) = written.fate {
                self.settle(look.entry.id);
                if let Some(closing) = lock(&look.entry.closing).take() {
                    let _ = closing.send(fate);
                }
                continue;
            }
            self.sessions.insert(look.entry.id, written.known);
            if !written.are_all {
                self.waiting.push(look.entry);
            }
        }
        self.clear_tail();
        // A part is kept free for what execs that have been admitted still have to tell.
        let is_full = kept >= room - room / 8;
        self.state.set_trouble(is_full.then(|| {
            format!(
                "the journal holds what it may, {} bytes, of which other gates' files have {}",
                self.limit, self.others
            )
        }));
        self.is_full = is_full;
        Ok(())
    }

    /// What becomes of a session's events has been decided.
    fn settle(&mut self, session: SessionId) {
        self.sessions.remove(&session);
        if let Some(tail) = &self.tail {
            tail.settle(session);
        }
    }

    /// Lets the tail forget what the file has.
    fn clear_tail(&self) {
        let seen = |session| Some(self.sessions.get(&session)?.seen.sequence);
        if let Some(Err(error)) = self.tail.as_ref().map(|tail| tail.clear(seen)) {
            tracing::error!("emptying what the gate tells last: {error}");
        }
    }

    /// Tells sessions that have ended that what they have can't be kept.
    fn lose_the_closing(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        for entry in waiting {
            let closing = lock(&entry.closing).take();
            match closing {
                Some(closing) => {
                    self.settle(entry.id);
                    let _ = closing.send(Fate::Lost);
                }
                None => self.waiting.push(entry),
            }
        }
    }

    /// Sees what other gates' files take.
    fn measure(&mut self) {
        let is_old = |at: Instant| at.elapsed() >= RETRY_INTERVAL;
        if self.measured.is_none_or(is_old) {
            self.others = self.directory.size_without(&self.path);
            self.measured = Some(Instant::now());
        }
    }
}

/// Has the disk keep what was committed, on a thread of its own: what is told meanwhile is written
/// meanwhile.
fn synchronize(state: &Arc<State>, log: PathBuf) {
    if state.synchronizing.begin(state.now()) {
        let on_thread = Arc::clone(state);
        let spawned = std::thread::Builder::new()
            .name("journal-disk".to_owned())
            .spawn(move || {
                // SQLite locks the database and never the log, so that closing this gives up no lock.
                let done = std::fs::File::open(&log).and_then(|log| log.sync_data());
                on_thread.synchronizing.end();
                match done {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        on_thread.set_trouble(Some(format!("{}: {error}", log.display())));
                    }
                    _ => {}
                }
            });
        if let Err(error) = spawned {
            state.synchronizing.end();
            state.set_trouble(Some(format!("starting a thread: {error}")));
        }
    }
}

fn write_one(
    transaction: &rusqlite::Transaction<'_>,
    look: &Look,
    mut known: Known,
    kept: u64,
    room: u64,
    growth: &mut Growth,
) -> rusqlite::Result<Written> {
    let changes = &look.changes;
    *growth += file::settle(transaction, known.number, changes.settled, changes.told)?;
    known.settled = known.settled.max(changes.settled);
    for lost in &changes.lost {
        if lost.sequence > known.settled {
            *growth += file::keep(transaction, known.number, lost)?;
        }
    }
    for event in &changes.events {
        known.seen.sequence = event.sequence;
        if event.sequence <= known.settled {
            continue;
        }
        let would_be = kept
            .saturating_add_signed(growth.bytes)
            .saturating_add(event.size());
        *growth += if event.body.is_some() && would_be > room {
            let lost = KeptEvent {
                body: None,
                ..*event
            };
            file::keep(transaction, known.number, &lost)?
        } else {
            file::keep(transaction, known.number, event)?
        };
    }
    known.seen.dropped = changes.dropped;
    let fate = if !look.is_closing || !changes.are_all {
        None
    } else if file::has_events(transaction, known.number)? {
        file::leave(transaction, known.number)?;
        Some(Fate::Kept)
    } else {
        *growth += file::forget(transaction, known.number)?;
        Some(Fate::Settled)
    };
    Ok(Written {
        known,
        are_all: changes.are_all,
        fate,
    })
}

#[cfg(test)]
mod tests;
