//! Descriptors that tokio's reactor watches.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::process::Pidfd;
use super::signal::SignalWatch;
use super::spawn::Supervisor;

/// A type that owns one descriptor, and never closes or replaces it while it lives.
pub trait OwnsDescriptor: AsRawFd + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! owns_descriptor {
    ($($owner:ty),*) => { $(
        impl sealed::Sealed for $owner {}
        impl OwnsDescriptor for $owner {}
    )* };
}

owns_descriptor!(OwnedFd, Pidfd, SignalWatch, Supervisor);

/// Has the reactor of the current runtime watch a descriptor. Its mode isn't changed: reads and writes
/// have to say for themselves that they don't wait.
pub fn watch<T: OwnsDescriptor>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: the trait's implementors, all in this room, own an open descriptor, and keep it open and
    // the same until they are dropped, which AsyncFd does last.
    let watched = unsafe { AsyncFd::register_with_interest(owner, interest) };
    watched.map_err(io::Error::from)
}
