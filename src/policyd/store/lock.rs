//! Who writes a store: one process, until it ends in whatever way.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::error::StoreError;

/// The file that is locked, beside the database: what SQLite does with its own is SQLite's affair.
const FILE_NAME: &str = "events.lock";
/// How long a process that is just ending is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// The right to write a store, until it is dropped or the process ends. Whoever only reads needs none.
#[derive(Debug)]
pub(super) struct WriteLock {
    _file: File,
}

impl WriteLock {
    /// Takes it, in a directory that is there.
    pub(super) fn take(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(FILE_NAME);
        let failed = |source| StoreError::Lock {
            path: path.clone(),
            source,
        };
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let began = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if began.elapsed() < PATIENCE => {
                    std::thread::sleep(PAUSE);
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(StoreError::InUse {
                        directory: directory.to_owned(),
                        process: holder(&mut file),
                    });
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
        // For whoever finds it locked.
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(failed)?;
        Ok(Self { _file: file })
    }
}

/// The process that says in the file that it has the lock.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim_end().parse().ok()
}
