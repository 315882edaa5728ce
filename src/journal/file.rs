//! A journal's file: whose it is, and what is in it.

mod changes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prost::bytes::Bytes;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, params};

use super::directory;
use super::error::JournalError;
use crate::model::SessionId;

pub(super) use self::changes::{add, begin, forget, has_events, keep, leave, settle};

/// Marks a database as a journal: "EXGJ".
const APPLICATION_ID: i64 = 0x4558_474a;
const SCHEMA_VERSION: i64 = 1;

/// What is stored with an event, about, in bytes: counted against the bound.
const ROW_OVERHEAD: u64 = 64;

/// How long a new file's lock is waited for: somebody may be looking whether it is a dead gate's.
const LOCK_TIME: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Most bytes that the write-ahead log keeps when it is empty.
const EMPTY_LOG: i64 = 1 << 20;
/// When the log has about so many bytes it is written into the database, which the thread has to wait
/// for the disk for. Seldom, because a kill takes along what is told meanwhile.
const LONGEST_LOG: u64 = 8 << 20;
/// What a commit adds to the log beside its events, about, in bytes: small, because pages are.
const COMMIT_OVERHEAD: u64 = 6 << 10;
const PAGE_SIZE: i64 = 1024;

/// `body` is the event's encoding without its sequence; NULL where the events from `first` to `sequence`
/// are lost. `settled`: all up to this are stored by the service, or lost and told so. `told`: the last
/// that the gate numbered, kept or not. `is_left`: no gate tells this session's events any more, and its
/// end is among them.
pub(super) const SCHEMA: &str = "
CREATE TABLE sessions (
    number      INTEGER PRIMARY KEY,
    id          BLOB NOT NULL UNIQUE,
    opening     BLOB NOT NULL,
    settled     INTEGER NOT NULL,
    told        INTEGER NOT NULL,
    is_left     INTEGER NOT NULL
);
CREATE TABLE events (
    session     INTEGER NOT NULL,
    sequence    INTEGER NOT NULL,
    first       INTEGER NOT NULL,
    body        BLOB,
    PRIMARY KEY (session, sequence)
);
";

/// The events of one gate that aren't settled. Open, it holds the file's lock.
///
/// The lock is SQLite's own, in exclusive mode: bound to the process, so that no child inherits it and
/// no death leaves it behind.
#[derive(Debug)]
pub(super) struct JournalFile {
    connection: Connection,
    path: PathBuf,
    kept: Arc<Kept>,
    /// What the log has, about, in bytes.
    log: u64,
}

/// What is kept in a file, to be read while it is being written. Of a gate that is no more: by how much that
/// has changed since.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// What its events count against the bound, in bytes.
    bytes: AtomicU64,
    events: AtomicU64,
}

impl Kept {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Only who holds the file changes it.
    fn grow(&self, growth: Growth) {
        let bytes = self.bytes().saturating_add_signed(growth.bytes);
        self.bytes.store(bytes, Ordering::Relaxed);
        let events = self.events().saturating_add_signed(growth.events);
        self.events.store(events, Ordering::Relaxed);
    }
}

/// By how much what is kept grows or shrinks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Growth {
    /// What counts against the bound.
    pub(super) bytes: i64,
    /// Events, without losses.
    pub(super) events: i64,
}

impl std::ops::AddAssign for Growth {
    fn add_assign(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.events = self.events.saturating_add(other.events);
    }
}

impl std::ops::Neg for Growth {
    type Output = Self;

    fn neg(self) -> Self {
        Self {
            bytes: self.bytes.saturating_neg(),
            events: self.events.saturating_neg(),
        }
    }
}

/// What a file looks like from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// A gate that lives has it.
    Held,
    /// Its gate is no more.
    Left {
        /// How many sessions are in it.
        sessions: u64,
        /// How many events.
        events: u64,
    },
    /// It is no journal.
    Unknown,
}

/// Which sessions of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those that no gate tells events of any more.
    Left,
    /// All.
    All,
}

/// A session that is in a file.
#[derive(Debug, Clone)]
pub(super) struct KeptSession {
    pub(super) number: i64,
    pub(super) id: SessionId,
    /// Encoding of its first event.
    pub(super) opening: Bytes,
    pub(super) settled: u64,
    pub(super) told: u64,
    /// Whether its end is among its events.
    pub(super) is_left: bool,
}

/// An event, or events that are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptEvent {
    /// Sequence of the first; that of the event, where it is one.
    pub first: u64,
    /// Sequence of the last; that of the event, where it is one.
    pub sequence: u64,
    /// The event's encoding, without its sequence; `None`: they are lost.
    pub body: Option<Bytes>,
}

impl KeptEvent {
    /// What it counts against the bound, in bytes.
    pub(super) fn size(&self) -> u64 {
        let body = self.body.as_ref().map_or(0, Bytes::len);
        u64::try_from(body)
            .unwrap_or(u64::MAX)
            .saturating_add(ROW_OVERHEAD)
    }
}

impl JournalFile {
    /// Makes a journal of an empty file.
    pub(super) fn create(path: &Path) -> Result<Self, JournalError> {
        let began = Instant::now();
        loop {
            match Self::try_create(path) {
                Err(error) if is_locked(&error) && began.elapsed() < LOCK_TIME => {
                    std::thread::sleep(LOCK_PAUSE);
                }
                made => return made.map_err(|source| database(path, source)),
            }
        }
    }

    fn try_create(path: &Path) -> rusqlite::Result<Self> {
        let mut connection = open(path)?;
        let transaction =
            connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        transaction.execute_batch(SCHEMA)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        transaction.commit()?;
        Ok(Self {
            connection,
            path: path.to_owned(),
            kept: Arc::default(),
            log: 0,
        })
    }

    /// Takes over the file of a gate that is no more; `None` where one holds its lock, or it has gone.
    pub(super) fn take_over(path: &Path) -> Result<Option<Self>, JournalError> {
        let opened = open(path).and_then(|mut connection| {
            // Reads all that the dead gate has left in the log, and takes the lock.
            let transaction =
                connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let number = |name: &str| transaction.pragma_query_value(None, name, |row| row.get(0));
            let found: (i64, i64) = (number("application_id")?, number("user_version")?);
            transaction.commit()?;
            Ok((connection, found))
        });
        match opened {
            Ok((connection, found)) => {
                let file = Self {
                    connection,
                    path: path.to_owned(),
                    kept: Arc::default(),
                    log: 0,
                };
                match found {
                    (APPLICATION_ID, SCHEMA_VERSION) => Ok(Some(file)),
                    // Its gate ended before it had anything in it.
                    (0, 0) => {
                        file.remove();
                        Ok(None)
                    }
                    _ => Err(JournalError::Unknown {
                        path: path.to_owned(),
                    }),
                }
            }
            Err(error) if is_locked(&error) || !path.exists() => Ok(None),
            Err(source) => Err(database(path, source)),
        }
    }

    /// Looks at a file from outside, and leaves it as it is. Holds its lock for that moment, where no gate
    /// does.
    pub(super) fn look(path: &Path) -> Result<Seen, JournalError> {
        let look = || -> rusqlite::Result<Seen> {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
                | OpenFlags::SQLITE_OPEN_NO_MUTEX
                | OpenFlags::SQLITE_OPEN_NOFOLLOW;
            let connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(Duration::ZERO)?;
            // Closing it would write its log into it.
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
            connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
            let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get(0));
            let found: (i64, i64) = (number("application_id")?, number("user_version")?);
            if found != (APPLICATION_ID, SCHEMA_VERSION) {
                return Ok(Seen::Unknown);
            }
            let count = |query| connection.query_row(query, [], |row| row.get(0).map(unsigned));
            Ok(Seen::Left {
                sessions: count("SELECT count(*) FROM sessions")?,
                events: count("SELECT count(body) FROM events")?,
            })
        };
        match look() {
            Ok(Seen::Unknown) => Err(JournalError::Unknown {
                path: path.to_owned(),
            }),
            Ok(seen) => Ok(seen),
            Err(error) if is_locked(&error) => Ok(Seen::Held),
            // It has gone meanwhile.
            Err(_) if !path.exists() => Ok(Seen::Left {
                sessions: 0,
                events: 0,
            }),
            Err(source) => Err(database(path, source)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What is kept of a gate that lives.
    pub(super) fn kept(&self) -> &Arc<Kept> {
        &self.kept
    }

    /// Removes the file. What is in it is gone.
    pub(super) fn remove(self) {
        let Self {
            connection, path, ..
        } = self;
        // Whoever takes the lock next finds nothing and removes it as well.
        let _ = connection.close();
        remove_with_log(&path);
    }

    /// The log, which has what was committed last.
    pub(super) fn log_path(&self) -> PathBuf {
        log_of(&self.path)
    }

    /// Writes a long log into the database.
    pub(super) fn shorten_log(&mut self) -> Result<(), JournalError> {
        if self.log >= LONGEST_LOG {
            self.connection
                .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
                .map_err(|source| database(&self.path, source))?;
            self.log = 0;
        }
        Ok(())
    }

    /// The sessions in it that were left, and those of a dead gate, in the order of their beginnings.
    pub(super) fn sessions(&self, which: Which) -> Result<Vec<KeptSession>, JournalError> {
        let query = || -> rusqlite::Result<Vec<KeptSession>> {
            self.connection
                .prepare_cached(
                    "SELECT number, id, opening, settled, told, is_left FROM sessions
                     WHERE is_left OR ?1 ORDER BY number",
                )?
                .query_map([which == Which::All], |row| {
                    Ok(KeptSession {
                        number: row.get(0)?,
                        id: SessionId(row.get(1)?),
                        opening: row.get::<_, Vec<u8>>(2)?.into(),
                        settled: unsigned(row.get(3)?),
                        told: unsigned(row.get(4)?),
                        is_left: row.get(5)?,
                    })
                })?
                .collect()
        };
        query().map_err(|source| database(&self.path, source))
    }

    /// Events of a session behind `after`, in order: so many, and about so many bytes, at most.
    pub(super) fn events(
        &self,
        session: i64,
        after: u64,
        most: usize,
        most_bytes: u64,
    ) -> Result<Vec<KeptEvent>, JournalError> {
        let query = || -> rusqlite::Result<Vec<KeptEvent>> {
            let mut events = Vec::new();
            let mut bytes = 0;
            let mut last = after;
            let mut statement = self.connection.prepare_cached(
                "SELECT first, sequence, body FROM events
                 WHERE session = ?1 AND sequence > ?2 ORDER BY sequence",
            )?;
            let mut rows = statement.query(params![session, signed(after)])?;
            while events.len() < most && bytes < most_bytes {
                let Some(row) = rows.next()? else { break };
                let event = KeptEvent {
                    first: unsigned(row.get(0)?),
                    sequence: unsigned(row.get(1)?),
                    body: row.get::<_, Option<Vec<u8>>>(2)?.map(Bytes::from),
                };
                // SQLite believes the order of a damaged file.
                if event.sequence <= last {
                    let damaged = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
                    let what = "events out of order".to_owned();
                    return Err(rusqlite::Error::SqliteFailure(damaged, Some(what)));
                }
                last = event.sequence;
                bytes = event.size().saturating_add(bytes);
                events.push(event);
            }
            Ok(events)
        };
        query().map_err(|source| database(&self.path, source))
    }

    /// How many events of a session there are.
    pub(super) fn count(&self, session: i64) -> Result<u64, JournalError> {
        self.connection
            .query_row(
                "SELECT count(*) FROM events WHERE session = ?1 AND body IS NOT NULL",
                [session],
                |row| row.get::<_, i64>(0),
            )
            .map(unsigned)
            .map_err(|source| database(&self.path, source))
    }

    /// The first event of a session that it has, where that isn't lost.
    pub(super) fn first(&self, session: i64) -> Result<Option<Bytes>, JournalError> {
        self.connection
            .query_row(
                "SELECT body FROM events WHERE session = ?1 ORDER BY sequence LIMIT 1",
                [session],
                |row| row.get::<_, Option<Vec<u8>>>(0),
            )
            .optional()
            .map(|body| body.flatten().map(Bytes::from))
            .map_err(|source| database(&self.path, source))
    }

    /// The last event of a session that it has, where that isn't lost.
    pub(super) fn last(&self, session: i64) -> Result<Option<Bytes>, JournalError> {
        self.connection
            .query_row(
                "SELECT body FROM events WHERE session = ?1 ORDER BY sequence DESC LIMIT 1",
                [session],
                |row| row.get::<_, Option<Vec<u8>>>(0),
            )
            .optional()
            .map(|body| body.flatten().map(Bytes::from))
            .map_err(|source| database(&self.path, source))
    }

    /// Does something to it, all or nothing.
    pub(super) fn change<T>(
        &mut self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<(T, Growth)>,
    ) -> Result<T, JournalError> {
        let all = || {
            let transaction = self
                .connection
                .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let changed = change(&transaction)?;
            transaction.commit()?;
            Ok(changed)
        };
        let (value, growth) = all().map_err(|source| database(&self.path, source))?;
        self.kept.grow(growth);
        self.log = self
            .log
            .saturating_add(COMMIT_OVERHEAD)
            .saturating_add(growth.bytes.unsigned_abs());
        Ok(value)
    }

    /// Gives up the lock, and the name: what is in it can't be read.
    pub(super) fn set_aside(self) {
        let Self {
            connection, path, ..
        } = self;
        let _ = connection.close();
        directory::set_aside(&path);
    }

    pub(super) fn is_empty(&self) -> Result<bool, JournalError> {
        self.connection
            .query_row("SELECT 1 FROM sessions LIMIT 1", [], |_| Ok(()))
            .optional()
            .map(|found| found.is_none())
            .map_err(|source| database(&self.path, source))
    }
}

fn log_of(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push("-wal");
    path.into()
}

/// Removes a file, and then its log: SQLite leaves that where the disk has no room to write it into the
/// database.
pub(super) fn remove_with_log(path: &Path) {
    for path in [path, &log_of(path)] {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!("removing {}: {error}", path.display());
            }
            _ => {}
        }
    }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::ZERO)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "page_size", PAGE_SIZE)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // A commit is in the system's memory then, which outlives the gate; the journal sees to the disk.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", EMPTY_LOG)?;
    Ok(connection)
}

fn is_locked(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

fn database(path: &Path, source: rusqlite::Error) -> JournalError {
    JournalError::Database {
        path: path.to_owned(),
        source,
    }
}

/// Sequences have 64 bits without a sign, the database's numbers one with it; no gate gets so far.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
