//! Other processes: who is at the other end of a socket, whose child it is, and how it ended.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;
use super::socket::socket_option;

/// A process at the other end of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its id in this process's namespace; 0 where it is outside of it.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Who made the other end of this connected pair: `SO_PEERCRED`, `unix(7)`.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let found: libc::ucred = socket_option(socket, libc::SO_PEERCRED)?;
    Ok(PeerCredentials {
        pid: found.pid.unsigned_abs(),
        uid: found.uid,
        gid: found.gid,
    })
}

/// A reference to one process that its id's reuse can't turn into another: `pidfd_open(2)`.
#[derive(Debug)]
pub struct Pidfd(OwnedFd);

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Pidfd {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It called exit with this code.
    Exited(i32),
    /// It was killed by this signal.
    Signaled(i32),
}

impl ProcessEnd {
    /// Reads a status as `wait(2)` gives it; `None` where the process hasn't ended.
    #[must_use]
    pub fn from_wait_status(status: i32) -> Option<Self> {
        if libc::WIFEXITED(status) {
            Some(Self::Exited(libc::WEXITSTATUS(status)))
        } else if libc::WIFSIGNALED(status) {
            Some(Self::Signaled(libc::WTERMSIG(status)))
        } else {
            None
        }
    }
}

/// `SO_PEERPIDFD`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// The start of `struct pidfd_info`, `PIDFD_INFO_SIZE_VER0`: `include/uapi/linux/pidfd.h`, Linux 6.13.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    credentials: [u32; 8],
    /// Since Linux 6.15.
    exit_code: i32,
}

const PIDFD_INFO_PID: u64 = 1;
/// Since Linux 6.15; set on return once the process has been reaped.
const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)` for the 64 bytes above.
const PIDFD_GET_INFO: libc::Ioctl = 0xc040_ff0b_u32 as libc::Ioctl;

impl Pidfd {
    /// The process that made the other end of this connected pair.
    ///
    /// # Errors
    /// Where it has ended and been reaped, or the kernel has no pidfds (before Linux 5.3).
    pub fn of_peer(socket: BorrowedFd<'_>, credentials: PeerCredentials) -> io::Result<Self> {
        match socket_option::<libc::c_int>(socket, SO_PEERPIDFD) {
            // SAFETY: the kernel has just installed it for us, close-on-exec, and nobody else knows it.
            Ok(fd) => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                Self::open(credentials.pid)
            }
            Err(error) => Err(error),
        }
    }

    /// The process with this id now.
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: pidfd_open takes two integers.
        let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid), 0) })?;
        let fd = i32::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: the kernel has just installed it for us, close-on-exec, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn info(&self, wanted: u64) -> io::Result<PidfdInfo> {
        let mut info = PidfdInfo {
            mask: wanted,
            ..PidfdInfo::default()
        };
        // SAFETY: the request's size is that of `info`, which is writable.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) })?;
        Ok(info)
    }

    /// The id of the process's parent in this process's namespace; `None` where there is none, the
    /// process has ended, or the kernel is older than Linux 6.13.
    #[must_use]
    pub fn parent(&self) -> Option<u32> {
        let info = self.info(PIDFD_INFO_PID).ok()?;
        (info.mask & PIDFD_INFO_PID != 0 && info.ppid != 0).then_some(info.ppid)
    }

    /// How the process ended, once it has been reaped, which makes the descriptor readable anew; works
    /// for any process, whoever its parent is. `None` before that.
    ///
    /// # Errors
    /// A kernel that doesn't tell: older than Linux 6.15.
    pub fn end(&self) -> io::Result<Option<ProcessEnd>> {
        match self.info(PIDFD_INFO_EXIT) {
            Ok(info) if info.mask & PIDFD_INFO_EXIT != 0 => {
                Ok(ProcessEnd::from_wait_status(info.exit_code))
            }
            // Linux says so of a process that has ended and whose status it hasn't kept yet.
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error),
            _ => Ok(None),
        }
    }

    /// Sends it a signal: `pidfd_send_signal(2)`.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: the only pointer is null, which stands for an ordinary signal.
        check(unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                libc::c_long::from(self.0.as_raw_fd()),
                libc::c_long::from(signal),
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        })?;
        Ok(())
    }
}

/// The parent of the process that now has this id, from `proc_pid_stat(5)`.
#[must_use]
pub fn parent_from_proc(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses that may hold any byte, a parenthesis too.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    let parent = fields.split_ascii_whitespace().nth(1)?.parse().ok()?;
    (parent != 0).then_some(parent)
}

/// This process's id.
#[must_use]
pub fn own_pid() -> u32 {
    std::process::id()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket::{Kind, pair};
    use std::process::Command;

    #[test]
    fn the_maker_of_a_pair_is_its_peer() {
        let (left, _right) = pair(Kind::Stream).unwrap();
        let credentials = peer_credentials(left.as_fd()).unwrap();
        assert_eq!(credentials.pid, own_pid());
        let pidfd = Pidfd::of_peer(left.as_fd(), credentials).unwrap();
        let parent = parent_from_proc(own_pid());
        assert!(parent.is_some());
        // Where the kernel tells, both ways tell the same.
        assert!(pidfd.parent().is_none() || pidfd.parent() == parent);
    }

    #[test]
    fn the_end_of_a_process_is_told_once_it_is_reaped() {
        let mut child = Command::new("/bin/sh")
            .args(["-c", "exit 7"])
            .spawn()
            .unwrap();
        let pidfd = Pidfd::open(child.id()).unwrap();
        child.wait().unwrap();
        // Kernels before 6.15 don't tell.
        if kernel_at_least(6, 15) {
            assert_eq!(pidfd.end().unwrap(), Some(ProcessEnd::Exited(7)));
        } else {
            assert!(!matches!(pidfd.end(), Ok(Some(_))));
        }
    }

    fn kernel_at_least(major: u32, minor: u32) -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release
            .split(['.', '-'])
            .map_while(|part| part.parse().ok());
        (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
    }
}
