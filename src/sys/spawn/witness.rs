//! Whether the group that a command shares with its wrapper has got a signal.

use std::cell::Cell;
use std::ffi::c_int;
use std::os::fd::RawFd;

use super::super::{context, signal};
use super::forked::{close_range, exit_now};
use super::signal_set;

/// How long a witness that isn't stopped could ever need.
const WITNESS_MILLISECONDS: c_int = 500;

/// Within what time two signals of one number are taken for the same.
const SAME_SIGNAL_MILLISECONDS: u64 = 50;

/// A process in the group that the command shares with its wrapper, which blocks all signals, so that
/// it can be asked whether the group has got one. The kernel signals all of a group in one go, so what
/// has reached the wrapper in this way has reached the witness as well.
///
/// Its end isn't told by `SIGCHLD`, so that `wait4(2)` passes over it: it counts for none of the
/// command's processes.
pub(super) struct Witness {
    pub(super) pid: libc::pid_t,
    pub(super) link: RawFd,
    /// For each signal, when the group was last known to have got it, in milliseconds; 0: never.
    seen: [Cell<u64>; signal::LAST as usize + 1],
}

impl Witness {
    /// `None` where there can't be one; signals may then reach the command twice.
    pub(super) fn start() -> Option<Self> {
        let mut link = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: there is room for the two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, link.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: as fork, but for the signal at its end; the child calls only `testify`, which never
        // returns.
        let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
        if pid == 0 {
            testify(link[1]);
        }
        // SAFETY: it is ours, and not used again.
        unsafe { libc::close(link[1]) };
        let pid = libc::pid_t::try_from(pid).unwrap_or(-1);
        if pid <= 0 {
            // SAFETY: it is ours, and not used again.
            unsafe { libc::close(link[0]) };
            return None;
        }
        Some(Self {
            pid,
            link: link[0],
            seen: [const { Cell::new(0) }; signal::LAST as usize + 1],
        })
    }

    /// The same, by the number that its socket has now.
    pub(super) fn moved_to(self, link: RawFd) -> Self {
        Self { link, ..self }
    }

    /// Enters the group. Returns whether that has worked.
    pub(super) fn join(&self, group: libc::pid_t) -> bool {
        // SAFETY: integers only.
        let joined = unsafe { libc::setpgid(self.pid, group) } == 0;
        if !joined {
            self.end();
        }
        joined
    }

    pub(super) fn end(&self) {
        // SAFETY: integers only: a child that nobody has reaped. It may have been stopped.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let mut status = 0;
        // SAFETY: `status` is writable.
        unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) };
    }

    /// Whether the group has got this signal, or one that undoes it. Two of the same that come at once
    /// are one to the witness, and may be two to the wrapper.
    pub(super) fn has_seen(&self, signal: c_int) -> bool {
        let Some(seen) = usize::try_from(signal)
            .ok()
            .and_then(|signal| self.seen.get(signal))
        else {
            return false;
        };
        let now = context::monotonic_nanoseconds() / 1_000_000;
        if self.takes(signal) {
            seen.set(now);
            return true;
        }
        seen.get() != 0 && now.saturating_sub(seen.get()) < SAME_SIGNAL_MILLISECONDS
    }

    /// Asks whether it has got this signal since it was last asked.
    fn takes(&self, signal: c_int) -> bool {
        let question = signal.to_ne_bytes();
        // SAFETY: the bytes are readable.
        let sent = unsafe {
            libc::send(
                self.link,
                question.as_ptr().cast(),
                question.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        let mut source = libc::pollfd {
            fd: self.link,
            events: libc::POLLIN,
            revents: 0,
        };
        // A witness that was stopped with its group, and hasn't been continued with it, says nothing.
        // SAFETY: one entry, writable.
        if sent != 4 || unsafe { libc::poll(&raw mut source, 1, WITNESS_MILLISECONDS) } != 1 {
            return false;
        }
        let mut answer = [0_u8; 1];
        // SAFETY: the buffer is writable.
        let read = unsafe { libc::recv(self.link, answer.as_mut_ptr().cast(), 1, 0) };
        read == 1 && answer[0] == 1
    }
}

/// The whole life of a witness.
fn testify(link: RawFd) -> ! {
    // SAFETY: the string is readable. Only a name for people.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"exec-witness".as_ptr(), 0, 0, 0) };
    // SAFETY: integers only; nothing else is used in this process.
    unsafe { libc::dup2(link, 0) };
    close_range(1, RawFd::MAX, 0);
    let stops = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    loop {
        let mut question = [0_u8; 4];
        // SAFETY: the buffer is writable. It ends when the supervisor does.
        if unsafe { libc::recv(0, question.as_mut_ptr().cast(), 4, 0) } != 4 {
            exit_now(0);
        }
        let signal = i32::from_ne_bytes(question);
        // A stop and a signal to go on undo each other when they come: then this one is from before.
        let seen = take_pending(signal)
            || signal == libc::SIGCONT && stops.iter().any(|stop| is_pending(*stop))
            || stops.contains(&signal) && is_pending(libc::SIGCONT);
        let answer = [u8::from(seen)];
        // SAFETY: the byte is readable.
        unsafe { libc::send(0, answer.as_ptr().cast(), 1, libc::MSG_NOSIGNAL) };
    }
}

fn take_pending(signal: c_int) -> bool {
    let set = signal_set(&[signal]);
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both are readable; no information is wanted.
    unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const now) > 0 }
}

fn is_pending(signal: c_int) -> bool {
    let mut pending = signal_set(&[]);
    // SAFETY: the set is writable.
    unsafe { libc::sigpending(&raw mut pending) };
    // SAFETY: the set is readable.
    unsafe { libc::sigismember(&raw const pending, signal) == 1 }
}
