//! What a process inherits besides descriptors, environment and signals.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use super::check;

/// This process's file mode creation mask, `umask(2)`.
#[must_use]
pub fn umask() -> u32 {
    // There is no call that only reads it. The process has one thread.
    // SAFETY: one integer.
    let mask = unsafe { libc::umask(0o077) };
    // SAFETY: one integer.
    unsafe { libc::umask(mask) };
    mask
}

/// This process's nice value, `getpriority(2)`.
#[must_use]
pub fn nice() -> i32 {
    // It can only fail for processes other than this.
    // SAFETY: integers only.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

/// Every resource limit of this process: resource, soft and hard limit, `getrlimit(2)`.
#[must_use]
pub fn limits() -> Vec<(u32, u64, u64)> {
    // Linux numbers its resources from 0, without gaps.
    (0..32)
        .map_while(|resource| {
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: `limit` is writable; a resource that doesn't exist is an error.
            let result = unsafe { libc::getrlimit(resource, &raw mut limit) };
            (result == 0).then_some((resource, limit.rlim_cur, limit.rlim_max))
        })
        .collect()
}

/// This process's working directory, open as a place only. Works for one that has been deleted.
pub fn working_directory() -> io::Result<OwnedFd> {
    // SAFETY: the string is readable.
    let fd = check(unsafe {
        libc::open(
            c".".as_ptr(),
            libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC,
        )
    })?;
    // SAFETY: the kernel has just installed it for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
