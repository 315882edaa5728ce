//! Replacing the process by another program, and a shell's words for why that failed.

use std::ffi::{CStr, CString, OsStr};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::entry::Vector;

/// A shell's exit status for a program that isn't there.
const NOT_FOUND: i32 = 127;
/// A shell's exit status for a program that can't be executed.
const CANNOT_EXECUTE: i32 = 126;

/// The path of a program that is executed by a descriptor, whose number is in the place of the `?`. Where it is its argument
/// zero too, `execgate-stand-in` has been executed in a sandbox.
pub const BY_DESCRIPTOR: &str = "/proc/self/fd/?";

/// How much of a file is looked at to tell what it is: the kernel reads as much for a `#!` line
/// (`BINPRM_BUF_SIZE`).
const BEGINNING: usize = 256;

/// Replaces the process by the system's shell, reading `script`: what `execvp(3)` and shells do for a
/// text file with no `#!` line. `arguments` are the script's, without argument zero.
pub fn replace_process_by_shell(
    script: &CStr,
    arguments: Vector,
    environment: Vector,
) -> io::Error {
    let pointers: Vec<_> = [c"sh".as_ptr(), script.as_ptr()]
        .into_iter()
        .chain(arguments.iter().map(CStr::as_ptr))
        .chain([std::ptr::null()])
        .collect();
    // SAFETY: a string and two null-terminated arrays of strings.
    unsafe { libc::execve(c"/bin/sh".as_ptr(), pointers.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// What shells look at to say why a program couldn't be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Whether it is a file that this process's effective user may execute.
    pub is_executable: bool,
    /// Its first bytes, as many as the kernel looks at; nothing where it can't be read.
    pub beginning: Option<Vec<u8>>,
}

/// Looks at a file that couldn't be executed.
#[must_use]
pub fn look_at(file: &Path) -> Seen {
    let is_directory = file.is_dir();
    Seen {
        is_directory,
        is_executable: !is_directory && may_execute(file),
        beginning: beginning(file),
    }
}

fn may_execute(file: &Path) -> bool {
    CString::new(file.as_os_str().as_bytes()).is_ok_and(|name| {
        // SAFETY: a string and integers.
        unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
    })
}

/// Why a program couldn't be executed, as a shell puts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecFailure {
    /// The shell's exit status: 127 for what isn't there, else 126.
    pub status: i32,
    /// What follows the program's name and a colon in the shell's message.
    pub reason: Vec<u8>,
}

/// Finds out why executing `file` failed with `error`.
#[must_use]
pub fn explain(file: &Path, error: &io::Error) -> ExecFailure {
    let failure = |status, reason: &str| ExecFailure {
        status,
        reason: reason.as_bytes().to_vec(),
    };
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::ELOOP) => {
            if let Some(interpreter) = interpreter(file) {
                let mut reason = interpreter;
                reason.extend(b": bad interpreter: ");
                reason.extend(message(error).as_bytes());
                return ExecFailure {
                    status: CANNOT_EXECUTE,
                    reason,
                };
            }
        }
        Some(libc::ENOEXEC) => {
            return failure(
                CANNOT_EXECUTE,
                "cannot execute binary file: Exec format error",
            );
        }
        _ => {}
    }
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => failure(NOT_FOUND, "No such file or directory"),
        Some(libc::EACCES) if file.is_dir() => failure(CANNOT_EXECUTE, "Is a directory"),
        _ => failure(CANNOT_EXECUTE, &message(error)),
    }
}

/// That what is to be executed isn't there.
#[must_use]
pub fn not_there() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOENT)
}

/// Whether a shell would read `file` as a script of its own: no NUL byte in its first line.
#[must_use]
pub fn is_script_without_interpreter(file: &Path) -> bool {
    beginning(file).is_some_and(|bytes| {
        let mut first_line = bytes
            .split(|byte| *byte == b'\n')
            .next()
            .unwrap_or(&[])
            .iter();
        !bytes.starts_with(b"#!") && first_line.all(|byte| *byte != 0)
    })
}

/// The interpreter that the file's `#!` line names, if it has one.
fn interpreter(file: &Path) -> Option<Vec<u8>> {
    let bytes = beginning(file)?;
    let line = bytes
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let word = line.trim_ascii_start();
    let end = word.iter().position(u8::is_ascii_whitespace);
    let word = &word[..end.unwrap_or(word.len())];
    (!word.is_empty()).then(|| word.to_vec())
}

fn beginning(file: &Path) -> Option<Vec<u8>> {
    // A FIFO or a device must not be opened: only a regular file can be a program.
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    let open = std::fs::File::open(file).ok()?;
    open.take(BEGINNING as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// A path as bytes that somebody else holds.
#[must_use]
pub fn path(bytes: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(bytes.to_bytes()))
}

/// The system's words for an error, without the number that Rust adds.
#[must_use]
pub fn message(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(position) => text[..position].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(file: &Path, errno: i32) -> (i32, String) {
        let failure = explain(file, &io::Error::from_raw_os_error(errno));
        (failure.status, String::from_utf8(failure.reason).unwrap())
    }

    #[test]
    fn failures_are_told_as_by_a_shell() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        std::fs::write(&script, "#! /no/such -x\n").unwrap();
        let cases = [
            (
                Path::new("/no/such"),
                libc::ENOENT,
                127,
                "No such file or directory",
            ),
            (
                Path::new("/etc/passwd/x"),
                libc::ENOTDIR,
                127,
                "No such file or directory",
            ),
            (Path::new("/etc"), libc::EACCES, 126, "Is a directory"),
            (
                Path::new("/etc/passwd"),
                libc::EACCES,
                126,
                "Permission denied",
            ),
            (Path::new("/bin/true"), libc::ETXTBSY, 126, "Text file busy"),
            (
                Path::new("/bin/true"),
                libc::E2BIG,
                126,
                "Argument list too long",
            ),
            (
                Path::new("/bin/true"),
                libc::ENOEXEC,
                126,
                "cannot execute binary file: Exec format error",
            ),
            (
                &script,
                libc::ENOENT,
                126,
                "/no/such: bad interpreter: No such file or directory",
            ),
        ];
        for (file, errno, status, words) in cases {
            assert_eq!(reason(file, errno), (status, words.to_owned()));
        }
    }

    #[test]
    fn a_script_is_text() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let is_script = |content: &[u8]| {
            std::fs::write(&file, content).unwrap();
            is_script_without_interpreter(&file)
        };
        assert!(is_script(b"echo hello\n"));
        assert!(is_script(b""));
        assert!(is_script(b"echo\n\0"));
        assert!(!is_script(b"#!/bin/sh\n"));
        assert!(!is_script(b"\x7fELF\0"));
    }
}
