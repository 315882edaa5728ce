//! Whether a database that is open is still the one at its path. One whose file was removed or replaced takes
//! what is written without an error, and nobody ever sees that.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files of an open database, as they were when it was opened. It has them open, so nothing else gets their
/// numbers.
#[derive(Debug)]
pub(in crate::policyd) struct Place {
    database: PathBuf,
    database_id: FileId,
    log: PathBuf,
    /// `None` where the file system is one for which SQLite keeps no log of writes.
    log_id: Option<FileId>,
}

/// Device and inode.
type FileId = (u64, u64);

/// A file is no longer where it was.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} was removed, moved or replaced while it was in use, and nobody would see what is written to it now; move back \
     what was there, or restart execgate-policyd, which goes on with what is there now and begins a new file where \
     there is none",
    path.display()
)]
pub(in crate::policyd) struct Displaced {
    path: PathBuf,
}

impl Place {
    /// Of a database that is open for writing and has been written.
    pub(in crate::policyd) fn of(database: &Path) -> io::Result<Self> {
        let log = beside(database, "-wal");
        Ok(Self {
            database: database.to_owned(),
            database_id: id(database)?,
            log_id: id(&log).ok(),
            log,
        })
    }

    /// Looks whether all is still there. By path, for to open and close one of the files would end SQLite's locks.
    pub(in crate::policyd) fn check(&self) -> Result<(), Displaced> {
        let displaced = if id(&self.database).ok() != Some(self.database_id) {
            &self.database
        } else if id(&self.log).ok() != self.log_id {
            &self.log
        } else {
            return Ok(());
        };
        Err(Displaced {
            path: displaced.clone(),
        })
    }
}

/// A file that SQLite has beside a database.
pub(super) fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn id(path: &Path) -> io::Result<FileId> {
    path.metadata().map(|found| (found.dev(), found.ino()))
}
