use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::JournalError;
use super::file::{self, JournalFile, remove_with_log};
use super::tail::{self, Tail};
use crate::sys::{host, random};

const PREFIX: &str = "gate-";
const SUFFIX: &str = ".sqlite";
/// What a file that can't be read is called from then on, behind its name.
const CORRUPT: &str = ".corrupt";

/// An empty file that is older than this belongs to no gate that is about to write it.
const BEGINNING: Duration = Duration::from_secs(60);

/// The directory that the gates of one user share: a file for each gate.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    path: PathBuf,
    /// Where gates' tails are.
    memory: Vec<PathBuf>,
}

impl Directory {
    /// Opens it; makes it where it isn't there yet.
    pub(super) fn open(named: &Path) -> Result<Self, JournalError> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(named)
            .or_else(|error| match std::fs::symlink_metadata(named) {
                // Below it is said what it is.
                Ok(_) => Ok(()),
                Err(_) => Err(error),
            })
            .map_err(|source| JournalError::Create {
                path: named.to_owned(),
                source,
            })?;
        Self::existing(named)
    }

    /// Opens it where it is there.
    pub(super) fn existing(named: &Path) -> Result<Self, JournalError> {
        let system = |source| JournalError::System {
            path: named.to_owned(),
            source,
        };
        let found = std::fs::symlink_metadata(named).map_err(system)?;
        if !found.is_dir() {
            return Err(JournalError::NoDirectory {
                path: named.to_owned(),
                found: if found.is_symlink() {
                    "a symbolic link"
                } else {
                    "a file"
                },
            });
        }
        let user = host::user().id;
        if found.uid() != user {
            return Err(JournalError::Foreign {
                path: named.to_owned(),
                owner: found.uid(),
                user,
            });
        }
        if found.mode() & 0o077 != 0 {
            return Err(JournalError::Exposed {
                path: named.to_owned(),
                mode: found.mode() & 0o7777,
            });
        }
        // SQLite is told to follow no link, wherever in the path.
        let path = std::fs::canonicalize(named).map_err(system)?;
        let memory = tail::places(&path);
        Ok(Self { path, memory })
    }

    /// Makes a file of a new gate, which holds its lock from then on.
    pub(super) fn create(&self) -> Result<JournalFile, JournalError> {
        loop {
            let system = |source| JournalError::System {
                path: self.path.clone(),
                source,
            };
            let number = u128::from_ne_bytes(random::sixteen_bytes().map_err(system)?);
            let path = self.path.join(format!("{PREFIX}{number:032x}{SUFFIX}"));
            // Closed before SQLite opens it: closing it later would give up SQLite's lock.
            let made = std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .and_then(|file| file.metadata())
                .map_err(system)?;
            let file = JournalFile::create(&path).inspect_err(|_| remove_with_log(&path))?;
            // Who takes an empty file for a dead gate's removes it, and holds the lock for that. Now
            // that the lock is this gate's the file is there for good, or isn't.
            match std::fs::symlink_metadata(&path) {
                Ok(found) if found.ino() == made.ino() => return Ok(file),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(system(error)),
            }
        }
    }

    /// The files of gates that are no more, each locked; a gate that lives holds its own lock.
    pub(super) fn take_over(
        &self,
        is_held: impl Fn(&Path) -> bool,
    ) -> Result<Vec<JournalFile>, JournalError> {
        self.remove_lone_logs();
        let mut files = Vec::new();
        for path in self.files()? {
            if is_held(&path) {
                continue;
            }
            match JournalFile::take_over(&path) {
                Ok(Some(mut file)) => match self.take_over_tail(&mut file) {
                    Ok(()) => files.push(file),
                    // Everything stays as it is, for the next look.
                    Err(error) => tracing::error!(
                        "what a gate that is no more told last can't be kept: {error}; it is tried again"
                    ),
                },
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(
                        "events of a gate that is no more can't be read: {error}; the file is set aside as *{CORRUPT}"
                    );
                    set_aside(&path);
                    if let Some(number) = number(&path) {
                        tail::set_aside(&self.memory, number, &self.path, CORRUPT);
                    }
                }
            }
        }
        Ok(files)
    }

    /// Adds what a gate that is no more told last to its file.
    fn take_over_tail(&self, file: &mut JournalFile) -> Result<(), JournalError> {
        let path = file.path().to_owned();
        let Some(number) = number(&path) else {
            return Ok(());
        };
        let (records, unread) = tail::read(&self.memory, number);
        if !records.is_empty() {
            file.change(|transaction| Ok(((), file::add(transaction, records)?)))?;
        }
        for failure in &unread {
            tracing::error!(
                "what a gate that is no more told last can't be read: {failure}; what could be read is \
                 delivered, and the file is set aside as *{CORRUPT}"
            );
        }
        if !unread.is_empty() {
            tail::set_aside(&self.memory, number, &self.path, CORRUPT);
        }
        tail::remove(&self.memory, number);
        Ok(())
    }

    /// Removes logs whose files are gone: their gates were killed when they had removed the one and not yet
    /// the other. A file is there before its log.
    fn remove_lone_logs(&self) {
        let entries = std::fs::read_dir(&self.path);
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let of = name.to_str().and_then(|name| name.strip_suffix("-wal"));
            let Some(of) = of.filter(|of| of.starts_with(PREFIX) && of.ends_with(SUFFIX)) else {
                continue;
            };
            let file = self.path.join(of);
            let is_set_aside = || self.path.join(format!("{of}{CORRUPT}")).exists();
            if !file.exists() && !is_set_aside() {
                remove_with_log(&file);
            }
        }
    }

    /// The journals' files, those of live gates among them.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>, JournalError> {
        let system = |source| JournalError::System {
            path: self.path.clone(),
            source,
        };
        let user = host::user().id;
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(system)? {
            let entry = entry.map_err(system)?;
            let name = entry.file_name();
            let is_named_so = name
                .to_str()
                .and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX))
                .is_some_and(|number| number.len() == 32);
            // Another gate may have removed it meanwhile.
            let Ok(found) = std::fs::symlink_metadata(entry.path()) else {
                continue;
            };
            let is_beginning = found.len() == 0
                && !found
                    .modified()
                    .is_ok_and(|at| at.elapsed().is_ok_and(|age| age > BEGINNING));
            if is_named_so && found.is_file() && found.uid() == user && !is_beginning {
                files.push(entry.path());
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The place where the next gate's tail will be.
    pub(super) fn memory_with_room(&self) -> Option<&Path> {
        let has_room = |place: &&PathBuf| tail::has_room(place);
        self.memory.iter().find(has_room).map(PathBuf::as_path)
    }

    /// Makes the tail of a gate that has a file.
    pub(super) fn tail(&self, file: &Path) -> io::Result<Tail> {
        Tail::create(&self.memory, number(file).unwrap_or_default())
    }

    /// What was set aside because it can't be read, logs left out.
    pub(super) fn set_aside(&self) -> Result<Vec<PathBuf>, JournalError> {
        let system = |source| JournalError::System {
            path: self.path.clone(),
            source,
        };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(system)? {
            let entry = entry.map_err(system)?;
            if entry
                .file_name()
                .as_encoded_bytes()
                .ends_with(CORRUPT.as_bytes())
            {
                files.push(entry.path());
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    /// Bytes of all that is in it, but for the file of one gate and for SQLite's logs: these grow and
    /// shrink with what is written, not with what is kept.
    pub(super) fn size_without(&self, own: &Path) -> u64 {
        let own = own.file_name();
        std::fs::read_dir(&self.path)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| {
                let name = entry.file_name();
                let name = name.as_encoded_bytes();
                let is_own = own.is_some_and(|own| own.as_encoded_bytes() == name);
                !is_own && !name.ends_with(b"-wal") && !tail::is_named_so(name)
            })
            .filter_map(|entry| entry.metadata().ok())
            .map(|found| found.len())
            .sum()
    }
}

/// What tells a gate's files from others'.
fn number(path: &Path) -> Option<&str> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)
}

pub(super) fn set_aside(path: &Path) {
    for end in ["", "-wal"] {
        let mut from = path.as_os_str().to_owned();
        from.push(end);
        let mut to = path.as_os_str().to_owned();
        to.push(CORRUPT);
        to.push(end);
        match std::fs::rename(&from, &to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!("setting {} aside: {error}", path.display());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn what_is_another_users_or_no_file_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("journal");
        let directory = Directory::open(&path).unwrap();
        let named = |number: u32| path.join(format!("{PREFIX}{number:032x}{SUFFIX}"));
        std::fs::write(named(1), "x").unwrap();
        symlink(named(1), named(2)).unwrap();
        std::fs::create_dir(named(3)).unwrap();
        std::fs::write(named(4), "x").unwrap();
        // Only root can give files away.
        if chown(named(4), Some(65534), None).is_err() {
            eprintln!("not root: files of other users aren't tried");
            std::fs::remove_file(named(4)).unwrap();
        }
        let own = directory.path.join(named(1).file_name().unwrap());
        assert_eq!(directory.files().unwrap(), [own]);
        if chown(&path, Some(65534), None).is_ok() {
            let refused = Directory::open(&path);
            assert!(
                matches!(refused, Err(JournalError::Foreign { owner: 65534, .. })),
                "{refused:?}"
            );
        }
    }
}
