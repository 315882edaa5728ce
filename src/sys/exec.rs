//! Replacing the process by another program.

use std::ffi::CStr;
use std::io;

use super::entry::Vector;

/// Replaces the process by `file`, with these very arrays. Returns only where that failed.
///
/// Nothing else changes: descriptors, signals, directory and limits are handed on as they are. The
/// file isn't searched for, and one that the kernel doesn't know how to run (`ENOEXEC`) is an error.
pub fn replace_process(file: &CStr, arguments: Vector, environment: Vector) -> io::Error {
    // SAFETY: a string and two null-terminated arrays of strings, by their types.
    unsafe { libc::execve(file.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}
