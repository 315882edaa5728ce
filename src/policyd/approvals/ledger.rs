//! What must outlive the service: open approvals, decisions and who made them, sessions that were ended.
//! In a database of its own beside the events', written by one thread.

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use prost::Message as _;
use rusqlite::{Connection, OpenFlags, Transaction, params};
use tokio::sync::{mpsc, oneshot};

use super::approval::QuestionDigest;
use super::desk::{CLOSED_BYTES, WAITING_BYTES, WAITING_IN_ALL, size_in_memory};
use super::grants::Remembered;
use crate::pb::approval::v1 as pb;
use crate::policyd::store::{self, StoreError};
use crate::policyd::throttle::Throttle;

const FILE_NAME: &str = "operations.sqlite";
/// Marks a database as one of ours: "EXGO".
const APPLICATION_ID: i64 = 0x4558_474f;
const SCHEMA_VERSION: i64 = 1;
/// How long another process's lock is waited for.
const BUSY_TIME: Duration = Duration::from_secs(5);
/// Most changes that wait to be written, and most of one commit.
const QUEUED: usize = 1_024;
const BATCH: usize = 256;
/// How long a decision may wait to be taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// Closed approvals, and ended sessions, that are kept; the earliest go.
const KEPT: i64 = 100_000;
/// Most bytes of the database, but for what is open: once it has more, the earliest go until a quarter is free.
const KEPT_BYTES: i64 = 256 << 20;
/// How often their number is looked at, in commits.
const TRIMMING: u32 = 256;

static FAILURES: Throttle = Throttle::new(Duration::from_secs(5));

const SCHEMA: &str = "
CREATE TABLE approvals (
    approval_id TEXT PRIMARY KEY,
    state       INTEGER NOT NULL,
    opened_ns   INTEGER NOT NULL,
    resolved_by TEXT,
    session_id  TEXT NOT NULL,
    exec_id     INTEGER NOT NULL,
    question    BLOB NOT NULL,
    circumstances BLOB NOT NULL,
    approval    BLOB NOT NULL
);
CREATE INDEX approvals_by_state ON approvals (state, opened_ns);
CREATE INDEX approvals_by_exec ON approvals (session_id, exec_id);
CREATE TABLE grants (
    approval_id TEXT PRIMARY KEY,
    circumstances BLOB NOT NULL,
    effect      BLOB NOT NULL,
    granted     BLOB NOT NULL
);
CREATE TABLE terminations (
    session_id  TEXT PRIMARY KEY,
    operator    TEXT NOT NULL,
    reason      TEXT NOT NULL,
    at_ns       INTEGER NOT NULL
);
";

/// A session that an operator ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::policyd) struct Termination {
    pub(in crate::policyd) session: String,
    pub(in crate::policyd) operator: String,
    pub(in crate::policyd) reason: String,
    pub(in crate::policyd) at: SystemTime,
}

/// An approval, with what isn't told of it.
#[derive(Debug, Clone)]
pub(super) struct Recorded {
    pub(super) approval: Arc<pb::Approval>,
    pub(super) question: QuestionDigest,
    pub(super) circumstances: [u8; 32],
}

/// What is to be written.
#[derive(Debug)]
pub(super) enum Change {
    Approval(Box<Recorded>),
    /// A decision with what is remembered of it.
    Decision(Box<Recorded>, Option<Box<Remembered>>),
    Forget(Vec<String>),
    Termination(Termination),
    /// Nothing: what is queued is written, and that is all.
    Close,
}

/// What a service begins with.
#[derive(Debug, Default)]
pub(in crate::policyd) struct Kept {
    /// The earliest first.
    pub(super) approvals: Vec<Recorded>,
    pub(super) grants: Vec<Remembered>,
}

/// Why a change wasn't written.
#[derive(Debug, Clone, thiserror::Error)]
#[error("it couldn't be recorded: {0}")]
pub(in crate::policyd) struct NotRecorded(String);

/// The writer's address. Clones are the same.
#[derive(Debug, Clone)]
pub(in crate::policyd) struct Ledger {
    queue: mpsc::Sender<Entry>,
    writer: Arc<Mutex<Option<JoinHandle<()>>>>,
}

struct Entry {
    change: Change,
    reply: Option<oneshot::Sender<Result<(), NotRecorded>>>,
}

impl Entry {
    fn answer(self, written: Result<(), NotRecorded>) {
        if let Some(reply) = self.reply {
            // Whoever waited may have gone.
            let _ = reply.send(written);
        }
    }
}

impl Ledger {
    /// Opens the ledger in a directory, which is there; makes its file where there is none. Gives what is in
    /// it, as far as a service needs that: what is open, and the latest of what isn't.
    pub(in crate::policyd) fn open(
        directory: &Path,
        latest: usize,
    ) -> Result<(Self, Loaded), StoreError> {
        let path = directory.join(FILE_NAME);
        let connection = open(&path)?;
        let place = store::Place::of(&path).map_err(|source| StoreError::CreateFile {
            path: path.clone(),
            source,
        })?;
        let loaded =
            load(&connection, latest).map_err(|source| StoreError::Open { path, source })?;
        let (queue, entries) = mpsc::channel(QUEUED);
        let writer = std::thread::Builder::new()
            .name("approvals".to_owned())
            .spawn(move || {
                Writer {
                    connection,
                    place,
                    commits: 0,
                    most_bytes: KEPT_BYTES,
                }
                .run(entries);
            })
            .map_err(|source| StoreError::Thread { source })?;
        let ledger = Self {
            queue,
            writer: Arc::new(Mutex::new(Some(writer))),
        };
        Ok((ledger, loaded))
    }

    /// Has a change written soon, without waiting.
    pub(super) fn note(&self, change: Change) {
        let entry = Entry {
            change,
            reply: None,
        };
        if self.queue.try_send(entry).is_err()
            && let Some(held_back) = FAILURES.admit()
        {
            tracing::error!(
                held_back,
                "approvals can't be recorded as fast as they come; a restart of the service forgets some"
            );
        }
    }

    /// Writes a change, and returns once it is on disk. What it gives up waiting for isn't written any more, unless the
    /// disk has it already.
    pub(super) async fn write(&self, change: Change) -> Result<(), NotRecorded> {
        let (reply, written) = oneshot::channel();
        let entry = Entry {
            change,
            reply: Some(reply),
        };
        let written = async {
            self.queue.send(entry).await.ok()?;
            written.await.ok()
        };
        match tokio::time::timeout(PATIENCE + BUSY_TIME, written).await {
            Ok(Some(written)) => written,
            Ok(None) => Err(NotRecorded("the service is stopping".to_owned())),
            Err(_) => Err(NotRecorded("the disk is too slow".to_owned())),
        }
    }

    /// Writes that a session was ended by an operator.
    pub(in crate::policyd) async fn write_termination(
        &self,
        termination: Termination,
    ) -> Result<(), NotRecorded> {
        self.write(Change::Termination(termination)).await
    }

    /// Writes what is queued, and closes. Blocks, for some seconds at most.
    pub(in crate::policyd) fn close(self) {
        let Self { queue, writer } = self;
        let began = Instant::now();
        let entry = || Entry {
            change: Change::Close,
            reply: None,
        };
        while let Err(mpsc::error::TrySendError::Full(_)) = queue.try_send(entry()) {
            if began.elapsed() > 2 * PATIENCE {
                tracing::error!("what is known of approvals can't be written; leaving it as it is");
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let writer = writer
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the thread that records approvals has panicked");
        }
    }
}

/// What a ledger had when it was opened.
#[derive(Debug, Default)]
pub(in crate::policyd) struct Loaded {
    pub(in crate::policyd) kept: Kept,
    pub(in crate::policyd) terminations: Vec<Termination>,
}

fn open(path: &Path) -> Result<Connection, StoreError> {
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .and_then(|file| file.set_permissions(std::fs::Permissions::from_mode(0o600)))
        .map_err(|source| StoreError::CreateFile {
            path: path.to_owned(),
            source,
        })?;
    let open_error = |source| StoreError::Open {
        path: path.to_owned(),
        source,
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(open_error)?;
    connection.busy_timeout(BUSY_TIME).map_err(open_error)?;
    check(&connection, path)?;
    let prepare = |connection: &mut Connection| {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // A decision that was acknowledged survives a power failure.
        connection.pragma_update(None, "synchronous", "FULL")?;
        let transaction =
            connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let version: i64 =
            transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version == 0 {
            transaction.execute_batch(SCHEMA)?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        transaction.commit()
    };
    prepare(&mut connection).map_err(open_error)?;
    Ok(connection)
}

/// Whether the database is ours, before anything in it is changed.
fn check(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let number = |name: &str| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
            .map_err(|source| StoreError::Open {
                path: path.to_owned(),
                source,
            })
    };
    let (application, version) = (number("application_id")?, number("user_version")?);
    let path: PathBuf = path.to_owned();
    if application != APPLICATION_ID && (application != 0 || version != 0) {
        return Err(StoreError::Foreign { path });
    }
    if version > SCHEMA_VERSION {
        return Err(StoreError::Newer {
            path,
            found: version,
            known: SCHEMA_VERSION,
        });
    }
    Ok(())
}

fn load(connection: &Connection, latest: usize) -> rusqlite::Result<Loaded> {
    let pending = i32::from(pb::ApprovalState::Pending);
    let open =
        "SELECT rowid, opened_ns FROM approvals WHERE state = ?1 ORDER BY opened_ns DESC LIMIT ?2";
    let closed =
        "SELECT rowid, opened_ns FROM approvals WHERE state <> ?1 ORDER BY opened_ns DESC LIMIT ?2";
    let mut found = latest_of(connection, open, pending, WAITING_IN_ALL, WAITING_BYTES)?;
    found.extend(latest_of(
        connection,
        closed,
        pending,
        latest,
        CLOSED_BYTES,
    )?);
    found.sort_by_key(|(opened, _)| *opened);
    let approvals = found.into_iter().map(|(_, recorded)| recorded).collect();
    let latest = i64::try_from(latest).unwrap_or(i64::MAX);
    let grants = connection
        .prepare("SELECT granted, effect, circumstances FROM grants ORDER BY rowid")?
        .query_map([], |row| {
            let (grant, effect): (Vec<u8>, Vec<u8>) = (row.get(0)?, row.get(1)?);
            let circumstances = row.get(2)?;
            let grant = pb::Grant::decode(&grant[..]).ok();
            let effect = pb::Approval::decode(&effect[..]).ok();
            Ok(grant.zip(effect).map(|(grant, effect)| Remembered {
                grant,
                effect: effect.effect,
                asked: effect.asked,
                circumstances,
            }))
        })?
        .filter_map(Result::transpose)
        .collect::<rusqlite::Result<_>>()?;
    let terminations = connection
        .prepare(
            "SELECT session_id, operator, reason, at_ns FROM terminations ORDER BY at_ns DESC LIMIT ?1",
        )?
        .query_map([latest], |row| {
            Ok(Termination {
                session: row.get(0)?,
                operator: row.get(1)?,
                reason: row.get(2)?,
                at: SystemTime::UNIX_EPOCH
                    + Duration::from_nanos(row.get::<_, i64>(3)?.unsigned_abs()),
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Loaded {
        kept: Kept { approvals, grants },
        terminations,
    })
}

/// The latest of those that a query finds, the earliest first, with when they were opened: as many as fit in so many
/// bytes of memory. Each is read by itself, so that no more of them is there at any time.
fn latest_of(
    connection: &Connection,
    query: &str,
    pending: i32,
    most: usize,
    most_bytes: usize,
) -> rusqlite::Result<Vec<(i64, Recorded)>> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let rows: Vec<(i64, i64)> = connection
        .prepare(query)?
        .query_map(params![pending, most], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut read = connection
        .prepare("SELECT approval, question, circumstances FROM approvals WHERE rowid = ?1")?;
    let (mut found, mut bytes) = (Vec::new(), 0);
    for (rowid, opened) in rows {
        let (encoded, question, circumstances) = read.query_row([rowid], |row| {
            Ok((row.get::<_, Vec<u8>>(0)?, row.get(1)?, row.get(2)?))
        })?;
        // A row that can't be read, of a later version for example, is passed over: it denies.
        let Ok(approval) = pb::Approval::decode(&encoded[..]) else {
            continue;
        };
        bytes += size_in_memory(&approval);
        if bytes > most_bytes {
            break;
        }
        let recorded = Recorded {
            approval: Arc::new(approval),
            question,
            circumstances,
        };
        found.push((opened, recorded));
    }
    found.reverse();
    Ok(found)
}

struct Writer {
    connection: Connection,
    place: store::Place,
    commits: u32,
    /// From how many bytes on it is trimmed.
    most_bytes: i64,
}

impl Writer {
    fn run(mut self, mut entries: mpsc::Receiver<Entry>) {
        while let Some(first) = entries.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < BATCH
                && let Ok(next) = entries.try_recv()
            {
                batch.push(next);
            }
            let is_last = batch
                .iter()
                .any(|entry| matches!(entry.change, Change::Close));
            // Whoever was told that it isn't recorded is to be right.
            batch.retain(|entry| !entry.reply.as_ref().is_some_and(oneshot::Sender::is_closed));
            let began = Instant::now();
            let written = self.write(&batch);
            // One that can't be written takes no others with it. Where it's another's lock, there would be no end of waiting.
            if written.is_err() && batch.len() > 1 && began.elapsed() < BUSY_TIME / 2 {
                for entry in batch {
                    let written = self.write(std::slice::from_ref(&entry));
                    entry.answer(written);
                }
            } else {
                for entry in batch {
                    entry.answer(written.clone());
                }
            }
            if is_last {
                return;
            }
        }
    }

    fn write(&mut self, batch: &[Entry]) -> Result<(), NotRecorded> {
        self.commit(batch).map_err(|error| {
            if let Some(held_back) = FAILURES.admit() {
                tracing::error!(held_back, "recording approvals: {error}");
            }
            NotRecorded(error.to_string())
        })
    }

    fn commit(&mut self, batch: &[Entry]) -> Result<(), store::WriteError> {
        let transaction = self.connection.transaction()?;
        for entry in batch {
            match &entry.change {
                Change::Approval(recorded) => write_approval(&transaction, recorded)?,
                Change::Decision(recorded, remembered) => {
                    write_approval(&transaction, recorded)?;
                    if let Some(remembered) = remembered {
                        write_grant(&transaction, remembered)?;
                    }
                }
                Change::Forget(grants) => {
                    let mut forget =
                        transaction.prepare_cached("DELETE FROM grants WHERE approval_id = ?1")?;
                    for grant in grants {
                        forget.execute([grant])?;
                    }
                }
                Change::Close => {}
                Change::Termination(termination) => {
                    transaction.execute(
                        "INSERT OR IGNORE INTO terminations VALUES (?1, ?2, ?3, ?4)",
                        params![
                            termination.session,
                            termination.operator,
                            termination.reason,
                            nanoseconds(termination.at)
                        ],
                    )?;
                }
            }
        }
        self.commits = self.commits.wrapping_add(1);
        if self.commits.is_multiple_of(TRIMMING) {
            trim(&transaction)?;
        }
        if used_bytes(&transaction)? > self.most_bytes {
            trim_bytes(&transaction)?;
            // What can't be trimmed isn't tried again each time.
            let most = used_bytes(&transaction)? + KEPT_BYTES / 4;
            self.most_bytes = most.max(KEPT_BYTES);
        }
        self.place.check()?;
        Ok(transaction.commit()?)
    }
}

fn trim(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute(
        "DELETE FROM approvals WHERE state <> ?1 AND rowid IN
             (SELECT rowid FROM approvals ORDER BY opened_ns DESC LIMIT -1 OFFSET ?2)",
        params![i32::from(pb::ApprovalState::Pending), KEPT],
    )?;
    transaction.execute(
        "DELETE FROM terminations WHERE rowid IN
             (SELECT rowid FROM terminations ORDER BY at_ns DESC LIMIT -1 OFFSET ?1)",
        [KEPT],
    )?;
    Ok(())
}

fn used_bytes(transaction: &Transaction<'_>) -> rusqlite::Result<i64> {
    let number =
        |name: &str| transaction.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    Ok((number("page_count")? - number("freelist_count")?) * number("page_size")?)
}

fn trim_bytes(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    // Their lengths first: sorted with the approvals, it would have a copy of all of them.
    transaction.execute(
        "WITH sizes AS MATERIALIZED
             (SELECT rowid AS id, opened_ns, length(approval) AS size FROM approvals WHERE state <> ?1)
         DELETE FROM approvals WHERE rowid IN
             (SELECT id FROM
                 (SELECT id, sum(size) OVER (ORDER BY opened_ns DESC, id DESC) AS total FROM sizes)
             WHERE total > ?2)",
        params![i32::from(pb::ApprovalState::Pending), KEPT_BYTES / 4 * 3],
    )?;
    Ok(())
}

fn write_approval(transaction: &Transaction<'_>, recorded: &Recorded) -> rusqlite::Result<()> {
    let approval = &recorded.approval;
    let session = approval.session.as_ref();
    let resolution = approval.resolution.as_ref();
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO approvals VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            approval.approval_id,
            approval.state,
            nanoseconds(super::approval::time(approval.opened_at)),
            resolution.map(|resolution| &resolution.resolved_by),
            session.map_or("", |session| session.session_id.as_str()),
            approval
                .exec
                .as_ref()
                .map_or(0, |exec| exec.exec_id.cast_signed()),
            recorded.question,
            recorded.circumstances,
            approval.encode_to_vec(),
        ])?;
    Ok(())
}

fn write_grant(transaction: &Transaction<'_>, remembered: &Remembered) -> rusqlite::Result<()> {
    let effect = pb::Approval {
        effect: remembered.effect.clone(),
        asked: remembered.asked.clone(),
        ..pb::Approval::default()
    };
    transaction
        .prepare_cached("INSERT OR REPLACE INTO grants VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![
            remembered.grant.approval_id,
            remembered.circumstances,
            effect.encode_to_vec(),
            remembered.grant.encode_to_vec(),
        ])?;
    Ok(())
}

fn nanoseconds(time: SystemTime) -> i64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|elapsed| i64::try_from(elapsed.as_nanos()).ok())
        .unwrap_or_default()
}
