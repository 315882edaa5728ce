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
//! Where the shell has said how it tells that a command can't be executed, its status and its message
//! come instead of the last two (`asker.rs`).
//!
//! Not here: policy; tokio, clap or tracing.

mod ask;
mod asker;
mod stand_in;

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io::{self, Write};

use asker::{Asker, Outcome};
use stand_in::End;

use crate::sys::entry::Invocation;
use crate::sys::exec;
use crate::wire::{Action, Refusal};

/// The status of a refused command.
const DENIED: c_int = 1;
/// The status where there is no verdict.
const NO_VERDICT: c_int = 125;

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
    let asker = Asker::of(invocation);
    let mut question = ask::ask(invocation, file)?;
    match question.answer()? {
        Action::Run => execute(invocation, file, asker.as_ref()),
        Action::Escalate => match stand_in::stand_in(question, asker.as_ref())? {
            End::Status(status) => Ok(status),
            End::Refused(asker, refusal) => refused(invocation, file, asker, &refusal),
        },
        Action::Deny { reason } => {
            match reason {
                Some(reason) => say(&format_args!("Execution denied: {reason}")),
                None => say(&"Execution denied"),
            }
            Ok(DENIED)
        }
    }
}

/// Becomes the command. Returns a shell's status where that fails, and says why in the words of the
/// shell that asked, or of a shell.
fn execute(invocation: Invocation, file: &CStr, asker: Option<&Asker>) -> Result<c_int, Failure> {
    let environment = invocation.environment();
    let arguments = invocation.arguments().skip(2);
    let mut error = exec::replace_process(file, arguments, environment);
    if let Some(asker) = asker {
        let seen = exec::look_at(exec::path(file));
        let refusal = Refusal {
            errno: error.raw_os_error().unwrap_or(0),
            is_directory: seen.is_directory,
            is_executable: seen.is_executable,
            ..Refusal::of_contents(seen.beginning.as_deref())
        };
        return refused(invocation, file, asker, &refusal);
    }
    if error.raw_os_error() == Some(libc::ENOEXEC)
        && exec::is_script_without_interpreter(exec::path(file))
    {
        error = exec::replace_process_by_shell(file, arguments.skip(1), environment);
    }
    let failure = exec::explain(exec::path(file), &error);
    let line = [file.to_bytes(), b": ", &failure.reason, b"\n"].concat();
    let _ = io::stderr().write_all(&line);
    Ok(failure.status)
}

/// Does as the shell that asked does where a command can't be executed. Who reads a script is a program
/// like any other, and is asked about.
fn refused(
    invocation: Invocation,
    file: &CStr,
    asker: &Asker,
    refusal: &Refusal,
) -> Result<c_int, Failure> {
    match asker.outcome(file, refusal) {
        Outcome::Failed(said, status) => {
            let _ = io::stderr().write_all(&said);
            Ok(status)
        }
        Outcome::Script(reader) => {
            let arguments = invocation.arguments();
            let first = arguments.iter().next().unwrap_or_default().to_owned();
            // The script stands where its own argument zero did.
            let first = [first, reader.program, reader.name, file.to_owned()];
            run(invocation.with_first(first, 3))
        }
    }
}

/// Writes a line on standard error, at once. Where that is closed there is nobody to tell.
fn say(line: &dyn fmt::Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
