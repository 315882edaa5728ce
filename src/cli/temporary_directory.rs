//! A session's own temporary directory.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};

use super::Failure;
use crate::sys::{host, random};

const PREFIX: &str = "execgate-session-";
/// How often a name is tried: another process may take a directory for an abandoned one before it is locked.
const MOST_TRIES: u32 = 8;
/// Directories within each other whose permissions are put right so that they can be removed.
const MOST_LEVELS: u32 = 64;
/// Opens a directory whatever its permissions are, and nothing else.
const ITSELF: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A session's own temporary directory, removed with all in it when dropped.
///
/// It is locked for as long as its process lives: what a killed process left is removed by the next one of that user.
#[derive(Debug)]
pub(super) struct TemporaryDirectory {
    path: PathBuf,
    _lock: File,
}

impl TemporaryDirectory {
    pub(super) fn new() -> Result<Self, Failure> {
        let parent = std::env::temp_dir();
        let make = || {
            let parent = parent.canonicalize()?;
            let made = Self::make(&parent)?;
            // Nobody waits for it, and what it doesn't come to is for the next one.
            let _ = std::thread::Builder::new()
                .name("temporary".to_owned())
                .spawn(move || remove_abandoned(&parent));
            io::Result::Ok(made)
        };
        make().map_err(|error| {
            Failure::saying(format!(
                "cannot make a temporary directory for the session in {}: {error}",
                parent.display()
            ))
            .hint("set TMPDIR to a directory that can be written")
        })
    }

    fn make(parent: &Path) -> io::Result<Self> {
        for _ in 0..MOST_TRIES {
            let name = random::sixteen_bytes()?
                .map(|byte| format!("{byte:02x}"))
                .concat();
            let path = parent.join(format!("{PREFIX}{}", &name[..12]));
            // Nobody else's, and never one that is there already.
            DirBuilder::new().mode(0o700).create(&path)?;
            if let Some(lock) = lock(&path) {
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(io::Error::other("others remove it at once"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Locks a directory of this user's, unless another process has it, or it isn't there any more.
fn lock(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory: File = rustix::fs::open(path, flags, Mode::empty()).ok()?.into();
    flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    let locked = directory.metadata().ok()?;
    let named = path.symlink_metadata().ok()?;
    let is_own = locked.uid() == host::user().id;
    (is_own && (locked.dev(), locked.ino()) == (named.dev(), named.ino())).then_some(directory)
}

/// Removes what processes of this user left that were killed.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = parent.read_dir() else {
        return;
    };
    for entry in entries.flatten() {
        let is_of_a_session = entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes());
        if is_of_a_session && let Some(_lock) = lock(&entry.path()) {
            remove(&entry.path());
        }
    }
}

/// Removes a directory with all in it, following no links. What can't be removed is for whoever empties the parent.
fn remove(path: &Path) {
    if std::fs::remove_dir_all(path).is_err()
        && let Ok(directory) = rustix::fs::open(path, ITSELF, Mode::empty())
    {
        permit_removal(&directory, MOST_LEVELS);
        let _ = std::fs::remove_dir_all(path);
    }
}

/// Lets the user remove what is in a directory: only a session that took the permission away needs it.
fn permit_removal(directory: &OwnedFd, levels: u32) {
    // By its descriptor, so that no link that takes its place is followed.
    let name = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let Some(levels) = levels.checked_sub(1) else {
        return;
    };
    let Ok(entries) = rustix::fs::chmod(&name, Mode::RWXU)
        .map_err(io::Error::from)
        .and_then(|()| std::fs::read_dir(&name))
    else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Ok(below) = openat(directory, entry.file_name(), ITSELF, Mode::empty())
        {
            permit_removal(&below, levels);
        }
    }
}
