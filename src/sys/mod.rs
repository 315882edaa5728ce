//! Every line of `unsafe`, behind safe functions that return owned values: descriptor passing,
//! exec, spawn, peer credentials, signals.
//!
//! Invariants: a descriptor that arrives is owned and close-on-exec before anything else is looked
//! at; no function changes the flags of an open file that others may share (`MSG_DONTWAIT` stands
//! in for `O_NONBLOCK`); what runs between fork and exec allocates nothing, takes no lock, and
//! checks every result.
//!
//! Not here: messages, policy, anything asynchronous.
#![allow(unsafe_code)]

pub mod entry;
pub mod open_files;

#[cfg(not(feature = "std"))]
mod bare;

#[cfg(feature = "std")]
pub mod context;
#[cfg(feature = "std")]
pub mod core_dump;
#[cfg(feature = "std")]
pub mod descriptor;
#[cfg(feature = "std")]
pub mod exec;
#[cfg(feature = "std")]
pub mod process;
#[cfg(feature = "std")]
pub mod signal;
#[cfg(feature = "std")]
pub mod socket;

#[cfg(feature = "full")]
pub mod audit;
#[cfg(feature = "full")]
pub mod clock;
#[cfg(feature = "full")]
pub mod confine;
#[cfg(feature = "full")]
pub mod file_system;
#[cfg(feature = "full")]
pub mod host;
#[cfg(feature = "full")]
pub mod limits;
#[cfg(feature = "full")]
pub mod memory_file;
#[cfg(feature = "full")]
pub mod place;
#[cfg(feature = "full")]
pub mod priority;
#[cfg(feature = "full")]
pub mod program;
#[cfg(feature = "full")]
pub mod random;
#[cfg(feature = "full")]
pub mod reach;
#[cfg(feature = "full")]
pub mod readiness;
#[cfg(feature = "full")]
pub mod spawn;

#[cfg(feature = "std")]
use std::io;

/// Turns the `-1` of a system call into the error that `errno` names.
#[cfg(feature = "std")]
fn check<T: PartialEq + From<i8>>(result: T) -> io::Result<T> {
    if result == T::from(-1) {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Repeats a system call that a signal handler interrupted.
#[cfg(feature = "std")]
fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
