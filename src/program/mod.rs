//! Which file a command's name leads to, whose it is, and who could have written it; and how that very
//! file is executed later, whatever its name leads to by then.
//!
//! ```text
//! question ── examine ──► Executable (told to the policy), places that are held open
//! verdict  ── verify ───► by its name, which the session can't change
//!                    └──► by a sealed copy, where it can
//! ```
//!
//! Invariants: what isn't known counts as writable; nothing that a session can write is executed by a name;
//! everything read is bounded in size.
//!
//! Not here: threads and time limits (all of this may wait for a disk), verdicts, processes.

mod content;
mod find;
mod verify;
mod writer;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

pub use content::{Digests, LARGEST as LARGEST_COPY};
pub use verify::{ByDescriptor, Execution, Refusal, verify};
pub use writer::{WritablePlaces, Writer};

use crate::model::{
    Executable, ExecutableContent, ExecutableFile, FileVersion, Interpreter, Protection,
};
use crate::sys::place::{Place, Status};
use content::Kind;
use find::Found;

/// The most files that one exec leads through: a script, its interpreter, and so on, as the kernel has it
/// (`fs/exec.c`).
const MOST_FILES: usize = 6;

/// What executes a text that the kernel doesn't.
const SHELL: &str = "/bin/sh";

/// Whether digests are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Digest {
    /// No.
    #[default]
    None,
    /// SHA-256 of the content.
    Sha256,
}

/// How files are looked at.
#[derive(Debug)]
pub struct Examination<'a> {
    /// Who may be able to write them.
    pub writer: &'a Writer,
    /// Digests that are known.
    pub digests: &'a Digests,
    /// Whether digests are wanted.
    pub wanted: Digest,
    /// When digests are given up.
    pub until: Instant,
}

/// What was found.
#[derive(Debug)]
pub struct Examined {
    /// The program.
    pub executable: Executable,
    /// The file, its interpreter and so on, held open, in the order of
    /// [`chain`](ExecutableFile::chain).
    pub places: Vec<Place>,
}

impl Examination<'_> {
    /// Looks at the program that `file`, which is absolute, leads to; `workdir` is where relative
    /// interpreters are looked for. May wait for disks and servers.
    #[must_use]
    pub fn examine(&self, file: &Path, workdir: &Path) -> Examined {
        let mut places = Vec::new();
        let executable = self.executable(file, workdir, &mut places);
        Examined { executable, places }
    }

    /// Whether the session can write to a directory.
    #[must_use]
    pub fn directory(&self, path: &Path) -> Option<Protection> {
        directory(path, self.writer)
    }

    fn executable(&self, path: &Path, workdir: &Path, places: &mut Vec<Place>) -> Executable {
        if places.len() == MOST_FILES {
            return Executable::Unknown("too many interpreters of interpreters".to_owned());
        }
        match find::file(path, self.writer) {
            Ok(found) => match self.file(found, workdir, places) {
                Ok(file) => Executable::Found(Arc::new(file)),
                Err(reason) => Executable::Unknown(reason),
            },
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Executable::NotThere,
                _ => Executable::Unknown(error.to_string()),
            },
        }
    }

    fn file(
        &self,
        found: Found,
        workdir: &Path,
        places: &mut Vec<Place>,
    ) -> Result<ExecutableFile, String> {
        if !found.status.is_file() {
            return Err("it isn't a regular file".to_owned());
        }
        let version = version(&found.status);
        // What its owner alone may execute and nobody read is no script: nothing could read it.
        let open = found.place.read().ok();
        let kind = open
            .as_ref()
            .map_or(Ok(Kind::Binary), content::kind)
            .map_err(|error| format!("it can't be read: {error}"))?;
        let sha256 = match (self.wanted, &open) {
            (Digest::Sha256, Some(open)) => {
                self.digests.of(open, version, &found.place, self.until)
            }
            _ => None,
        };
        places.push(found.place);
        let mut interpreter = |name: &std::ffi::OsStr, argument| Interpreter {
            name: name.to_owned(),
            argument,
            executable: self.executable(&workdir.join(name), workdir, places),
        };
        let content = match kind {
            Kind::Binary => ExecutableContent::Binary,
            Kind::Script { name, argument } => {
                ExecutableContent::Script(interpreter(&name, argument))
            }
            Kind::Text => ExecutableContent::Text(interpreter(SHELL.as_ref(), None)),
        };
        Ok(ExecutableFile {
            path: found.path,
            version,
            owner: found.status.owner,
            group: found.status.group,
            mode: found.status.mode & 0o7777,
            own_protection: found.protection,
            sha256,
            content,
        })
    }
}

/// Whether a session can write to a directory, or have another one stand at its name; `None` where that
/// can't be told.
#[must_use]
pub fn directory(path: &Path, writer: &Writer) -> Option<Protection> {
    find::directory(path, writer).ok()
}

/// Which file it is, and which state of it.
#[must_use]
pub fn version(status: &Status) -> FileVersion {
    FileVersion {
        device: status.device,
        inode: status.inode,
        size: status.size,
        modified: status.modified,
        changed: status.changed,
    }
}

/// Whether an interpreter is found wherever the asker is.
#[must_use]
pub fn is_independent_of_workdir(chain: &[Arc<ExecutableFile>]) -> bool {
    chain
        .iter()
        .filter_map(|file| file.interpreter())
        .all(|interpreter| interpreter.name.as_bytes().first() == Some(&b'/'))
}

#[cfg(test)]
mod tests;
