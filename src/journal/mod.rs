//! Events that aren't settled, on disk, for the case that the gate is killed.
//!
//! ```text
//! session's events in memory <-- looks, when told that they changed -- journal's thread --> file
//! ```
//!
//! A gate has one file in the journal's directory and holds its lock. Its thread looks at the events of
//! each session that has something new, writes what isn't settled and forgets what is. Nobody waits for
//! it but sessions that end. A commit is in the system's memory, and the disk has it a second later. What
//! hasn't been committed yet outlives the gate in its *tail*: before a verdict is answered, the gate has put
//! it, and all that was told before, into files that are in memory alone, which takes no disk.
//!
//! Whoever gets the lock of another gate's file knows that the gate is no more ([`Journal::left`]), adds its
//! tail to the file, and has its events to deliver.
//!
//! Invariants: a file is read or written under its lock alone, which ends with the process; telling of a
//! change never waits; what can't be kept for the bound is kept as a loss, so that it will be told.
//!
//! Not here: what an event says, and how it is delivered (`link`).

mod directory;
mod error;
mod file;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod inspect;
mod left;
mod queue;
mod tail;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

pub use error::JournalError;
pub use file::KeptEvent;
pub use inspect::Inspection;
pub use left::{Left, LeftSession};
pub use tail::Outlives;
pub use writer::{Attendance, Changes, Fate, Position, Since, Source};

use directory::Directory;
use file::{JournalFile, Kept, Which};
use queue::Queue;
use tail::Tail;
use writer::{State, Writer};

/// Where a journal is, and how large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalOptions {
    /// The directory, of the gate's user alone; made where it isn't there. Gates may share it.
    pub directory: PathBuf,
    /// How many bytes all that is in the directory may take, about.
    pub limit: u64,
}

/// What a journal has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalLoad {
    /// Events in this gate's own file, of sessions that live and of sessions that have ended.
    pub events: u64,
    /// What they count against the bound, in bytes.
    pub bytes: u64,
    /// The bound, in bytes.
    pub limit: u64,
    /// Whether events can't be kept at present.
    pub is_troubled: bool,
    /// What there was to deliver when that was last looked at.
    pub left: LeftLoad,
}

/// What is to be delivered of sessions that no gate tells events of any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftLoad {
    /// Sessions.
    pub sessions: u64,
    /// Their events.
    pub events: u64,
    /// When the oldest of these was.
    pub oldest: Option<SystemTime>,
}

/// The journal of one gate.
#[derive(Debug)]
pub struct Journal {
    directory: Directory,
    file: SharedFile,
    queue: Arc<Queue>,
    state: Arc<State>,
    /// `None` where there is no memory for it.
    tail: Option<Arc<Tail>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    kept: Arc<Kept>,
    limit: u64,
    left: Mutex<LeftLoad>,
    /// Files of gates that are no more.
    taken_over: Mutex<Vec<SharedFile>>,
}

/// `None` once it has been removed.
type SharedFile = Arc<Mutex<Option<JournalFile>>>;

impl Journal {
    /// Begins the journal of a gate.
    ///
    /// # Errors
    /// When directory or file can't be made or written, or aren't the user's alone.
    pub fn open(options: &JournalOptions) -> Result<Self, JournalError> {
        let directory = Directory::open(&options.directory)?;
        let file = directory.create()?;
        let own = file.path().to_owned();
        let tail = match directory.tail(&own) {
            Ok(tail) => Some(Arc::new(tail)),
            Err(error) => {
                tracing::warn!(
                    "what this gate tells last doesn't outlive a kill of it: no memory for that: {error}"
                );
                None
            }
        };
        let kept = Arc::clone(file.kept());
        let file = Arc::new(Mutex::new(Some(file)));
        let state = Arc::new(State::new());
        let queue = Arc::new(Queue::default());
        let writer = Writer::new(
            Arc::clone(&file),
            directory.clone(),
            own,
            options.limit,
            Arc::clone(&queue),
            Arc::clone(&state),
            tail.clone(),
        );
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer.run())
            .map_err(JournalError::Thread)?;
        Ok(Self {
            directory,
            file,
            queue,
            state,
            tail,
            thread: Mutex::new(Some(thread)),
            kept,
            limit: options.limit,
            left: Mutex::default(),
            taken_over: Mutex::default(),
        })
    }

    /// Keeps the events of a session from here on.
    pub fn attend(
        &self,
        id: crate::model::SessionId,
        opening: prost::bytes::Bytes,
        source: std::sync::Weak<dyn Source>,
    ) -> Attendance {
        Attendance::new(
            id,
            opening,
            source,
            Arc::clone(&self.queue),
            self.tail.clone(),
        )
    }

    /// Why events can't be kept at present, in words; `None` where they can.
    pub fn trouble(&self) -> Option<String> {
        let is_strained = || self.tail.as_ref().is_some_and(|tail| tail.is_strained());
        self.state
            .trouble()
            .or_else(|| is_strained().then(|| "the journal's disk is too far behind".to_owned()))
    }

    /// Whether what is told outlives a kill of the gate from the first moment on.
    pub fn outlives_kills(&self) -> bool {
        self.tail.is_some()
    }

    /// What it has. Waits for no disk.
    pub fn load(&self) -> JournalLoad {
        JournalLoad {
            events: self.kept.events(),
            bytes: self.kept.bytes(),
            limit: self.limit,
            is_troubled: self.trouble().is_some(),
            left: *lock(&self.left),
        }
    }

    /// Notes what there is to deliver, for [`load`](Self::load).
    pub fn note_left(&self, left: LeftLoad) {
        *lock(&self.left) = left;
    }

    /// What there is to deliver of sessions that no gate tells events of any more. Blocks.
    ///
    /// # Errors
    /// When the directory or the gate's own file can't be read.
    pub fn left(&self) -> Result<Vec<LeftSession>, JournalError> {
        let path = |file: &SharedFile| lock(file).as_ref().map(|file| file.path().to_owned());
        let Some(own) = path(&self.file) else {
            // It is closed, and what is left is others'.
            return Ok(Vec::new());
        };
        let held: Vec<PathBuf> = lock(&self.taken_over).iter().filter_map(path).collect();
        let skip = |path: &Path| own == path || held.iter().any(|held| held == path);
        for file in self.directory.take_over(skip)? {
            lock(&self.taken_over).push(Arc::new(Mutex::new(Some(file))));
        }
        let mut left = left::sessions(&self.file, Which::Left, Left::ByThisGate)?;
        let mut taken_over = lock(&self.taken_over).clone();
        taken_over.retain(
            |file| match left::sessions(file, Which::All, Left::ByAnotherGate) {
                Ok(sessions) if sessions.is_empty() => {
                    left::remove(file);
                    false
                }
                Ok(sessions) => {
                    left.extend(sessions);
                    true
                }
                Err(error) => {
                    tracing::error!("events of a gate that is no more can't be read: {error}");
                    if let Some(file) = lock(file).take() {
                        file.set_aside();
                    }
                    false
                }
            },
        );
        *lock(&self.taken_over) = taken_over;
        Ok(left)
    }

    /// Writes what there is and closes; the file goes where nothing is left in it. Blocks.
    pub fn close(&self) {
        self.queue.close();
        let thread = lock(&self.thread).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the journal's thread has panicked; events may be missing");
        }
        for file in std::mem::take(&mut *lock(&self.taken_over)) {
            left::remove_if_empty(&file);
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic elsewhere leaves no change half-way: transactions are all or nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
