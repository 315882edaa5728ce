//! The program that the wrapper becomes where a command doesn't simply run.
//!
//! It stands in for an escalated command: hands its own descriptors to the gate, passes signals on, and ends as
//! the command did. And where a command can't be executed, it says so as the shell that asked would have.
//!
//! And in a sandbox of bubblewrap it is what that starts, and becomes the command (`enter.rs`).
//!
//! Invariants: nothing is executed but the wrapper, which asks, where no shell has said how it tells, a script that the
//! verdict was for, and in a sandbox of bubblewrap the command for which the gate has made that; the wrapper's statuses
//! are its own.
//!
//! Not here: asking; policy; tokio, clap or tracing.

mod asker;
mod enter;
mod escalated;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

use std::ffi::{CStr, c_int};
use std::io;

use rustix::io::{FdFlags, fcntl_setfd};

use asker::{Asker, Outcome};
use escalated::{End, Escalated};

use crate::sys::entry::{Invocation, inherited, replace_process};
use crate::sys::exec;
use crate::wire::Refusal;
use crate::wrapper::{Errand, Failure, beside, named, say_bytes, status};

/// What is in front of the command's arguments: the errand, and the program.
const OWN_ARGUMENTS: usize = 2;

/// Does its errand, and returns the exit status.
pub fn main(invocation: Invocation) -> c_int {
    status(run(invocation))
}

fn run(invocation: Invocation) -> Result<c_int, Failure> {
    if let Some(number) = enter::own_number(invocation) {
        return enter::become_command(invocation, number);
    }
    let mut arguments = invocation.arguments().iter();
    let errand = arguments.next().and_then(Errand::parse);
    let (Some(errand), Some(file)) = (errand, arguments.next()) else {
        return Err(Failure::new(
            "start",
            "no errand was given",
            "execgate-wrapper starts this program; it is of no use by itself",
        ));
    };
    let asker = Asker::of(invocation);
    match errand {
        Errand::Explain { errno } => explain(invocation, file, asker.as_ref(), errno),
        Errand::StandIn {
            stream,
            session,
            gate_tells_stops,
        } => {
            let lost = |error| Failure::gate_lost(io::Error::from(error));
            let stream = inherited(stream).map_err(lost)?;
            // It is the wrapper's, not the command's.
            fcntl_setfd(stream, FdFlags::CLOEXEC).map_err(lost)?;
            let session = inherited(session).map_err(lost)?;
            let escalated = Escalated::new(stream, session, gate_tells_stops);
            match escalated.stand_in(asker.as_ref())? {
                End::Status(status) => Ok(status),
                End::Refused(asker, refusal) => refused(invocation, file, asker, &refusal),
            }
        }
    }
}

/// Says, and does, what a shell would where executing `file` failed.
fn explain(
    invocation: Invocation,
    file: &CStr,
    asker: Option<&Asker>,
    errno: i32,
) -> Result<c_int, Failure> {
    if let Some(asker) = asker {
        let seen = exec::look_at(exec::path(file));
        let refusal = Refusal {
            errno,
            is_directory: seen.is_directory,
            is_executable: seen.is_executable,
            ..Refusal::of_contents(seen.beginning.as_deref())
        };
        return refused(invocation, file, asker, &refusal);
    }
    let mut error = io::Error::from_raw_os_error(errno);
    if errno == libc::ENOEXEC && exec::is_script_without_interpreter(exec::path(file)) {
        // Its own argument zero isn't the shell's.
        let arguments = invocation.arguments().skip(OWN_ARGUMENTS + 1);
        error = exec::replace_process_by_shell(file, arguments, invocation.environment());
    }
    let failure = exec::explain(exec::path(file), &error);
    say_bytes(&[file.to_bytes(), b": ", &failure.reason, b"\n"].concat());
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
            say_bytes(&said);
            Ok(status)
        }
        Outcome::Script(reader) => {
            let wrapper = beside(invocation, "execgate-wrapper").unwrap_or_default();
            let own = named(invocation, wrapper.to_bytes()).unwrap_or_default();
            // The script stands where its own argument zero did.
            let first = [own, reader.program, reader.name, file.to_owned()];
            let asked = invocation.with_first(first, OWN_ARGUMENTS + 1);
            let error = replace_process(&wrapper, asked.arguments(), asked.environment());
            let error = io::Error::from(error);
            Err(Failure::new(
                "ask about the script's interpreter",
                error,
                "execgate-wrapper belongs beside execgate-stand-in, and what it is to be asked has to fit; nothing was run",
            ))
        }
    }
}
