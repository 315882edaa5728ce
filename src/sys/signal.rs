//! Signals: what a process ignores and blocks, waiting for them beside a socket, and ending or
//! stopping as another process did.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{check, retry_interrupted};

/// The highest number that a signal has, `_NSIG` in Linux's `signal.h`.
pub(super) const LAST: i32 = 64;

/// The signal by which a job is made to go on.
pub const CONTINUE: i32 = libc::SIGCONT;

/// Signals that a wrapper forwards to the command that it stands in for: those that people and programs
/// send. Not a fault's, a child's, or a real-time one; of such the wrapper dies, and the command with it.
pub fn forwarded() -> impl Iterator<Item = i32> {
    all().filter(|signal| {
        !matches!(
            *signal,
            libc::SIGKILL
                | libc::SIGSTOP
                | libc::SIGILL
                | libc::SIGTRAP
                | libc::SIGBUS
                | libc::SIGFPE
                | libc::SIGSEGV
                | libc::SIGSYS
                | libc::SIGCHLD
                | 32..
        )
    })
}

fn all() -> impl Iterator<Item = i32> {
    1..=LAST
}

/// The kernel's signal sets, which the C library's hide two signals of.
pub(super) type KernelSet = u64;

pub(super) fn kernel_set(signals: impl IntoIterator<Item = i32>) -> KernelSet {
    signals
        .into_iter()
        .filter(|signal| (1..=LAST).contains(signal))
        .fold(0, |set, signal| set | 1 << (signal - 1))
}

/// The kernel's `struct sigaction`, as far as a disposition without a handler needs it; larger than any.
#[repr(C)]
pub(super) struct KernelAction {
    pub(super) handler: libc::sighandler_t,
    rest: [usize; 6],
}

impl KernelAction {
    /// A disposition: `SIG_DFL` or `SIG_IGN`.
    pub(super) fn new(handler: libc::sighandler_t) -> Self {
        Self {
            handler,
            rest: [0; 6],
        }
    }
}

fn set_of(signals: impl IntoIterator<Item = i32>) -> libc::sigset_t {
    // SAFETY: all zeroes is a valid set, which sigemptyset then makes portably empty.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in signals {
        // SAFETY: `set` is writable; a number that is no signal changes nothing.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = set_of([]);
    // SAFETY: both sets are what they are passed as.
    match unsafe { libc::pthread_sigmask(how, set, &raw mut before) } {
        0 => Ok(before),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Signals that this process ignores, in ascending order.
#[must_use]
pub fn ignored() -> Vec<i32> {
    all()
        .filter(|signal| {
            let mut action = KernelAction::new(libc::SIG_DFL);
            // SAFETY: `action` is writable, and no smaller than the kernel's; nothing is changed.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_rt_sigaction,
                    *signal,
                    std::ptr::null::<KernelAction>(),
                    &raw mut action,
                    size_of::<KernelSet>(),
                )
            };
            result == 0 && action.handler == libc::SIG_IGN
        })
        .collect()
}

/// Signals that this thread blocks, in ascending order.
#[must_use]
pub fn blocked() -> Vec<i32> {
    let mut mask: KernelSet = 0;
    // SAFETY: `mask` is writable and of the size that is said; nothing is changed.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_BLOCK,
            std::ptr::null::<KernelSet>(),
            &raw mut mask,
            size_of::<KernelSet>(),
        )
    };
    all()
        .filter(|signal| mask & kernel_set([*signal]) != 0)
        .collect()
}

/// Blocks these signals and no others, by the kernel's set. Those that have arrived and aren't in it act now.
pub fn block_only(set: u64) -> io::Result<()> {
    let set: KernelSet = set;
    // SAFETY: the set is readable, and of the size that is said.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const set,
            std::ptr::null_mut::<KernelSet>(),
            size_of::<KernelSet>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A signal that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
    /// Whether the kernel sent it, as it does for a terminal's keys and size to the whole process group
    /// in its foreground, rather than another process.
    pub from_kernel: bool,
}

/// What became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// A signal has arrived.
    Signal(Arrived),
    /// The socket has something to read, or has ended.
    Socket,
}

/// Signals that are waited for instead of acting.
#[derive(Debug)]
pub struct SignalWatch {
    arrivals: OwnedFd,
    /// What was blocked before.
    before: Blocked,
}

/// A set of signals that were blocked.
struct Blocked(libc::sigset_t);

impl std::fmt::Debug for Blocked {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Blocked")
    }
}

impl SignalWatch {
    /// Blocks `signals`, and has them arrive here.
    pub fn new(signals: impl IntoIterator<Item = i32>) -> io::Result<Self> {
        let set = set_of(signals);
        let before = Blocked(change_mask(libc::SIG_BLOCK, &set)?);
        // SAFETY: the set is readable.
        let fd = check(unsafe {
            libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        })?;
        // SAFETY: the kernel has just installed it for us, and nobody else knows it.
        let arrivals = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { arrivals, before })
    }

    /// Lets the signals act again as before. Those that have arrived and weren't taken act now.
    pub fn end(self) {
        let _ = change_mask(libc::SIG_SETMASK, &self.before.0);
    }

    /// Waits for a signal, or for something on `socket`. Signals come first.
    pub fn wait(&self, socket: BorrowedFd<'_>) -> io::Result<Ready> {
        loop {
            if let Some(arrived) = self.take()? {
                return Ok(Ready::Signal(arrived));
            }
            let mut sources =
                [self.arrivals.as_raw_fd(), socket.as_raw_fd()].map(|fd| libc::pollfd {
                    fd,
                    events: libc::POLLIN,
                    revents: 0,
                });
            retry_interrupted(|| {
                // SAFETY: two entries, both writable.
                check(unsafe { libc::poll(sources.as_mut_ptr(), 2, -1) })
            })?;
            if sources[0].revents == 0 && sources[1].revents != 0 {
                return Ok(Ready::Socket);
            }
        }
    }

    /// A signal that has arrived, if any has.
    pub fn take(&self) -> io::Result<Option<Arrived>> {
        // SAFETY: all zeroes is a valid value.
        let mut information: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let read = retry_interrupted(|| {
            // SAFETY: `information` is writable for its size.
            check(unsafe {
                libc::read(
                    self.arrivals.as_raw_fd(),
                    (&raw mut information).cast(),
                    size_of_val(&information),
                )
            })
        });
        match read {
            Ok(_) => Ok(Some(Arrived {
                signal: information.ssi_signo.cast_signed(),
                from_kernel: information.ssi_code == libc::SI_KERNEL,
            })),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsRawFd for SignalWatch {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.arrivals.as_raw_fd()
    }
}

/// Lets `signal` act on this process with its default action: it stops, and the call returns when it
/// goes on; or it ends, and the call doesn't return. Returns too where the signal by default does
/// nothing.
pub fn act_by_default(signal: i32) {
    // SAFETY: SIG_DFL isn't code.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: one integer. Still blocked, so it acts when it is unblocked.
    unsafe { libc::raise(signal) };
    let set = set_of([signal]);
    if let Ok(before) = change_mask(libc::SIG_UNBLOCK, &set) {
        let _ = change_mask(libc::SIG_SETMASK, &before);
    }
}

/// Ignores a signal from now on.
pub fn ignore(signal: i32) {
    // SAFETY: SIG_IGN isn't code.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::socket::{Kind, Wait, pair, send};
    use std::os::fd::AsFd;

    #[test]
    fn a_watch_tells_signals_and_sockets_apart() {
        let watch = SignalWatch::new([libc::SIGUSR2]).unwrap();
        assert!(blocked().contains(&libc::SIGUSR2));
        let (left, right) = pair(Kind::Stream).unwrap();
        send(left.as_fd(), b"x", &[], Wait::Blocking).unwrap();
        assert_eq!(watch.wait(right.as_fd()).unwrap(), Ready::Socket);
        // SAFETY: one integer.
        unsafe { libc::raise(libc::SIGUSR2) };
        let arrived = Arrived {
            signal: libc::SIGUSR2,
            from_kernel: false,
        };
        assert_eq!(watch.wait(right.as_fd()).unwrap(), Ready::Signal(arrived));
    }
}
