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

/// Processors that this process may run on: bits in words, `sched_getaffinity(2)`. Empty where there
/// are more than 8192.
#[must_use]
pub fn cpus() -> Vec<u64> {
    let mut mask = vec![0_u64; 128];
    let size = size_of_val(&mask[..]);
    // SAFETY: the mask is writable for its size.
    let written = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size, mask.as_mut_ptr()) };
    mask.truncate(usize::try_from(written).unwrap_or(0) / size_of::<u64>());
    mask
}

/// This process's scheduling policy, `sched(7)`.
#[must_use]
pub fn scheduler() -> Option<i32> {
    // SAFETY: one integer: this process.
    check(unsafe { libc::sched_getscheduler(0) }).ok()
}

/// This process's priority for input and output, `ioprio_get(2)`.
#[must_use]
pub fn io_priority() -> Option<i32> {
    // `IOPRIO_WHO_PROCESS`, `linux/ioprio.h`.
    const PROCESS: libc::c_int = 1;
    // SAFETY: integers only.
    let priority = check(unsafe { libc::syscall(libc::SYS_ioprio_get, PROCESS, 0) }).ok()?;
    i32::try_from(priority).ok()
}

/// This process's timer slack in nanoseconds, `PR_GET_TIMERSLACK`.
#[must_use]
pub fn timer_slack() -> Option<u64> {
    // SAFETY: integers only.
    let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
    u64::try_from(slack).ok()
}

/// This process's adjustment for the out-of-memory killer, `proc_pid_oom_score_adj(5)`.
#[must_use]
pub fn oom_score_adj() -> Option<i32> {
    let text = std::fs::read_to_string("/proc/self/oom_score_adj").ok()?;
    text.trim_ascii().parse().ok()
}

/// What goes into this process's core dumps, `core(5)`.
#[must_use]
pub fn core_dump_filter() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/self/coredump_filter").ok()?;
    u32::from_str_radix(text.trim_ascii(), 16).ok()
}

/// This process's execution domain, `personality(2)`.
#[must_use]
pub fn personality() -> Option<u32> {
    // SAFETY: one integer; this one only asks.
    let personality = unsafe { libc::personality(0xffff_ffff) };
    u32::try_from(personality).ok()
}

/// Whether executing a program can grant this process nothing, `PR_GET_NO_NEW_PRIVS`.
#[must_use]
pub fn no_new_privileges() -> bool {
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 }
}

/// The system's monotonic clock, `clock_gettime(2)`.
#[must_use]
pub fn monotonic_nanoseconds() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
