//! What is executed for a program that was judged.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::content::{LARGEST, digest};
use super::{Writer, find, version};
use crate::model::{
    Executable, ExecutableContent, ExecutableFile, Interpreter, Protection, Unprotected,
};
use crate::sys::memory_file;
use crate::sys::place::Place;

/// How a judged program is executed.
#[derive(Debug)]
pub enum Execution {
    /// By its name, which leads to it, and which the session can't make lead elsewhere.
    ByName,
    /// By descriptors for what the session can write, which are copies that it can't.
    ByDescriptor(ByDescriptor),
    /// Not at all: it wasn't there when it was judged, or its interpreter wasn't.
    NotThere,
}

/// A program, and what executes it, of which some are executed by descriptors.
#[derive(Debug)]
pub struct ByDescriptor(Vec<Part>);

#[derive(Debug)]
struct Part {
    /// By which it is executed, where there is no copy.
    name: PathBuf,
    copy: Option<File>,
    file: Arc<ExecutableFile>,
}

/// Why a program isn't executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It isn't what was judged any more; in words.
    Changed(String),
    /// The session can write this file or directory.
    Unprotected(PathBuf),
    /// It isn't known, or couldn't be copied; in words.
    Unidentified(String),
}

/// Sees to it that what was judged is what is executed. `file` is the name that it was judged by, and
/// `workdir` where relative interpreters are looked for. May wait for disks.
///
/// # Errors
/// Where it can't be, or must not be.
pub fn verify(
    (file, workdir): (&Path, &Path),
    executable: &Executable,
    places: &[Place],
    writer: &Writer,
    unprotected: Unprotected,
) -> Result<Execution, Refusal> {
    let judged = match executable {
        Executable::Found(judged) => judged,
        Executable::NotThere => return Ok(Execution::NotThere),
        Executable::Unknown(reason) => return Err(Refusal::Unidentified(reason.clone())),
    };
    let chain = match judged.chain() {
        Ok(chain) => chain,
        Err(interpreter) => {
            return match interpreter.executable {
                Executable::Unknown(reason) => {
                    let name = interpreter.name.display();
                    let reason = format!("its interpreter {name}: {reason}");
                    Err(Refusal::Unidentified(reason))
                }
                _ => Ok(Execution::NotThere),
            };
        }
    };
    let names = names(file, workdir, &chain);
    match (judged.protection(), unprotected) {
        (Protection::Protected | Protection::NoBoundary, _) => {
            for (name, file) in names.iter().zip(&chain) {
                is_the_same(name, file, writer)?;
            }
            Ok(Execution::ByName)
        }
        (Protection::Writable(path), Unprotected::Denied) => {
            Err(Refusal::Unprotected(path.clone()))
        }
        (Protection::Writable(_), Unprotected::Allowed) => {
            let mut parts = Vec::with_capacity(chain.len());
            for ((name, file), place) in names.into_iter().zip(chain).zip(places) {
                let copy = if let Protection::Writable(_) = file.own_protection {
                    Some(copy(&name, &file, place)?)
                } else {
                    is_the_same(&name, &file, writer)?;
                    None
                };
                parts.push(Part { name, copy, file });
            }
            Ok(Execution::ByDescriptor(ByDescriptor(parts)))
        }
    }
}

/// The names by which a program and its interpreters were found.
fn names(file: &Path, workdir: &Path, chain: &[Arc<ExecutableFile>]) -> Vec<PathBuf> {
    let interpreters = chain.iter().filter_map(|file| file.interpreter());
    std::iter::once(file.to_owned())
        .chain(interpreters.map(|interpreter| workdir.join(&interpreter.name)))
        .collect()
}

fn is_the_same(name: &Path, judged: &ExecutableFile, writer: &Writer) -> Result<(), Refusal> {
    let now = find::file(name, writer).map_err(|error| changed(name, &error.to_string()))?;
    if version(&now.status) != judged.version || now.path != judged.path {
        return Err(changed(name, "another file, or another state of it"));
    }
    if now.protection != judged.own_protection {
        return Err(changed(name, "somebody else may write it now"));
    }
    Ok(())
}

fn changed(name: &Path, how: &str) -> Refusal {
    Refusal::Changed(format!("{}: {how}", name.display()))
}

/// A copy of the file that was judged, with the content that was judged: by its digest where there is
/// one, else by the state that its filesystem tells.
fn copy(name: &Path, judged: &ExecutableFile, place: &Place) -> Result<File, Refusal> {
    let failed = |error: io::Error| {
        Refusal::Unidentified(match error.kind() {
            io::ErrorKind::FileTooLarge => return Refusal::too_large(),
            _ => format!("it can't be copied to where nobody can change it: {error}"),
        })
    };
    if judged.version.size > LARGEST {
        return Err(Refusal::too_large());
    }
    let original = place.read().map_err(failed)?;
    let label = judged.path.file_name().unwrap_or_default();
    let copy = memory_file::executable(&label.to_string_lossy()).map_err(failed)?;
    let take = |piece: &[u8]| (&copy).write_all(piece);
    let copied = digest(&original, LARGEST, take).map_err(failed)?;
    memory_file::seal(&copy).map_err(failed)?;
    let is_as_judged = match judged.sha256 {
        Some(digest) => digest == copied,
        // Behind the copying: what has been written before that shows.
        None => place
            .status()
            .is_ok_and(|now| version(&now) == judged.version),
    };
    if is_as_judged {
        Ok(copy)
    } else {
        Err(changed(name, "it was written since it was judged"))
    }
}

impl Refusal {
    /// Of a program that is larger than [`LARGEST_COPY`](super::LARGEST_COPY).
    #[must_use]
    pub fn too_large() -> Self {
        Self::Unidentified(format!(
            "it has more than {} MiB, so it can't be copied to where nobody can change it",
            LARGEST >> 20
        ))
    }
}

impl ByDescriptor {
    /// How many descriptors it needs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.iter().filter(|part| part.copy.is_some()).count()
    }

    /// The program and its arguments, with the copies at `numbers`, and these with the number that each
    /// is to have. `argv` is the command's.
    #[must_use]
    pub fn command(
        self,
        argv: Vec<OsString>,
        numbers: impl IntoIterator<Item = RawFd>,
    ) -> (PathBuf, Vec<OsString>, Vec<(OwnedFd, RawFd)>) {
        let mut numbers = numbers.into_iter();
        let mut descriptors = Vec::new();
        let mut argv = argv;
        let mut program = PathBuf::new();
        let mut script: Option<Interpreter> = None;
        for Part { name, copy, file } in self.0 {
            let copy = copy.and_then(|copy| Some((copy, numbers.next()?)));
            let path = match copy {
                Some((copy, number)) => {
                    descriptors.push((OwnedFd::from(copy), number));
                    PathBuf::from(format!("/proc/self/fd/{number}"))
                }
                None => name,
            };
            // As the kernel does it for a script.
            if let Some(interpreter) = script {
                let own = [Some(interpreter.name), interpreter.argument];
                let rest = argv.into_iter().skip(1);
                argv = own.into_iter().flatten().collect();
                argv.push(program.into_os_string());
                argv.extend(rest);
            }
            program = path;
            script = match &file.content {
                ExecutableContent::Binary => None,
                ExecutableContent::Script(interpreter) => Some(interpreter.clone()),
                ExecutableContent::Text(interpreter) => Some(Interpreter {
                    name: "sh".into(),
                    ..interpreter.clone()
                }),
            };
        }
        (program, argv, descriptors)
    }
}
