//! A session's own temporary directory.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, fstat, mkdirat, openat, statat};

use super::Failure;
use super::removal::{self, by_number};
use crate::sys::file_system::{self, Kind};
use crate::sys::{host, random};

const PREFIX: &str = "execgate-session-";
/// How often a name is tried: another process may take a directory for an abandoned one before it is locked.
const MOST_TRIES: u32 = 8;

/// A session's own temporary directory, removed with all in it when dropped.
///
/// It is locked for as long as its process lives: what a killed process left is removed by the next one of that user.
#[derive(Debug)]
pub(super) struct TemporaryDirectory {
    path: PathBuf,
    parent: Arc<Parent>,
    name: String,
    _lock: OwnedFd,
}

/// The directory that they are in, open. Where a session can write around it, its path leads where the session says.
#[derive(Debug)]
struct Parent(OwnedFd);

impl TemporaryDirectory {
    pub(super) fn new() -> Result<Self, Failure> {
        // An empty value is none, as to most programs.
        let parent = std::env::var_os("TMPDIR").filter(|parent| !parent.is_empty());
        let parent = parent.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
        let make = || {
            let path = parent.canonicalize()?;
            let parent = Arc::new(Parent::open(&path)?);
            let made = Self::make(&path, Arc::clone(&parent))?;
            // Nobody waits for it, and what it doesn't come to is for the next one.
            let _ = std::thread::Builder::new()
                .name("temporary".to_owned())
                .spawn(move || parent.remove_abandoned());
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

    fn make(path: &Path, parent: Arc<Parent>) -> io::Result<Self> {
        for _ in 0..MOST_TRIES {
            let bytes = random::sixteen_bytes()?
                .map(|byte| format!("{byte:02x}"))
                .concat();
            let name = format!("{PREFIX}{}", &bytes[..12]);
            // Nobody else's, and never one that is there already.
            mkdirat(&parent.0, &*name, Mode::RWXU)?;
            if let Some(lock) = parent.lock(name.as_ref()) {
                return Ok(Self {
                    path: path.join(&name),
                    parent,
                    name,
                    _lock: lock,
                });
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
        removal::remove(&self.parent.0, self.name.as_ref());
    }
}

impl Parent {
    fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Locks a directory of this user's, unless another process has it, or it isn't there any more.
    fn lock(&self, name: &Path) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(&self.0, name, flags, Mode::empty()).ok()?;
        flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
        let locked = fstat(&directory).ok()?;
        let named = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_own = locked.st_uid == host::user().id;
        let is_named = (locked.st_dev, locked.st_ino) == (named.st_dev, named.st_ino);
        (is_own && is_named).then_some(directory)
    }

    /// Removes what processes of this user left that were killed.
    fn remove_abandoned(&self) {
        let path = by_number(&self.0);
        // Elsewhere other machines may use the same directory, whose locks aren't seen here.
        let is_this_machines = file_system::of(&path)
            .is_ok_and(|found| matches!(found.kind, Kind::Local | Kind::Memory));
        let (true, Ok(entries)) = (is_this_machines, path.read_dir()) else {
            return;
        };
        for entry in entries.flatten() {
            let name = PathBuf::from(entry.file_name());
            let is_of_a_session = entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(PREFIX.as_bytes());
            if is_of_a_session && let Some(_lock) = self.lock(&name) {
                removal::remove(&self.0, name.as_os_str());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that can write what is around its temporary directory can have its path lead elsewhere.
    #[test]
    fn what_is_removed_is_where_it_was_made_whatever_its_path_leads_to() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let [path, moved] = ["tmp", "moved"].map(|name| place.path().join(name));
        std::fs::create_dir(&path).unwrap();
        let parent = Arc::new(Parent::open(&path).unwrap());
        let own = TemporaryDirectory::make(&path, Arc::clone(&parent)).unwrap();
        let abandoned = format!("{PREFIX}abandoned");
        std::fs::create_dir(path.join(&abandoned)).unwrap();
        // The same names are another's elsewhere, by way of a link too.
        std::fs::rename(&path, &moved).unwrap();
        let names = [own.name.clone(), abandoned];
        let others = names
            .each_ref()
            .map(|name| place.path().join("others").join(name));
        for other in &others {
            std::fs::create_dir_all(other.join("below")).unwrap();
        }
        std::os::unix::fs::symlink("others", &path).unwrap();
        let link = format!("{PREFIX}link");
        std::os::unix::fs::symlink(&others[0], moved.join(&link)).unwrap();

        let left = || {
            let entries = moved.read_dir().unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect::<std::collections::BTreeSet<_>>()
        };
        parent.remove_abandoned();
        assert_eq!(left(), [own.name.clone(), link.clone()].into());
        drop(own);
        assert_eq!(left(), [link].into());
        assert!(others.iter().all(|other| other.join("below").is_dir()));
    }
}
