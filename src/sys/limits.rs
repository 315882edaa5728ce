//! Resource limits.

use std::io;
use std::sync::OnceLock;

use super::check;

/// A soft and a hard limit, `getrlimit(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// What is enforced.
    pub soft: u64,
    /// What the soft limit may be raised to.
    pub hard: u64,
}

/// The resource that is the size of core dumps, `core(5)`.
pub const CORE_DUMPS: u32 = libc::RLIMIT_CORE;

/// The limit on the number of open descriptors.
pub fn open_files() -> io::Result<Limit> {
    own(libc::RLIMIT_NOFILE)
}

/// The limit on the size of core dumps.
pub fn core_dumps() -> io::Result<Limit> {
    own(CORE_DUMPS)
}

/// This process's limit on a resource.
fn own(resource: u32) -> io::Result<Limit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable; a resource that doesn't exist is an error.
    check(unsafe { libc::getrlimit(resource, &raw mut limit) })?;
    Ok(Limit {
        soft: limit.rlim_cur,
        hard: limit.rlim_max,
    })
}

/// The limit on open descriptors that this process was started with.
static AT_START: OnceLock<Limit> = OnceLock::new();

/// Raises the soft limit on open descriptors to the hard one, for this process alone: what it starts
/// gets the limit [it was started with](open_files_at_start).
pub fn raise_open_files() -> io::Result<()> {
    let limit = open_files()?;
    let _ = AT_START.set(limit);
    let raised = libc::rlimit {
        rlim_cur: limit.hard,
        rlim_max: limit.hard,
    };
    // SAFETY: `raised` is readable.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) })?;
    Ok(())
}

/// The limit on open descriptors that this process was started with: resource, soft and hard limit.
/// `None` where it hasn't been changed since.
#[must_use]
pub fn open_files_at_start() -> Option<(u32, u64, u64)> {
    let limit = AT_START.get()?;
    Some((libc::RLIMIT_NOFILE, limit.soft, limit.hard))
}
