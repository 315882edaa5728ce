use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::directory::Directory;
use super::error::JournalError;
use super::file::{JournalFile, Seen};
use crate::sys::file_system::{self, FileSystem};

/// What is in a journal's directory, looked at from outside: nothing of it is changed.
#[derive(Debug)]
pub struct Inspection {
    /// The directory, by its real path.
    pub directory: PathBuf,
    /// How many gates use it now.
    pub gates: u64,
    /// Files of gates that are no more, with something in them.
    pub left_files: u64,
    /// The sessions in these files.
    pub left_sessions: u64,
    /// Their events.
    pub left_events: u64,
    /// When the oldest of these files was last written.
    pub left_since: Option<SystemTime>,
    /// Why files can't be read that no gate uses.
    pub unreadable: Vec<JournalError>,
    /// What a gate has set aside because it couldn't be read.
    pub set_aside: Vec<PathBuf>,
    /// Bytes of all that is in the directory, without logs of gates that live.
    pub bytes: u64,
    /// Where it is.
    pub file_system: FileSystem,
    /// Where gates would have what they tell last, in memory; `None`: there is no room anywhere.
    pub memory: Option<PathBuf>,
}

impl Inspection {
    /// Looks into a directory; `None` where there is none.
    ///
    /// # Errors
    /// Where no gate of this user could use it either.
    pub fn of(named: &Path) -> Result<Option<Self>, JournalError> {
        let directory = match Directory::existing(named) {
            Ok(directory) => directory,
            Err(JournalError::System { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let path = directory.path().to_owned();
        let file_system = file_system::of(&path).map_err(|source| JournalError::System {
            path: path.clone(),
            source,
        })?;
        let mut inspection = Self {
            gates: 0,
            left_files: 0,
            left_sessions: 0,
            left_events: 0,
            left_since: None,
            unreadable: Vec::new(),
            set_aside: directory.set_aside()?,
            bytes: directory.size_without(Path::new("")),
            memory: directory.memory_with_room().map(Path::to_owned),
            directory: path,
            file_system,
        };
        for file in directory.files()? {
            let found = std::fs::symlink_metadata(&file).ok();
            // Opening an empty file would make it a database.
            if found.as_ref().is_none_or(|found| found.len() == 0) {
                continue;
            }
            match JournalFile::look(&file) {
                Ok(Seen::Held) => inspection.gates += 1,
                Ok(Seen::Left { sessions: 0, .. } | Seen::Unknown) => {}
                Ok(Seen::Left { sessions, events }) => {
                    inspection.left_files += 1;
                    inspection.left_sessions += sessions;
                    inspection.left_events += events;
                    let written = found.and_then(|found| found.modified().ok());
                    inspection.left_since = match (inspection.left_since, written) {
                        (Some(since), Some(written)) => Some(since.min(written)),
                        (since, written) => since.or(written),
                    };
                }
                Err(error) => inspection.unreadable.push(error),
            }
        }
        Ok(Some(inspection))
    }
}
