use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use super::place::Displaced;

/// Why a store can't be opened. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory can't be made.
    #[error("creating the data directory {}: {source}", path.display())]
    CreateDirectory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file can't be made, or its mode can't be set.
    #[error("creating the {} {}: {source}; the directory must be writable", name(path), path.display())]
    CreateFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The lock that its writer holds can't be had, for another reason than that another process has it.
    #[error("locking the event store, {}: {source}; the directory must be writable, and on a file system with locks", path.display())]
    Lock {
        /// The file that is locked.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another service writes the store.
    #[error(
        "the event store in {} is in use: another execgate-policyd{} writes it; end that one first, or give this one a \
         directory of its own (--data DIR)",
        directory.display(),
        numbered(*process)
    )]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// The other process, by the number that it has itself, where it could be learnt.
        process: Option<u32>,
    },
    /// The store is in a directory that isn't to be looked into.
    #[error(
        "reading the event store {}: {source}; its directory is the service's alone: ask as its user or as root, or \
         ask the service (--service URL)",
        path.display()
    )]
    Closed {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no store to read.
    #[error(
        "there is no event store at {}: give the directory that execgate-policyd was started with \
         (--data DIR)",
        path.display()
    )]
    Missing {
        /// The file that was looked for.
        path: PathBuf,
    },
    /// The database can't be opened.
    #[error("opening the {} {}: {source}; {}", name(path), path.display(), advice(source))]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// It can only be read where something can be written: its latest events are in the log beside it.
    #[error(
        "opening the event store {}: {source}; {} beside it holds events that aren't in it yet, and this user can't \
         write there: copy both to a directory that this user may write, or make the copy anew, by \
         `sqlite3 FILE \".backup COPY\"`",
        path.display(),
        log.display()
    )]
    Unmerged {
        /// The database.
        path: PathBuf,
        /// The log.
        log: PathBuf,
        /// Why it can't be opened as it is.
        source: rusqlite::Error,
    },
    /// The database is something else's.
    #[error(
        "opening the {} {}: it is a database of another program; give a directory of its own",
        name(path), path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The database was written by a later version.
    #[error(
        "opening the {} {}: its schema is version {found}, and this program knows versions up \
         to {known}; use a newer execgate-policyd, or another directory",
        name(path), path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of the file.
        found: i64,
        /// The newest version that is known.
        known: i64,
    },
    /// The database was written by an earlier version.
    #[error(
        "opening the event store {}: an earlier version wrote it; start this version's execgate-policyd \
         with it once, which brings it up to date",
        path.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
    },
    /// The thread that writes couldn't be started.
    #[error("starting the thread that writes events: {source}")]
    Thread {
        /// Why.
        source: std::io::Error,
    },
}

/// Why what is to be stored isn't. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub(in crate::policyd) enum WriteError {
    /// The database can't be written.
    #[error("{0}; {advice}", advice = advice(.0))]
    Database(#[from] rusqlite::Error),
    /// It can, and is no longer at its path.
    #[error(transparent)]
    Displaced(#[from] Displaced),
}

impl StoreError {
    /// Whether another process has the database locked.
    pub(super) fn is_busy(&self) -> bool {
        let Self::Open { source, .. } = self else {
            return false;
        };
        source.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
    }
}

/// What a database of a data directory is.
fn name(path: &Path) -> &'static str {
    if path.ends_with(super::schema::FILE_NAME) {
        "event store"
    } else {
        "store of approvals and ended sessions"
    }
}

fn numbered(process: Option<u32>) -> String {
    process.map_or_else(String::new, |process| format!(" (process {process})"))
}

/// What can be done about a failure of the database.
pub(super) fn advice(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "free some space on its file system",
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            "check that this user may write the file and its directory"
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            "move the file away, and a new one is begun; `sqlite3 FILE .recover` may save what it holds"
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another process holds it locked; end that first"
        }
        Some(ErrorCode::SystemIoFailure) => "check the disk, and the system's log",
        _ => "check the file with `sqlite3 FILE 'pragma integrity_check'`",
    }
}
