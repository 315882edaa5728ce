use alloc::format;
use alloc::string::{String, ToString};
use core::ffi::c_int;
use core::fmt;

use rustix::io::{Errno, retry_on_intr, write};

use crate::sys::entry;

/// The status where there is no verdict.
pub(crate) const NO_VERDICT: c_int = 125;

/// Why the wrapper, or what stands in for a command, can't do its work.
#[derive(Debug)]
pub(crate) struct Failure {
    attempted: &'static str,
    cause: String,
    hint: &'static str,
}

impl Failure {
    pub(crate) fn new(
        attempted: &'static str,
        cause: impl fmt::Display,
        hint: &'static str,
    ) -> Self {
        Self {
            attempted,
            cause: cause.to_string(),
            hint,
        }
    }

    pub(crate) fn gate_lost(cause: impl fmt::Display) -> Self {
        Self::new(
            "ask the gate",
            cause,
            "the session that this shell belongs to seems to be over; nothing was run",
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            attempted,
            cause,
            hint,
        } = self;
        write!(formatter, "execgate: cannot {attempted}: {cause} ({hint})")
    }
}

/// An error number in words, of those that a wrapper can meet. There is no C library to ask.
pub(crate) struct Words(pub(crate) Errno);

impl fmt::Display for Words {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            Errno::ACCESS => "Permission denied",
            Errno::BADF => "Bad file descriptor",
            Errno::CONNREFUSED => "Connection refused",
            Errno::CONNRESET => "Connection reset by peer",
            Errno::MFILE => "Too many open files",
            Errno::NFILE => "Too many open files in system",
            Errno::NOBUFS => "No buffer space available",
            Errno::NOENT => "No such file or directory",
            Errno::NOMEM => "Cannot allocate memory",
            Errno::NOTCONN => "Transport endpoint is not connected",
            Errno::PERM => "Operation not permitted",
            Errno::PIPE => "Broken pipe",
            Errno::TOOBIG => "Argument list too long",
            Errno::TOOMANYREFS => "Too many references: cannot splice",
            other => return write!(formatter, "error {}", other.raw_os_error()),
        };
        formatter.write_str(words)
    }
}

/// Writes a line on standard error, at once. Where that is closed there is nobody to tell.
pub(crate) fn say(line: &dyn fmt::Display) {
    say_bytes(format!("{line}\n").as_bytes());
}

/// Writes bytes on standard error.
pub(crate) fn say_bytes(mut bytes: &[u8]) {
    let Ok(standard_error) = entry::inherited(2) else {
        return;
    };
    while !bytes.is_empty() {
        match retry_on_intr(|| write(standard_error, bytes)) {
            Ok(count) if count > 0 => bytes = &bytes[count..],
            _ => return,
        }
    }
}
