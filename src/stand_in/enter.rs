//! The last step into a sandbox of bubblewrap, which enters a directory by its name, and has no signal arrive before
//! the command can take it.

use std::ffi::{CStr, c_int};
use std::io;

use rustix::fd::RawFd;
use rustix::io::{FdFlags, fcntl_setfd};

use super::explain;
use crate::sys::entry::{Invocation, inherited, replace_process};
use crate::sys::exec::BY_DESCRIPTOR;
use crate::sys::signal;
use crate::wrapper::{Failure, say};

/// Of what can't be entered or executed.
const CANNOT_EXECUTE: c_int = 126;

/// What is in front of the program and its arguments: the path, the signals, and the directory.
const OWN_ARGUMENTS: usize = 3;

/// The number of the descriptor that this program was executed by, where bubblewrap has done that.
pub(super) fn own_number(invocation: Invocation) -> Option<RawFd> {
    let own = invocation.arguments().iter().next()?.to_str().ok()?;
    let number = own.strip_prefix(BY_DESCRIPTOR.strip_suffix('?')?)?;
    number.parse().ok()
}

/// Becomes the command, in the very directory that was judged, with the signals blocked that it is to have blocked.
pub(super) fn become_command(invocation: Invocation, number: RawFd) -> Result<c_int, Failure> {
    let mut arguments = invocation.arguments().iter().skip(1);
    let blocked = arguments
        .next()
        .and_then(|word| u64::from_str_radix(word.to_str().ok()?, 16).ok());
    let (Some(blocked), Some(directory), Some(file)) =
        (blocked, arguments.next(), arguments.next())
    else {
        return Err(Failure::new(
            "start",
            "no command was given",
            "the gate and what it starts in sandboxes may be of different versions; nothing was run",
        ));
    };
    let failure = |attempted, error| Failure::new(attempted, error, "nothing was run");
    if let Ok(own) = inherited(number) {
        fcntl_setfd(own, FdFlags::CLOEXEC)
            .map_err(|error| failure("enter the sandbox", io::Error::from(error)))?;
    }
    if !directory.is_empty() && !is_working_directory(directory) {
        say(&format_args!(
            "execgate: the command isn't run: {} is another directory in the sandbox than the one that was judged",
            directory.to_string_lossy()
        ));
        return Ok(CANNOT_EXECUTE);
    }
    signal::block_only(blocked).map_err(|error| failure("unblock signals", error))?;
    let command = invocation.arguments().skip(OWN_ARGUMENTS + 1);
    let error = replace_process(file, command, invocation.environment());
    let own = invocation.with_first([c"explain".to_owned()], OWN_ARGUMENTS);
    explain(own, file, None, error.raw_os_error())
}

/// Whether the kernel's own name for the working directory is this, without a link on the way.
fn is_working_directory(name: &CStr) -> bool {
    rustix::process::getcwd(Vec::new()).is_ok_and(|found| *found == *name)
}
