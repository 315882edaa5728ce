//! Standard output of commands that also have connections.
//!
//! `SIGPIPE` tells a program that whoever read its output has gone, and by default ends it: what `... | head -1`
//! relies on. It comes for a connection too, whose end must be an error that the command can tell of. So it is
//! ignored from the first connection on, and here it acts as it would have.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::signal;

/// Whether the end of the reader is to end this process.
static ENDS: AtomicBool = AtomicBool::new(false);

/// The end of a connection doesn't end this process from here on.
pub(super) fn survive_connections() {
    // Whoever had it ignored from the start wants to be told.
    if !signal::ignored().contains(&libc::SIGPIPE) {
        ENDS.store(true, Ordering::Relaxed);
    }
    signal::ignore(libc::SIGPIPE);
}

/// Standard output.
pub(super) fn stdout() -> Output {
    Output(io::stdout())
}

#[derive(Debug)]
pub(super) struct Output(io::Stdout);

fn seen<T>(result: io::Result<T>) -> io::Result<T> {
    let is_closed = |error: &io::Error| {
        error.kind() == io::ErrorKind::BrokenPipe && ENDS.load(Ordering::Relaxed)
    };
    if result.as_ref().is_err_and(is_closed) {
        signal::act_by_default(libc::SIGPIPE);
    }
    result
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        seen(self.0.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        seen(self.0.flush())
    }
}
