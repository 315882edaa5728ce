//! Descriptors and their flags.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::check;
use super::entry::inherited;

fn flags(fd: RawFd) -> io::Result<libc::c_int> {
    // SAFETY: F_GETFD takes no pointer; a descriptor that isn't open is an error.
    check(unsafe { libc::fcntl(fd, libc::F_GETFD) })
}

/// Whether `fd` is closed when its process executes another program.
pub fn is_close_on_exec(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(flags(fd.as_raw_fd())? & libc::FD_CLOEXEC != 0)
}

/// A copy of `fd` with the lowest free number from `lowest` on, not close-on-exec.
pub fn duplicate_from(fd: BorrowedFd<'_>, lowest: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD takes an integer.
    let copy = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, lowest) })?;
    // SAFETY: the kernel has just installed it for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// The same open file under a number that isn't one of the standard descriptors', close-on-exec.
pub fn above_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    // SAFETY: F_DUPFD_CLOEXEC takes an integer.
    let copy = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: the kernel has just installed it for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Opens `/dev/null` in the place of each standard descriptor that is closed, for this process alone:
/// else whatever it opens next would be taken for its input or output.
pub fn fill_standard() -> io::Result<()> {
    loop {
        // SAFETY: the string is readable. It gets the lowest free number.
        let fd =
            check(unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) })?;
        if fd > 2 {
            // SAFETY: it is ours, and not used again.
            unsafe { libc::close(fd) };
            return Ok(());
        }
    }
}

/// Whether `fd` is a place only, which can't be read or written (`O_PATH`, `open(2)`).
pub fn is_place(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: F_GETFL takes no pointer; the descriptor is borrowed, so it is open.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    Ok(flags & libc::O_PATH != 0)
}

/// Whether the open file behind `fd` is in non-blocking mode.
pub fn is_nonblocking(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: F_GETFL takes no pointer; the descriptor is borrowed, so it is open.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    Ok(flags & libc::O_NONBLOCK != 0)
}

/// The descriptors that a program executed now would get: those that are open and not close-on-exec,
/// in ascending order.
#[must_use]
pub fn inheritable() -> Vec<BorrowedFd<'static>> {
    let mut numbers: Vec<RawFd> = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect(),
        // A sandbox without /proc: ask for each number that a shell could have used.
        Err(_) => (0..1024).collect(),
    };
    numbers.sort_unstable();
    // The directory that was read is among them, and closed by now.
    numbers
        .into_iter()
        .filter(|number| flags(*number).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0))
        .filter_map(|number| inherited(number).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn only_what_is_not_close_on_exec_is_inheritable() {
        let (reader, writer) = io::pipe().unwrap();
        let writer = duplicate_from(writer.as_fd(), 50).unwrap();
        let inheritable: Vec<_> = inheritable().iter().map(AsRawFd::as_raw_fd).collect();
        assert!(inheritable.contains(&writer.as_raw_fd()));
        assert!(!inheritable.contains(&reader.as_raw_fd()));
    }
}
