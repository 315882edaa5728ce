//! What the processes between fork and exec have in common. All of it runs with all signals blocked.

use std::ffi::c_int;
use std::os::fd::RawFd;

pub(super) fn errno() -> c_int {
    // SAFETY: the place is this thread's own.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place }
}

pub(super) fn exit_now(code: c_int) -> ! {
    // SAFETY: _exit takes an integer, runs no handlers and doesn't return.
    unsafe { libc::_exit(code) }
}

/// Closes the descriptors from `first` to `last`, or with `CLOSE_RANGE_CLOEXEC` leaves that to exec.
pub(super) fn close_range(first: RawFd, last: RawFd, flags: libc::c_uint) {
    if first > last {
        return;
    }
    // SAFETY: three integers; what these descriptors are isn't used again in this process.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result == 0 {
        return;
    }
    // Linux before 5.9, or before 5.11 for the flag: one by one.
    // SAFETY: one integer.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) };
    let limit = RawFd::try_from(limit).unwrap_or(RawFd::MAX).min(1 << 20);
    for fd in first..=last.min(limit) {
        if flags == 0 {
            // SAFETY: as for close_range.
            unsafe { libc::close(fd) };
        } else {
            // SAFETY: integers only.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// Closes all but these, which are in ascending order.
pub(super) fn close_all_but(kept: &[RawFd]) {
    let mut next = 0;
    for fd in kept {
        close_range(next, fd - 1, 0);
        next = next.max(fd + 1);
    }
    close_range(next, RawFd::MAX, 0);
}
