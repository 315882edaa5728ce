//! Starting an escalated command under a supervisor.
//!
//! ```text
//! gate ── fork ── supervisor ── fork ── command
//!   │                │                     │
//!   │◄── Started ────┤◄─ close-on-exec ────┤ descriptors, directory, signals, limits; execve
//!   │── signal ─────►│── kill ────────────►│
//!   │◄── Stopped ────┤                     │
//!   │◄── Ended ──────┤◄─ SIGCHLD ──────────┘
//!   │── (closed) ───►│ kills every descendant, however it detached
//! ```
//!
//! The supervisor is the nearest subreaper (`PR_SET_CHILD_SUBREAPER`, `prctl(2)`) of all that the
//! command starts, so that a process which forks twice or makes its own session is still its
//! descendant. It goes when none of them is left. When its control socket closes, because the gate
//! let go of the command or is itself no more, it asks them to end (`SIGTERM`), and kills all that are
//! left after [`GRACE`]. It needs no privilege and no kernel newer than 3.4. What it can't survive is
//! being killed itself; what it can't kill, unless the gate may ([`super::reach`]), is a process of
//! another user (`sudo`): it then says so and goes, since staying would help nobody.
//!
//! Both processes run between fork and exec (or end) of a program with many threads: nothing in
//! `supervise`, `inside`, `witness`, `execute` and `forked` allocates, takes a lock or panics; all memory was laid
//! out before the fork, in `plan`.

mod execute;
mod forked;
mod inside;
mod plan;
mod report;
mod supervise;
mod witness;

use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use self::plan::Plan;
use self::report::{PACKET, Packet};
use self::supervise::supervise;
use super::check;
use super::confine::Confinement;
use super::socket::{self, Kind, Wait};

pub use self::report::{Report, Step};

/// What a command inherits besides its descriptors and environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InheritedContext {
    /// File mode creation mask, `umask(2)`. `None`: 022.
    pub umask: Option<u32>,
    /// Nice value, `setpriority(2)`: no lower than the gate's.
    pub nice: Option<i32>,
    /// Processors that it may run on, as `sched_setaffinity(2)` has them. Empty: the gate's.
    pub cpus: Vec<u64>,
    /// Scheduling policy, `sched(7)`; a real-time one isn't granted.
    pub scheduler: Option<i32>,
    /// Priority for input and output, `ioprio_set(2)`; a real-time one isn't granted.
    pub io_priority: Option<i32>,
    /// In nanoseconds, `PR_SET_TIMERSLACK`.
    pub timer_slack: Option<u64>,
    /// For the out-of-memory killer, `proc_pid_oom_score_adj(5)`: no lower than the gate's.
    pub oom_score_adj: Option<i32>,
    /// What goes into a core dump, `core(5)`.
    pub core_dump_filter: Option<u32>,
    /// Execution domain, `personality(2)`; what makes memory less safe than usual isn't granted, but
    /// for its layout.
    pub personality: Option<u32>,
    /// Whether executing a program can grant nothing, `PR_SET_NO_NEW_PRIVS`.
    pub no_new_privileges: bool,
    /// Resource, soft and hard limit, `setrlimit(2)`. What is more than the gate may grant is cut down.
    pub limits: Vec<(u32, u64, u64)>,
    /// Signals that are ignored.
    pub ignored_signals: Vec<i32>,
    /// Signals that are blocked.
    pub blocked_signals: Vec<i32>,
}

/// In which process group a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessGroup {
    /// In that of this process, where it is in the gate's own terminal session, so that a terminal
    /// treats both as one job; else in a new one.
    Of(u32),
    /// In a new one.
    New,
}

/// Where a command runs.
#[derive(Debug)]
pub enum Directory {
    /// By its name.
    Named(CString),
    /// By its name, which has to be the one that the kernel itself has for it: absolute, and no step of it a link.
    Exactly(CString),
    /// By a descriptor, for a directory that no name leads to.
    Open(OwnedFd),
}

/// The error of [`Step::Directory`] where the directory isn't exactly that of its name.
pub const NOT_EXACTLY: c_int = libc::ELOOP;

/// A command to start.
#[derive(Debug)]
pub struct Command {
    /// The program: absolute.
    pub program: CString,
    /// Its arguments, from argument zero on.
    pub argv: Vec<CString>,
    /// Its whole environment.
    pub env: Vec<CString>,
    /// Its directory.
    pub directory: Directory,
    /// Descriptors, each with the number that it gets. All others are closed.
    pub descriptors: Vec<(OwnedFd, RawFd)>,
    /// Those of these numbers that are closed as the program is executed.
    pub closed_by_exec: Vec<RawFd>,
    /// Its process group.
    pub group: ProcessGroup,
    /// What else it inherits.
    pub context: InheritedContext,
    /// What it is confined by before it is executed.
    pub confinement: Option<Confinement>,
    /// Descriptors that get any free number, each with the place in `argv` that has a `?` where it is to be told.
    pub told_descriptors: Vec<(OwnedFd, usize)>,
    /// Where in `argv` is to be told which signals the command has blocked, in hexadecimal digits: the program is one that
    /// starts another, and that one a third, which is the command and is to unblock them. All signals but those that
    /// stop are blocked until then, and those for the command go to the first child of the program's first child.
    pub told_signals: Option<usize>,
    /// Whether the program is a text that a shell is to read where the kernel can't execute it.
    pub is_script: bool,
}

/// How long processes that have been asked to end may take over it.
pub const GRACE: Duration = Duration::from_millis(250);

/// The gate's end of a supervisor. Dropping it ends the command and all that it started.
#[derive(Debug)]
pub struct Supervisor {
    control: OwnedFd,
    pid: libc::pid_t,
}

impl Supervisor {
    /// Starts `command` under a supervisor. Returns as soon as that has been forked; its first report
    /// tells whether the command runs.
    ///
    /// # Errors
    /// Numbers of descriptors that are negative or repeat; no process or no socket to be had.
    pub fn start(command: Command) -> io::Result<Self> {
        let (control, supervisors) = socket::pair(Kind::Packets)?;
        let plan = Plan::new(command, supervisors.as_raw_fd())?;
        // No handler of ours may run in the child: it would act for the wrong process.
        let mask = block_all_signals()?;
        // SAFETY: the child calls only `supervise`, which keeps to what may run after a fork of a
        // program with many threads, and never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            supervise(&plan, supervisors.as_raw_fd())
        }
        let forked = check(pid);
        restore_signals(&mask);
        Ok(Self {
            control,
            pid: forked?,
        })
    }

    /// The next report; `None` when the supervisor has gone, and with it every process of the command.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] where there is none yet.
    pub fn report(&self) -> io::Result<Option<Report>> {
        let mut bytes = [0; PACKET];
        let received = match socket::receive(self.control.as_fd(), &mut bytes, Wait::Never) {
            // It went before it had read a signal, which the kernel tells once, and before its reports.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                socket::receive(self.control.as_fd(), &mut bytes, Wait::Never)
            }
            other => other,
        }?;
        match received.bytes {
            0 => Ok(None),
            PACKET => Packet::decode(&bytes)
                .report()
                .map(Some)
                .ok_or_else(|| io::Error::other("a supervisor's report makes no sense")),
            _ => Err(io::Error::other("a supervisor's report is cut short")),
        }
    }

    /// Has the supervisor send the command a signal: to the whole of its group where it has its own,
    /// else to its first process, unless the group that it shares has got the signal anyway.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        socket::send(
            self.control.as_fd(),
            &signal.to_ne_bytes(),
            &[],
            Wait::Never,
        )?;
        Ok(())
    }

    /// Has the supervisor end the command and all that it started. It then goes.
    pub fn end(&self) {
        // SAFETY: shutdown takes two integers. The supervisor reads the end of the stream.
        unsafe { libc::shutdown(self.control.as_raw_fd(), libc::SHUT_WR) };
    }

    /// Frees what is left of the supervisor's process. To be called once [`report`](Self::report) has
    /// returned `None`; waits for the little that its end may still take.
    pub fn reap(self) {
        let Self { control, pid } = self;
        drop(control);
        let mut status = 0;
        // SAFETY: `status` is writable; the process is our child, and waited for nowhere else.
        while unsafe { libc::waitpid(pid, &raw mut status, 0) } == -1
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

impl AsFd for Supervisor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl AsRawFd for Supervisor {
    fn as_raw_fd(&self) -> RawFd {
        self.control.as_raw_fd()
    }
}

fn signal_set(signals: &[c_int]) -> libc::sigset_t {
    // SAFETY: all zeroes is a valid set, which sigemptyset then makes portably empty.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is writable.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in signals {
        // SAFETY: `set` is writable; a number that is no signal is an error, and changes nothing.
        unsafe { libc::sigaddset(&raw mut set, *signal) };
    }
    set
}

fn block_all_signals() -> io::Result<libc::sigset_t> {
    let mut all = signal_set(&[]);
    // SAFETY: `all` is writable.
    unsafe { libc::sigfillset(&raw mut all) };
    let mut before = signal_set(&[]);
    // SAFETY: both sets are what they are passed as.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) } {
        0 => Ok(before),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: the set is readable; the only failure is an unknown operation.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}
