//! The program that a patched shell starts in the place of every command.
//!
//! It asks the gate, and then becomes the command, refuses it, or becomes `execgate-stand-in`, which does what not
//! every exec needs: standing in for an escalated command, and telling why one can't be executed. It is
//! synchronous, allocates little and starts no thread; arguments are the command's, never its own. It needs no
//! standard library and no C library, whose starts would be most of its cost.
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
//! come instead of the last two (`stand_in/asker.rs`).
//!
//! Not here: policy; tokio, clap or tracing; `std`.

mod ask;
mod errand;
mod failure;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

use core::ffi::c_int;

use rustix::fd::AsRawFd;

#[cfg(feature = "std")]
pub(crate) use ask::read_frame;
#[cfg(feature = "std")]
pub(crate) use errand::{SEPARATOR, beside, named};
#[cfg(feature = "std")]
pub(crate) use failure::say_bytes;

pub(crate) use errand::Errand;
pub(crate) use failure::{Failure, NO_VERDICT, say};

use crate::sys::entry::{Invocation, replace_process};
use crate::wire::Action;

/// The status of a refused command.
const DENIED: c_int = 1;

/// Does all that the wrapper does, and returns its exit status.
pub fn main(invocation: Invocation) -> c_int {
    status(run(invocation))
}

/// An exit status; of a failure, once it has been said.
pub(crate) fn status(result: Result<c_int, Failure>) -> c_int {
    result.unwrap_or_else(|failure| {
        say(&failure);
        NO_VERDICT
    })
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
            let arguments = invocation.arguments().skip(2);
            let error = replace_process(file, arguments, invocation.environment());
            let errand = Errand::Explain {
                errno: error.raw_os_error(),
            };
            Err(errand::hand_over(invocation, errand))
        }
        Action::Escalate => {
            let errand = Errand::StandIn {
                stream: question.stream.as_raw_fd(),
                session: question.session.as_raw_fd(),
                gate_tells_stops: question.gate_tells_stops,
            };
            question.keep_open()?;
            Err(errand::hand_over(invocation, errand))
        }
        Action::Deny { reason } => {
            match reason {
                Some(reason) => say(&format_args!("Execution denied: {reason}")),
                None => say(&"Execution denied"),
            }
            Ok(DENIED)
        }
    }
}
