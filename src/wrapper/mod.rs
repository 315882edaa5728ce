//! The program that a patched shell starts in the place of every command.
//!
//! It asks the gate, and then becomes the command, stands in for it, or refuses it. It is
//! synchronous, allocates little and starts no thread; arguments are the command's, never its own.
//!
//! Invariants: the command is never executed without a verdict to run it; until then nothing that a
//! command inherits is changed; every way that doesn't end in the command ends in a message on
//! standard error and a documented status.
//!
//! | status | when |
//! |---|---|
//! | 1 | the verdict is to deny |
//! | 125 | no verdict could be had, or the gate was lost: see the message |
//! | 126 | the command was to run and is no program that can be executed |
//! | 127 | the command was to run and isn't there |
//!
//! Not here: policy; tokio, clap or tracing.

mod ask;
mod stand_in;

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io::{self, Write};

use crate::sys::entry::Invocation;
use crate::sys::exec;
use crate::wire::Action;

/// The status of a refused command.
const DENIED: c_int = 1;
/// The status where there is no verdict.
const NO_VERDICT: c_int = 125;
/// The status of a command that can't be executed.
const CANNOT_EXECUTE: c_int = 126;
/// The status of a command that isn't there.
const NOT_FOUND: c_int = 127;

/// Why the wrapper can't do its work.
#[derive(Debug)]
struct Failure {
    attempted: &'static str,
    cause: String,
    hint: &'static str,
}

impl Failure {
    fn new(attempted: &'static str, cause: impl fmt::Display, hint: &'static str) -> Self {
        Self {
            attempted,
            cause: cause.to_string(),
            hint,
        }
    }

    fn gate_lost(cause: impl fmt::Display) -> Self {
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

/// Does all that the wrapper does, and returns its exit status.
pub fn main(invocation: Invocation) -> c_int {
    match run(invocation) {
        Ok(status) => status,
        Err(failure) => {
            say(&failure);
            NO_VERDICT
        }
    }
}

fn run(invocation: Invocation) -> Result<c_int, Failure> {
    let Some(file) = invocation.arguments().iter().nth(1) else {
        return Err(Failure::new(
            "start",
            "no program was named",
            "a patched shell starts this program, with a command in its arguments; it is of no use by itself",
        ));
    };
    let mut question = ask::ask(invocation, file)?;
    match question.answer()? {
        Action::Run => {
            let error = exec::replace_process(
                file,
                invocation.arguments().skip(2),
                invocation.environment(),
            );
            Ok(cannot_execute(file, &error))
        }
        Action::Escalate => stand_in::stand_in(question),
        Action::Deny { reason } => {
            match reason {
                Some(reason) => say(&format_args!("Execution denied: {reason}")),
                None => say(&"Execution denied"),
            }
            Ok(DENIED)
        }
    }
}

/// Says why a command can't be executed, in a shell's words, and returns a shell's status.
fn cannot_execute(file: &CStr, error: &io::Error) -> c_int {
    let mut line = file.to_bytes().to_vec();
    let _ = writeln!(line, ": {}", sys_message(error));
    let _ = io::stderr().write_all(&line);
    if error.kind() == io::ErrorKind::NotFound {
        NOT_FOUND
    } else {
        CANNOT_EXECUTE
    }
}

/// The system's words for an error, without the number that Rust adds.
fn sys_message(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(position) => text[..position].to_owned(),
        None => text,
    }
}

/// Writes a line on standard error, at once. Where that is closed there is nobody to tell.
fn say(line: &dyn fmt::Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
