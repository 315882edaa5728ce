//! Tables, and how events become rows.

use std::collections::HashMap;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use prost::Message;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Statement, Transaction, params};

use super::chain::{Entry, Link};
use super::error::StoreError;
use super::execs::{Execs, Place};
use super::lock::WriteLock;
use super::upgrade;
use crate::pb::audit::v1::{StoredAnswer, Termination};
use crate::pb::v1;
use crate::pb::v1::session_request::Event;
use crate::policyd::identity::GateIdentity;
use crate::policyd::text;

/// The version of the tables below.
const SCHEMA_VERSION: i64 = 6;
/// Marks a database as one of ours: "EXGP".
const APPLICATION_ID: i64 = 0x4558_4750;
/// The database, inside the data directory.
pub(super) const FILE_NAME: &str = "events.sqlite";
/// How long another process's lock is waited for.
pub(super) const BUSY_TIME: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// What the writer keeps of the database in memory, as SQLite counts it: its indexes are written all over.
const CACHE_KIBIBYTES: i64 = -(64 << 10);
/// After so many pages in the log of writes they are moved to their places, each of them once, however often it
/// was written.
const CHECKPOINT_PAGES: i64 = 4_000;
/// Statements that are kept prepared.
const STATEMENTS: usize = 64;
/// Most ranges of lost events that are kept of one session, each with its place.
const MOST_LOST_RANGES: i64 = 1_024;
/// Longest command line that is kept as text, for people; the event has all of it.
pub(super) const COMMAND_LINE_LIMIT: usize = 4096;

/// Times are nanoseconds since 1970, by the gate's clock unless the name says `received` or `answered`.
pub(super) const SCHEMA: &str = "
CREATE TABLE sessions (
    session_id      TEXT PRIMARY KEY,
    started_ns      INTEGER,
    received_ns     INTEGER NOT NULL,
    calls           INTEGER NOT NULL,
    hostname        TEXT,
    platform        TEXT,
    gate_version    TEXT,
    user_id         INTEGER,
    group_id        INTEGER,
    user_name       TEXT,
    workdir         BLOB,
    command_line    TEXT,
    labels          TEXT NOT NULL,
    sandbox         TEXT,
    enforcement     TEXT,
    ended_ns        INTEGER,
    end_reason      TEXT,
    end_detail      TEXT,
    exit_code       INTEGER,
    signal          INTEGER,
    gate            TEXT,
    terminated_by   TEXT,
    termination_reason TEXT,
    terminated_ns   INTEGER,
    first_position  INTEGER
);
CREATE TABLE lost_ranges (
    session_id      TEXT NOT NULL,
    first_sequence  INTEGER NOT NULL,
    last_sequence   INTEGER NOT NULL,
    PRIMARY KEY (session_id, first_sequence)
);
CREATE TABLE execs (
    session_id      TEXT NOT NULL,
    exec_id         INTEGER NOT NULL,
    request_sequence INTEGER,
    requested_ns    INTEGER,
    received_ns     INTEGER NOT NULL,
    program         BLOB,
    program_name    TEXT,
    command_line    TEXT,
    argument_count  INTEGER,
    workdir         BLOB,
    process_id      INTEGER,
    parent_process_id INTEGER,
    user_id         INTEGER,
    group_id        INTEGER,
    parent_exec_id  INTEGER,
    answers         INTEGER NOT NULL DEFAULT 0,
    answered_ns     INTEGER,
    answer          TEXT,
    answer_reason   TEXT,
    answer_reason_code TEXT,
    answer_rule     TEXT,
    answer_revision TEXT,
    decided_ns      INTEGER,
    action          TEXT,
    code            TEXT,
    reason          TEXT,
    reason_code     TEXT,
    rule            TEXT,
    policy_revision TEXT,
    waited_ns       INTEGER,
    withdrawn       TEXT,
    finished_ns     INTEGER,
    exit_code       INTEGER,
    signal          INTEGER,
    start_error     TEXT,
    replaced_by_exec_id INTEGER,
    elapsed_ns      INTEGER,
    user_time_ns    INTEGER,
    system_time_ns  INTEGER,
    peak_memory_bytes INTEGER,
    position        INTEGER,
    gate            TEXT,
    answer_mode     TEXT,
    approval_id     TEXT,
    decided_by      TEXT,
    PRIMARY KEY (session_id, exec_id)
);
CREATE VIEW losses AS
    SELECT session_id, CAST(total(last_sequence - first_sequence + 1 - (
        SELECT count(*) FROM events
        WHERE events.session_id = lost_ranges.session_id AND kind <> 'events-lost'
            AND sequence BETWEEN first_sequence AND last_sequence
    )) AS INTEGER) AS lost_events
    FROM lost_ranges GROUP BY session_id;
CREATE INDEX execs_by_time ON execs (received_ns);
";

/// The events themselves, which all other tables are made from: in the order in which they were stored, each
/// with its place in the chain of hashes (`chain`). A sequence of 0 is none.
pub(super) const EVENTS: &str = "
CREATE TABLE events (
    position        INTEGER PRIMARY KEY,
    session_id      TEXT NOT NULL,
    sequence        INTEGER,
    event_ns        INTEGER,
    received_ns     INTEGER NOT NULL,
    kind            TEXT NOT NULL,
    exec_id         INTEGER,
    gate            TEXT,
    payload         BLOB NOT NULL,
    answer          BLOB,
    hash            BLOB NOT NULL,
    UNIQUE (session_id, sequence)
);
CREATE INDEX events_by_exec ON events (session_id, exec_id, kind) WHERE exec_id IS NOT NULL;
CREATE INDEX beginnings ON events (session_id) WHERE kind = 'session-started';
CREATE TABLE chain_start (
    position        INTEGER NOT NULL,
    hash            BLOB NOT NULL
);
";

/// What queries are answered by. The latest execs that fit are found from an index's end, so each index ends
/// with the position of the exec's first event.
pub(super) const INDEXES: &str = "
CREATE TABLE session_labels (
    session_id      TEXT NOT NULL,
    key             TEXT NOT NULL,
    value           TEXT NOT NULL,
    PRIMARY KEY (session_id, key)
) WITHOUT ROWID;
CREATE INDEX session_labels_by_value ON session_labels (key, value, session_id);
CREATE INDEX execs_by_position ON execs (position);
CREATE INDEX execs_by_session ON execs (session_id, position);
CREATE INDEX execs_by_program ON execs (program_name, position);
CREATE INDEX execs_by_verdict ON execs (coalesce(action, answer), position);
CREATE INDEX execs_by_code ON execs (code, position);
CREATE INDEX execs_by_reason_code
    ON execs (coalesce(nullif(reason_code, ''), answer_reason_code), position);
CREATE INDEX execs_monitored ON execs (answer_mode, position) WHERE answer_mode IS NOT NULL;
CREATE INDEX execs_by_gate ON execs (gate, position);
";

pub(super) fn file_in(directory: &Path) -> PathBuf {
    directory.join(FILE_NAME)
}

/// Opens the store for its one writer; makes directory and file where there are none. The lock is to be held for
/// as long as the connection is.
pub(super) fn open_for_writing(directory: &Path) -> Result<(Connection, WriteLock), StoreError> {
    let path = file_in(directory);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|source| StoreError::CreateDirectory {
            path: directory.to_owned(),
            source,
        })?;
    let lock = WriteLock::take(directory)?;
    // SQLite gives its other files the mode of this one, so it is made before SQLite sees it.
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .and_then(|file| file.set_permissions(std::fs::Permissions::from_mode(0o600)))
        .map_err(|source| StoreError::CreateFile {
            path: path.clone(),
            source,
        })?;
    let open_error = |source| StoreError::Open {
        path: path.clone(),
        source,
    };
    let mut connection = Connection::open_with_flags(
        &path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(open_error)?;
    connection.busy_timeout(BUSY_TIME).map_err(open_error)?;
    let began = Instant::now();
    while let Err(error) = prepare(&mut connection, &path) {
        // Somebody reads it: SQLite doesn't wait for a change of the journal's mode.
        if !error.is_busy() || began.elapsed() > BUSY_TIME {
            return Err(error);
        }
        std::thread::sleep(BUSY_PAUSE);
    }
    Ok((connection, lock))
}

/// Makes a database ready to be written.
fn prepare(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let open_error = |source| StoreError::Open {
        path: path.to_owned(),
        source,
    };
    // Before anything is changed in a file that may be another program's.
    check(
        &connection.unchecked_transaction().map_err(open_error)?,
        path,
    )?;
    let set = |name, value: &dyn rusqlite::ToSql| {
        connection
            .pragma_update(None, name, value)
            .map_err(open_error)
    };
    set("journal_mode", &"WAL")?;
    // With WAL, FULL is what makes a commit survive a power failure; an acknowledged event must.
    set("synchronous", &"FULL")?;
    set("journal_size_limit", &(64 << 20))?;
    set("cache_size", &CACHE_KIBIBYTES)?;
    set("wal_autocheckpoint", &CHECKPOINT_PAGES)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    let transaction = connection
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .map_err(open_error)?;
    let write = |version| {
        if version == 0 {
            for tables in [EVENTS, SCHEMA, INDEXES] {
                transaction.execute_batch(tables)?;
            }
        } else if version < SCHEMA_VERSION {
            upgrade::upgrade(&transaction, version)?;
        }
        // Written each time: a store that can't be written shows now, not at the first event.
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)
    };
    // Again, in the transaction that changes it.
    write(check(&transaction, path)?).map_err(open_error)?;
    transaction.commit().map_err(open_error)
}

/// Whether a database has what is read here.
pub(super) fn check_for_reading(
    connection: &Transaction<'_>,
    path: &Path,
) -> Result<(), StoreError> {
    let path = path.to_owned();
    match check(connection, &path)? {
        0 => Err(StoreError::Missing { path }),
        1..SCHEMA_VERSION => Err(StoreError::Older { path }),
        _ => Ok(()),
    }
}

/// The highest sequence of a session that is stored; 0: none.
pub(super) fn highest(connection: &Connection, session: &str) -> rusqlite::Result<u64> {
    connection
        .prepare_cached("SELECT max(sequence) FROM events WHERE session_id = ?1")?
        .query_row([session], |row| row.get::<_, Option<i64>>(0))
        .map(|highest| highest.map_or(0, i64::cast_unsigned))
}

/// When a session ended, and why, if it did.
pub(super) fn ended(
    connection: &Connection,
    session: &str,
) -> rusqlite::Result<Option<(SystemTime, String)>> {
    connection
        .query_row(
            "SELECT ended_ns, end_reason FROM sessions WHERE session_id = ?1",
            [session],
            |row| {
                Ok((
                    row.get::<_, Option<i64>>(0)?,
                    row.get::<_, Option<String>>(1)?,
                ))
            },
        )
        .optional()
        .map(|found| {
            let (ended, reason) = found?;
            let ended = ended?;
            let apart = Duration::from_nanos(ended.unsigned_abs());
            // The gate's clock may have been before 1970.
            let ended = if ended < 0 {
                SystemTime::UNIX_EPOCH.checked_sub(apart)?
            } else {
                SystemTime::UNIX_EPOCH.checked_add(apart)?
            };
            Some((ended, reason.unwrap_or_default()))
        })
}

/// The sessions whose gates are known, the latest ones, and of these the earliest first.
pub(super) fn latest_owners(
    connection: &Connection,
    most: usize,
) -> rusqlite::Result<Vec<(String, GateIdentity)>> {
    connection
        .prepare(
            "SELECT * FROM (
                 SELECT session_id, gate, rowid AS place FROM sessions WHERE gate IS NOT NULL
                 ORDER BY place DESC LIMIT ?1
             ) ORDER BY place",
        )?
        .query_map([i64::try_from(most).unwrap_or(i64::MAX)], |row| {
            Ok((row.get(0)?, GateIdentity::from(row.get::<_, String>(1)?)))
        })?
        .collect()
}

/// The schema version, if it is one to be used; 0 for an empty database. In a transaction, for it looks
/// more than once.
fn check(connection: &Transaction<'_>, path: &Path) -> Result<i64, StoreError> {
    let open_error = |source| StoreError::Open {
        path: path.to_owned(),
        source,
    };
    let number = |name: &str| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
            .map_err(open_error)
    };
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
        .map_err(open_error)?;
    if application != APPLICATION_ID && (application != 0 || version != 0 || tables != 0) {
        return Err(StoreError::Foreign {
            path: path.to_owned(),
        });
    }
    if version > SCHEMA_VERSION {
        return Err(StoreError::Newer {
            path: path.to_owned(),
            found: version,
            known: SCHEMA_VERSION,
        });
    }
    Ok(version)
}

/// What a session's beginning is called.
pub(super) const BEGINNING: &str = "session-started";
/// What an answer is called that stands by itself: it was given later than its question, or once more.
const ANSWERED: &str = "exec-answered";
/// What it is called that a session's gate was told to end it.
const TERMINATED: &str = "session-terminated";

/// An event on its way into the tables.
pub(super) struct Row<'a> {
    pub(super) session: &'a str,
    /// Whose call the event came by; `None` where that was not known yet when it was stored.
    pub(super) gate: Option<&'a GateIdentity>,
    pub(super) request: &'a v1::SessionRequest,
    pub(super) answer: Option<&'a StoredAnswer>,
    pub(super) received: SystemTime,
}

/// Numbers of the contract have 64 bits without a sign; the database's have one. The bits are kept.
pub(super) fn number(value: u64) -> i64 {
    value.cast_signed()
}

pub(super) fn system_nanoseconds(time: SystemTime) -> i64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|elapsed| i64::try_from(elapsed.as_nanos()).ok())
        .unwrap_or_default()
}

pub(super) fn time_nanoseconds(time: Option<prost_types::Timestamp>) -> Option<i64> {
    let time = time?;
    time.seconds
        .checked_mul(1_000_000_000)?
        .checked_add(time.nanos.into())
}

pub(super) fn nanoseconds(duration: Option<prost_types::Duration>) -> Option<i64> {
    let duration = duration?;
    duration
        .seconds
        .checked_mul(1_000_000_000)?
        .checked_add(duration.nanos.into())
}

/// A value of an enum as the tables name it: `DECISION_CODE_TIMED_OUT` is `timed-out`.
pub(super) fn enum_name(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix)
        .unwrap_or(name)
        .to_ascii_lowercase()
        .replace('_', "-")
}

pub(super) fn kind(event: Option<&Event>) -> (&'static str, Option<u64>) {
    match event {
        Some(Event::SessionStarted(_)) => (BEGINNING, None),
        Some(Event::ExecRequested(exec)) => ("exec-requested", Some(exec.exec_id)),
        Some(Event::ExecReused(reused)) => {
            ("exec-reused", reused.exec.as_ref().map(|exec| exec.exec_id))
        }
        Some(Event::ExecWithdrawn(exec)) => ("exec-withdrawn", Some(exec.exec_id)),
        Some(Event::ExecDecided(exec)) => ("exec-decided", Some(exec.exec_id)),
        Some(Event::ExecFinished(exec)) => ("exec-finished", Some(exec.exec_id)),
        Some(Event::SessionEnded(_)) => ("session-ended", None),
        Some(Event::EventsLost(_)) => ("events-lost", None),
        None => ("unknown", None),
    }
}

/// What became of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It is in the record, or was already.
    Done,
    /// It isn't, and nothing else of its call may be: the session is this gate's.
    Foreign(GateIdentity),
}

/// Writes one event. A repeat, known by its session and sequence, changes nothing but the answer. A loss or a question
/// that has another's sequence is stored without one where lists would tell of it: they are made of nothing that isn't
/// stored.
pub(super) fn write<'a>(
    transaction: &Transaction<'_>,
    execs: &mut Execs<'a>,
    head: &mut Link,
    row: &Row<'a>,
) -> rusqlite::Result<Written> {
    let request = row.request;
    let is_beginning = matches!(&request.event, Some(Event::SessionStarted(_)));
    if is_beginning
        && let Some(owner) = owner(transaction, row.session)?
        && Some(&owner) != row.gate
    {
        return Ok(Written::Foreign(owner));
    }
    // One that goes on though all of it was removed begins with whatever comes next, which has to say whose it is.
    let says_whose = is_beginning || !is_listed(transaction, row.session)?;
    // Of a session whose beginning was removed no other one comes first: what lists have of it is from before.
    let is_first_again = is_beginning && request.sequence == 1 && is_cut(transaction, row.session)?;
    let received = system_nanoseconds(row.received);
    let time = time_nanoseconds(request.event_time);
    let (kind, exec_id) = match (&request.event, row.answer) {
        (
            None,
            Some(StoredAnswer {
                verdict: Some(verdict),
                ..
            }),
        ) => (ANSWERED, Some(verdict.exec_id)),
        (None, Some(answer)) if answer.termination.is_some() => (TERMINATED, None),
        (event, _) => kind(event.as_ref()),
    };
    let (payload, answer) = (
        request.encode_to_vec(),
        row.answer.map(Message::encode_to_vec),
    );
    let entry = Entry {
        session: row.session,
        // Sequence 0 isn't a position in the session's history.
        sequence: Some(request.sequence)
            .filter(|sequence| *sequence != 0 && !is_first_again)
            .map(number),
        time,
        received,
        kind,
        exec_id: exec_id.map(number),
        gate: row.gate.filter(|_| says_whose).map(GateIdentity::as_str),
        payload: &payload,
        answer: answer.as_deref(),
    };
    let mut is_repeat = !entry.append(transaction, head)?;
    if is_repeat && says_otherwise(transaction, row)? {
        let apart = Entry {
            sequence: None,
            ..entry
        };
        is_repeat = !apart.append(transaction, head)?;
    } else if is_repeat && answer.is_some() {
        // The question has been asked again, and answered again.
        let again = Entry {
            sequence: None,
            kind: ANSWERED,
            payload: &[],
            ..entry
        };
        again.append(transaction, head)?;
    }
    if !is_repeat {
        session_goes_on(transaction, &entry, head.position)?;
    }
    tables(
        transaction,
        execs,
        head.position,
        row,
        time,
        received,
        Repeat::of(is_repeat),
    )?;
    Ok(Written::Done)
}

/// Whether an event isn't the stored one that has its sequence, and is to be stored all the same: a loss has the sequence
/// of an event that may have been stored by itself, and a question about an exec that is listed has an answer, which would
/// be taken for one to the question before it.
fn says_otherwise(transaction: &Transaction<'_>, row: &Row<'_>) -> rusqlite::Result<bool> {
    let request = row.request;
    let may_be = match &request.event {
        Some(Event::EventsLost(_)) => true,
        Some(Event::ExecRequested(exec)) => transaction
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM events WHERE session_id = ?1 AND exec_id = ?2 AND kind <> ?3)",
            )?
            .query_row(params![row.session, number(exec.exec_id), ANSWERED], |row| row.get(0))?,
        _ => false,
    };
    if !may_be {
        return Ok(false);
    }
    let stored: Option<Vec<u8>> = transaction
        .prepare_cached("SELECT payload FROM events WHERE session_id = ?1 AND sequence = ?2")?
        .query_row(params![row.session, number(request.sequence)], |row| {
            row.get(0)
        })
        .optional()?;
    let stored = stored.and_then(|stored| v1::SessionRequest::decode(&stored[..]).ok());
    Ok(stored.is_none_or(|stored| stored.event != request.event))
}

/// Whose the sessions are of events that are read in their order.
pub(super) struct Gates<'a> {
    known: HashMap<String, Option<GateIdentity>>,
    /// Of a session whose beginning was removed its row still has it.
    kept: Statement<'a>,
}

impl<'a> Gates<'a> {
    /// With the rows of this table of sessions.
    pub(super) fn kept_in(connection: &'a Connection, sessions: &str) -> rusqlite::Result<Self> {
        let query = format!("SELECT gate FROM {sessions} WHERE session_id = ?1");
        Ok(Self {
            known: HashMap::new(),
            kept: connection.prepare(&query)?,
        })
    }

    /// Whose an event's session is, as far as that is known.
    pub(super) fn of(&mut self, entry: &Entry<'_>) -> Option<&GateIdentity> {
        let known = self.known.entry(entry.session.to_owned());
        let gate = known.or_insert_with(|| {
            let is_beginning = entry.kind == BEGINNING;
            (!is_beginning)
                .then(|| {
                    self.kept
                        .query_row([entry.session], |row| row.get::<_, Option<String>>(0))
                })
                .and_then(|read| read.ok().flatten())
                .map(GateIdentity::from)
        });
        if let Some(shown) = entry.gate {
            *gate = Some(GateIdentity::from(shown.to_owned()));
        }
        gate.as_ref()
    }
}

/// Writes into the tables what an event says that is stored at this position.
pub(super) fn replay(
    transaction: &Transaction<'_>,
    entry: &Entry<'_>,
    position: i64,
    gate: Option<&GateIdentity>,
) -> rusqlite::Result<()> {
    // What can't be read any more stays in the record all the same.
    let request = v1::SessionRequest::decode(entry.payload).unwrap_or_default();
    let answer = entry
        .answer
        .and_then(|answer| StoredAnswer::decode(answer).ok());
    let row = Row {
        session: entry.session,
        gate,
        request: &request,
        answer: answer.as_ref(),
        received: SystemTime::UNIX_EPOCH,
    };
    session_goes_on(transaction, entry, position)?;
    let mut execs = Execs::default();
    tables(
        transaction,
        &mut execs,
        position,
        &row,
        entry.time,
        entry.received,
        Repeat::No,
    )?;
    execs.write(transaction, || ())
}

/// Whether an event is in the record already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It isn't.
    No,
    /// It is.
    Yes,
}

impl Repeat {
    fn of(is_repeat: bool) -> Self {
        if is_repeat { Self::Yes } else { Self::No }
    }
}

/// Writes what an event says into the tables that are made from events. What it says of an exec is in the tables
/// once `execs` is written.
pub(super) fn tables<'a>(
    transaction: &Transaction<'_>,
    execs: &mut Execs<'a>,
    position: i64,
    row: &Row<'a>,
    time: Option<i64>,
    received: i64,
    repeat: Repeat,
) -> rusqlite::Result<()> {
    let request = row.request;
    let place = Place {
        session: row.session,
        gate: row.gate,
        position,
        time,
        received,
    };
    if repeat == Repeat::No {
        match &request.event {
            Some(Event::SessionStarted(started)) => {
                session_started(transaction, row, started, received, position)?;
            }
            Some(Event::ExecRequested(exec)) => execs.requested(place, exec, request.sequence),
            Some(Event::ExecReused(reused)) => {
                if let Some(exec) = &reused.exec {
                    execs.requested(place, exec, request.sequence);
                }
            }
            Some(Event::ExecWithdrawn(exec)) => execs.withdrawn(place, exec),
            Some(Event::ExecDecided(exec)) => execs.decided(place, exec),
            Some(Event::ExecFinished(exec)) => execs.finished(place, exec),
            Some(Event::SessionEnded(ended)) => session_ended(transaction, row, ended, time)?,
            Some(Event::EventsLost(lost)) => events_lost(transaction, row.session, lost)?,
            None => {}
        }
    }
    if let Some(answer) = row.answer {
        execs.answered(transaction, place, answer)?;
        if let Some(termination) = &answer.termination {
            session_terminated(transaction, row.session, termination)?;
        }
    }
    Ok(())
}

/// The gate that started a session, where that is known.
fn owner(transaction: &Transaction<'_>, session: &str) -> rusqlite::Result<Option<GateIdentity>> {
    let gate = transaction
        .prepare_cached("SELECT gate FROM sessions WHERE session_id = ?1")?
        .query_row([session], |row| row.get::<_, Option<String>>(0))
        .optional()?;
    Ok(gate.flatten().map(GateIdentity::from))
}

fn is_listed(transaction: &Transaction<'_>, session: &str) -> rusqlite::Result<bool> {
    transaction
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM sessions WHERE session_id = ?1)")?
        .query_row([session], |row| row.get(0))
}

fn is_cut(transaction: &Transaction<'_>, session: &str) -> rusqlite::Result<bool> {
    transaction
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM sessions s, chain_start c
                 WHERE s.session_id = ?1 AND s.first_position <= c.position)",
        )?
        .query_row([session], |row| row.get(0))
}

/// Lists a session again of which all that there was has been removed: an event says whose it is that isn't its beginning.
fn session_goes_on(
    transaction: &Transaction<'_>,
    entry: &Entry<'_>,
    position: i64,
) -> rusqlite::Result<()> {
    let Some(gate) = entry.gate.filter(|_| entry.kind != BEGINNING) else {
        return Ok(());
    };
    transaction
        .prepare_cached(
            "INSERT OR IGNORE INTO sessions
                 (session_id, received_ns, calls, labels, gate, first_position)
             VALUES (?1, ?2, 1, '{}', ?3, ?4)",
        )?
        .execute(params![entry.session, entry.received, gate, position])?;
    Ok(())
}

fn session_started(
    transaction: &Transaction<'_>,
    row: &Row<'_>,
    started: &v1::SessionStarted,
    received: i64,
    position: i64,
) -> rusqlite::Result<()> {
    let gate = started.gate.clone().unwrap_or_default();
    let sandbox = started.sandbox.clone().unwrap_or_default();
    let labels: std::collections::BTreeMap<_, _> = started.labels.iter().collect();
    let calls = started
        .resumption
        .as_ref()
        .map_or(1, |resumption| resumption.attempt);
    transaction
        .prepare_cached(
            "INSERT INTO sessions
                 (session_id, started_ns, received_ns, calls, hostname, platform, gate_version,
                  user_id, group_id, user_name, workdir, command_line, labels, sandbox, enforcement,
                  gate, first_position)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)
             ON CONFLICT (session_id) DO UPDATE SET
                 calls = max(calls, excluded.calls), gate = coalesce(gate, excluded.gate),
                 started_ns = coalesce(started_ns, excluded.started_ns),
                 hostname = coalesce(hostname, excluded.hostname),
                 platform = coalesce(platform, excluded.platform),
                 gate_version = coalesce(gate_version, excluded.gate_version),
                 user_id = coalesce(user_id, excluded.user_id),
                 group_id = coalesce(group_id, excluded.group_id),
                 user_name = coalesce(user_name, excluded.user_name),
                 workdir = coalesce(workdir, excluded.workdir),
                 command_line = coalesce(command_line, excluded.command_line),
                 labels = iif(sandbox IS NULL, excluded.labels, labels),
                 sandbox = coalesce(sandbox, excluded.sandbox),
                 enforcement = coalesce(enforcement, excluded.enforcement)",
        )?
        .execute(params![
            row.session,
            time_nanoseconds(started.start_time)
                .or_else(|| time_nanoseconds(row.request.event_time)),
            received,
            calls,
            gate.hostname,
            gate.platform,
            gate.version,
            started.user.as_ref().map(|user| user.user_id),
            started.user.as_ref().map(|user| user.group_id),
            started.user.as_ref().map(|user| user.name.clone()),
            &started.workdir[..],
            text::command_line(
                started.command.iter().map(|word| &word[..]),
                COMMAND_LINE_LIMIT
            ),
            serde_json::to_string(&labels).unwrap_or_else(|_| "{}".to_owned()),
            sandbox.backend,
            enum_name(sandbox.enforcement().as_str_name(), "ENFORCEMENT_"),
            row.gate.map(GateIdentity::as_str),
            position,
        ])?;
    for (key, value) in labels {
        transaction
            .prepare_cached("INSERT OR IGNORE INTO session_labels VALUES (?1, ?2, ?3)")?
            .execute(params![row.session, key, value])?;
    }
    Ok(())
}

fn session_ended(
    transaction: &Transaction<'_>,
    row: &Row<'_>,
    ended: &v1::SessionEnded,
    time: Option<i64>,
) -> rusqlite::Result<()> {
    use v1::session_ended::Status;
    let (exit_code, signal) = match ended.status {
        Some(Status::ExitCode(code)) => (Some(code), None),
        Some(Status::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    transaction
        .prepare_cached(
            "UPDATE sessions SET ended_ns = ?2, end_reason = ?3, end_detail = ?4, exit_code = ?5,
                 signal = ?6
             WHERE session_id = ?1",
        )?
        .execute(params![
            row.session,
            time,
            enum_name(ended.reason().as_str_name(), "SESSION_END_REASON_"),
            ended.detail,
            exit_code,
            signal,
        ])?;
    Ok(())
}

/// A gate is told again when it connects again: the first time stays.
fn session_terminated(
    transaction: &Transaction<'_>,
    session: &str,
    termination: &Termination,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "UPDATE sessions SET terminated_by = ?2, termination_reason = ?3, terminated_ns = ?4
             WHERE session_id = ?1 AND terminated_by IS NULL",
        )?
        .execute(params![
            session,
            termination.terminated_by,
            termination.reason,
            time_nanoseconds(termination.termination_time),
        ])?;
    Ok(())
}

/// The range of a session that begins last, of those that begin no later than a sequence.
const LAST_TO_BEGIN_BY: &str = "SELECT first_sequence, last_sequence FROM lost_ranges
     WHERE session_id = ?1 AND first_sequence <= ?2 ORDER BY first_sequence DESC LIMIT 1";

/// Ranges of losses may repeat and overlap: kept as their union. No two of those that are kept overlap, so those that
/// a new one does are neighbours.
///
/// Where there are too many, a further one is joined with its neighbour: of the numbers between them those that are on
/// record count as stored all the same. However it is joined, each range that was told lies in one that is kept.
fn events_lost(
    transaction: &Transaction<'_>,
    session: &str,
    loss: &v1::EventsLost,
) -> rusqlite::Result<()> {
    let bounded = |sequence: u64| i64::try_from(sequence).unwrap_or(i64::MAX);
    let (mut first, mut last) = (bounded(loss.first_sequence), bounded(loss.last_sequence));
    if first > last {
        return Ok(());
    }
    let range = |query: &str, place: i64| {
        transaction
            .prepare_cached(query)?
            .query_row(params![session, place], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
            })
            .optional()
    };
    // If that of those that begin no later than this ends doesn't overlap, none does.
    let below = range(LAST_TO_BEGIN_BY, last)?;
    if let Some((_, end)) = below.filter(|(_, end)| *end >= first) {
        last = last.max(end);
        let around = range(LAST_TO_BEGIN_BY, first)?;
        if let Some((begin, _)) = around.filter(|(_, end)| *end >= first) {
            first = begin;
        }
    } else if lost_ranges(transaction, session)? >= MOST_LOST_RANGES {
        if let Some((begin, _)) = below {
            first = begin;
        } else if let Some((_, end)) = range(
            "SELECT first_sequence, last_sequence FROM lost_ranges
             WHERE session_id = ?1 AND first_sequence > ?2 ORDER BY first_sequence LIMIT 1",
            last,
        )? {
            last = end;
        }
    }
    transaction
        .prepare_cached(
            "DELETE FROM lost_ranges WHERE session_id = ?1 AND first_sequence BETWEEN ?2 AND ?3",
        )?
        .execute(params![session, first, last])?;
    transaction
        .prepare_cached("INSERT INTO lost_ranges VALUES (?1, ?2, ?3)")?
        .execute(params![session, first, last])?;
    Ok(())
}

fn lost_ranges(transaction: &Transaction<'_>, session: &str) -> rusqlite::Result<i64> {
    transaction
        .prepare_cached("SELECT count(*) FROM lost_ranges WHERE session_id = ?1")?
        .query_row([session], |row| row.get(0))
}
