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
//! Both processes run between fork and exec (or end) of a program with many threads: nothing here
//! allocates, takes a lock or panics after the fork; all memory was laid out before it.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use super::confine::Confinement;
use super::process::ProcessEnd;
use super::signal::{self, KernelAction, KernelSet};
use super::socket::{self, Kind, Wait};
use super::{check, context};

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
    /// Descriptors that get any free number, each with the place in `argv` that is to tell it.
    pub told_descriptors: Vec<(OwnedFd, usize)>,
    /// Whether the program is a text that a shell is to read where the kernel can't execute it.
    pub is_script: bool,
}

/// What a supervisor tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The command runs, as this process.
    Started {
        /// Its process id.
        pid: u32,
        /// Whether it is to get every signal that reaches the wrapper: it is alone with its descendants
        /// in its process group, or the supervisor knows what the group got.
        own_group: bool,
    },
    /// The command couldn't be started.
    NotStarted {
        /// What failed.
        step: Step,
        /// The error number.
        errno: i32,
    },
    /// The command was stopped.
    Stopped {
        /// By this signal.
        signal: i32,
        /// When that was seen, on the system's monotonic clock.
        at: Duration,
    },
    /// The command goes on.
    Continued,
    /// The command ended; processes that it started may still be there.
    Ended {
        /// How.
        end: ProcessEnd,
        /// Whether it left a core dump.
        core_dumped: bool,
        /// Processor time in user mode, its own and that of the children it waited for.
        user: Duration,
        /// Processor time in the kernel, likewise.
        system: Duration,
        /// Largest resident set of any one of them, in bytes.
        peak_memory_bytes: u64,
    },
    /// Processes that could not be ended are left, for they are another user's.
    LeftBehind {
        /// How many, besides their descendants.
        count: u32,
    },
}

/// A step of starting a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Making a process for it.
    Fork,
    /// Putting its descriptors in place.
    Descriptors,
    /// Entering its directory.
    Directory,
    /// Setting a limit, the nice value, or its signals.
    Context,
    /// Confining it.
    Confinement,
    /// Executing it.
    Exec,
}

impl Step {
    const ALL: [Self; 6] = [
        Self::Fork,
        Self::Descriptors,
        Self::Directory,
        Self::Context,
        Self::Confinement,
        Self::Exec,
    ];

    fn from_raw(raw: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|step| *step as i32 == raw)
    }
}

/// How long processes that have been asked to end may take over it.
pub const GRACE: Duration = Duration::from_millis(250);

/// The gate's end of a supervisor. Dropping it ends the command and all that it started.
#[derive(Debug)]
pub struct Supervisor {
    control: OwnedFd,
    pid: libc::pid_t,
}

#[allow(clippy::cast_possible_truncation, reason = "a quarter of a second")]
const GRACE_MILLISECONDS: c_int = GRACE.as_millis() as c_int;
const NAP_MILLISECONDS: c_int = 5;

/// How long a witness that isn't stopped could ever need.
const WITNESS_MILLISECONDS: c_int = 500;

/// Within what time two signals of one number are taken for the same.
const SAME_SIGNAL_MILLISECONDS: u64 = 50;

/// `linux/ioprio.h`.
const IO_WHO_PROCESS: c_int = 1;
const IO_CLASS_SHIFT: c_int = 13;

/// Of an execution domain: its number, the kernel version that it shows, and the layout of memory.
#[allow(clippy::cast_sign_loss, reason = "bits")]
const PERSONALITY: u32 = (0xff
    | libc::UNAME26
    | libc::ADDR_NO_RANDOMIZE
    | libc::ADDR_COMPAT_LAYOUT
    | libc::ADDR_LIMIT_3GB) as u32;

const PACKET: usize = 40;

const STARTED: i32 = 1;
const NOT_STARTED: i32 = 2;
const STOPPED: i32 = 3;
const CONTINUED: i32 = 4;
const ENDED: i32 = 5;
const LEFT_BEHIND: i32 = 6;

/// A report as four integers and three counts, in native byte order: both ends are one program.
#[derive(Default)]
struct Packet {
    numbers: [i32; 4],
    counts: [u64; 3],
}

impl Packet {
    fn new(numbers: [i32; 4]) -> Self {
        Self {
            numbers,
            counts: [0; 3],
        }
    }

    fn encode(&self) -> [u8; PACKET] {
        let mut bytes = [0; PACKET];
        let (numbers, counts) = bytes.split_at_mut(16);
        for (place, number) in numbers.chunks_exact_mut(4).zip(self.numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        for (place, count) in counts.chunks_exact_mut(8).zip(self.counts) {
            place.copy_from_slice(&count.to_ne_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; PACKET]) -> Self {
        let mut packet = Self::default();
        let (numbers, counts) = bytes.split_at(16);
        for (number, place) in packet.numbers.iter_mut().zip(numbers.as_chunks().0) {
            *number = i32::from_ne_bytes(*place);
        }
        for (count, place) in packet.counts.iter_mut().zip(counts.as_chunks().0) {
            *count = u64::from_ne_bytes(*place);
        }
        packet
    }

    fn report(&self) -> Option<Report> {
        let [kind, first, second, _] = self.numbers;
        match kind {
            STARTED => Some(Report::Started {
                pid: first.unsigned_abs(),
                own_group: second != 0,
            }),
            NOT_STARTED => Some(Report::NotStarted {
                step: Step::from_raw(first)?,
                errno: second,
            }),
            STOPPED => Some(Report::Stopped {
                signal: first,
                at: Duration::from_nanos(self.counts[0]),
            }),
            CONTINUED => Some(Report::Continued),
            ENDED => Some(Report::Ended {
                end: ProcessEnd::from_wait_status(first)?,
                core_dumped: libc::WIFSIGNALED(first) && libc::WCOREDUMP(first),
                user: Duration::from_micros(self.counts[0]),
                system: Duration::from_micros(self.counts[1]),
                peak_memory_bytes: self.counts[2].saturating_mul(1024),
            }),
            LEFT_BEHIND => Some(Report::LeftBehind {
                count: first.unsigned_abs(),
            }),
            _ => None,
        }
    }
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

/// Everything that the two processes need, laid out so that they only read it.
struct Plan {
    command: Command,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    /// Destinations in ascending order.
    destinations: Vec<RawFd>,
    /// What the two processes need of the gate's descriptors, in ascending order: all sources, what may
    /// be in its place already, the directory, the control socket.
    needed: Vec<RawFd>,
    /// Room for where each descriptor is on its way to its number.
    copies: Vec<Cell<RawFd>>,
    ignored: KernelSet,
    blocked: KernelSet,
    /// What a shell would do with a text file that has no `#!` line.
    script: Option<Vec<*const c_char>>,
    oom_score_adj: Option<Decimal>,
    core_dump_filter: Option<Decimal>,
}

/// A number as text, without a heap.
#[derive(Clone, Copy)]
struct Decimal {
    digits: [u8; 12],
    length: usize,
}

impl Decimal {
    fn new(number: impl std::fmt::Display) -> Self {
        let text = number.to_string();
        let mut digits = [0; 12];
        let length = text.len().min(digits.len());
        digits[..length].copy_from_slice(&text.as_bytes()[..length]);
        Self { digits, length }
    }
}

impl Plan {
    fn new(mut command: Command, control: RawFd) -> io::Result<Self> {
        tell_descriptors(&mut command)?;
        let mut destinations: Vec<_> = command.descriptors.iter().map(|(_, to)| *to).collect();
        destinations.sort_unstable();
        let repeats = destinations.windows(2).any(|pair| pair[0] == pair[1]);
        if repeats || destinations.first().is_some_and(|number| *number < 0) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the descriptors' numbers must be different, and none below zero",
            ));
        }
        let sources = command.descriptors.iter().map(|(from, _)| from.as_raw_fd());
        let mut needed: Vec<_> = sources.chain(destinations.iter().copied()).collect();
        needed.push(control);
        if let Some(ruleset) = command
            .confinement
            .as_ref()
            .and_then(|it| it.ruleset.as_ref())
        {
            needed.push(ruleset.as_raw_fd());
        }
        if let Directory::Open(directory) = &command.directory {
            needed.push(directory.as_raw_fd());
        }
        needed.sort_unstable();
        let pointers = |strings: &[CString]| {
            let pointers = strings.iter().map(|string| string.as_ptr());
            pointers.chain([std::ptr::null()]).collect()
        };
        Ok(Self {
            argv: pointers(&command.argv),
            envp: pointers(&command.env),
            destinations,
            needed,
            copies: vec![Cell::new(-1); command.descriptors.len()],
            ignored: signal::kernel_set(command.context.ignored_signals.iter().copied()),
            blocked: signal::kernel_set(command.context.blocked_signals.iter().copied()),
            script: command.is_script.then(|| {
                let arguments = command.argv.iter().skip(1).map(|string| string.as_ptr());
                [c"sh".as_ptr(), command.program.as_ptr()]
                    .into_iter()
                    .chain(arguments)
                    .chain([std::ptr::null()])
                    .collect()
            }),
            oom_score_adj: command
                .context
                .oom_score_adj
                .map(|score| Decimal::new(score.max(context::oom_score_adj().unwrap_or(score)))),
            core_dump_filter: command.context.core_dump_filter.map(Decimal::new),
            command,
        })
    }
}

/// Gives descriptors that are to be told free numbers, and writes these into the arguments.
fn tell_descriptors(command: &mut Command) -> io::Result<()> {
    for (fd, place) in std::mem::take(&mut command.told_descriptors) {
        let taken = |number: &RawFd| command.descriptors.iter().any(|(_, to)| to == number);
        let number = (3..RawFd::MAX)
            .find(|number| !taken(number))
            .unwrap_or(RawFd::MAX);
        let word = command
            .argv
            .get_mut(place)
            .ok_or(io::ErrorKind::InvalidInput)?;
        *word = CString::new(number.to_string())?;
        command.descriptors.push((fd, number));
    }
    Ok(())
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

// From here on everything runs after the fork, with all signals blocked.

fn errno() -> c_int {
    // SAFETY: the place is this thread's own.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place }
}

fn exit_now(code: c_int) -> ! {
    // SAFETY: _exit takes an integer, runs no handlers and doesn't return.
    unsafe { libc::_exit(code) }
}

/// Closes the descriptors from `first` to `last`, or with `CLOSE_RANGE_CLOEXEC` leaves that to exec.
fn close_range(first: RawFd, last: RawFd, flags: libc::c_uint) {
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
fn close_all_but(kept: &[RawFd]) {
    let mut next = 0;
    for fd in kept {
        close_range(next, fd - 1, 0);
        next = next.max(fd + 1);
    }
    close_range(next, RawFd::MAX, 0);
}

fn send_packet(control: RawFd, packet: &Packet) {
    let bytes = packet.encode();
    // SAFETY: `bytes` is readable. If the gate is gone nobody needs the report.
    unsafe {
        libc::send(
            control,
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_NOSIGNAL,
        )
    };
}

/// `looked_at`: when the kernel was asked, by the monotonic clock. A time from after its answer might be behind a
/// signal that has made the command go on since, and the wrapper would stop for good.
fn send_stopped(control: RawFd, signal: c_int, looked_at: u64) {
    let mut packet = Packet::new([STOPPED, signal, 0, 0]);
    packet.counts[0] = looked_at;
    send_packet(control, &packet);
}

/// The whole life of a supervisor.
fn supervise(plan: &Plan, control: RawFd) -> ! {
    // The gate may have as many open as it can have: what follows needs a few of its own.
    close_all_but(&plan.needed);
    // SAFETY: integers only. Without it, detached processes would escape: better none is started.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } != 0 {
        not_started(control, Step::Fork, errno());
    }
    // SAFETY: SIG_DFL isn't code. Were it ignored, ends of children would go untold.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    // SAFETY: the string is readable. Only a name for people.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"exec-supervisor".as_ptr(), 0, 0, 0) };
    // Signals meant for a terminal's job are not for the supervisor: it leaves the job's group, and
    // the command enters it.
    let joined = match plan.command.group {
        ProcessGroup::Of(pid) if pid != 0 => group_in_own_session(pid.cast_signed()),
        _ => -1,
    };
    // SAFETY: no arguments.
    let gates = unsafe { libc::getpgrp() };
    if joined <= 0 {
        // SAFETY: integers only. It fails for the leader of a terminal session, which we aren't.
        unsafe { libc::setpgid(0, 0) };
    }
    // The gate's own group isn't a shell's job: only the terminal sends it signals. Started before
    // there is anything that it must not hold open.
    let witness = (joined > 0 && joined != gates).then(Witness::start);
    let witness = witness.flatten();
    let (Some((status, childs_status)), Some((release, go))) = (pipe(), pipe()) else {
        not_started(control, Step::Fork, errno());
    };
    // SAFETY: the child calls only `become_command`, which never returns.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it is not used in this process, which else would wait for itself.
        unsafe { libc::close(go) };
        become_command(plan, joined, childs_status, release);
    }
    if child == -1 {
        not_started(control, Step::Fork, errno());
    }
    if joined > 0 {
        // SAFETY: integers only. The command does so too: whoever comes first.
        unsafe { libc::setpgid(child, joined) };
    }
    // The witness right after the command, which can't act on a signal before it is released: what
    // comes in between, and is passed on to it, is still one signal for it.
    let witness = witness.filter(|witness| witness.join(joined));
    if joined > 0 {
        // Out of the job's group, and of its session: else the supervisor's end, as that of a parent in
        // another group, would make the kernel hang up on the whole job wherever that has no other such
        // parent and a stopped process in it (`setpgid(2)`, orphaned process groups).
        // SAFETY: no arguments. It fails for the leader of a group, which we aren't.
        unsafe { libc::setsid() };
    }
    // SAFETY: the byte is readable.
    unsafe { libc::write(go, [1_u8].as_ptr().cast(), 1) };
    // Nothing that the command reads or writes may be held open here.
    let link = witness.as_ref().map_or(-1, |witness| witness.link);
    let control = keep_three(control, status, link);
    let witness = witness.map(|witness| Witness { link: 2, ..witness });
    let witness = witness.as_ref();
    let status = 1;
    let mut children = signal_set(&[libc::SIGCHLD]);
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the set is readable. Without it nothing could be waited for: nothing may go on.
    let changes = unsafe { libc::signalfd(-1, &raw mut children, flags) };
    if changes == -1 {
        let errno = errno();
        kill_all(control, child, witness, &mut false, false);
        send_packet(
            control,
            &Packet::new([NOT_STARTED, Step::Fork as i32, errno, 0]),
        );
        leave(witness);
    }
    wait_for_exec(control, status, changes, child);
    let mut failure = [0_u8; 8];
    // SAFETY: `failure` is writable. Ends when the command is executed, or has said why not.
    let read = unsafe { libc::read(status, failure.as_mut_ptr().cast(), failure.len()) };
    // SAFETY: it is ours, and not used again.
    unsafe { libc::close(status) };
    if read == 8 {
        let [step, errno] = [0, 4].map(|at| {
            let mut number = [0; 4];
            number.copy_from_slice(&failure[at..at + 4]);
            i32::from_ne_bytes(number)
        });
        send_packet(control, &Packet::new([NOT_STARTED, step, errno, 0]));
        wait_for_all(control, changes, child, None);
        leave(witness);
    }
    // SAFETY: one integer each.
    let own_group = unsafe { libc::getpgid(child) } == child;
    let all_signals = own_group || witness.is_some();
    send_packet(
        control,
        &Packet::new([STARTED, child, i32::from(all_signals), 0]),
    );
    let reach = if own_group {
        Reach::Group
    } else {
        Reach::Process(witness)
    };
    wait_for_all(control, changes, child, Some(reach));
    leave(witness);
}

/// Waits until the command is executed, or has said why not, or is no more. Its terminal may stop it
/// before that.
fn wait_for_exec(control: RawFd, status: RawFd, changes: RawFd, child: libc::pid_t) {
    let mut gate = control;
    loop {
        let mut sources = [status, changes, gate].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: three entries, all writable. All signals are blocked, so it isn't interrupted.
        unsafe { libc::poll(sources.as_mut_ptr(), 3, -1) };
        if sources[0].revents != 0 {
            return;
        }
        if sources[2].revents != 0 {
            // The gate has let go. The end of the child closes `status`.
            pass_on(child, libc::SIGKILL, false);
            gate = -1;
        }
        drain(changes);
        // SAFETY: all zeroes is a valid value.
        let mut change: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let wanted = libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG;
        let looked_at = context::monotonic_nanoseconds();
        // SAFETY: `change` is writable. Its end is left for later.
        unsafe { libc::waitid(libc::P_PID, child.unsigned_abs(), &raw mut change, wanted) };
        if change.si_signo == libc::SIGCHLD && change.si_code == libc::CLD_STOPPED {
            // SAFETY: the kernel filled it in, for a child.
            let signal = unsafe { change.si_status() };
            send_stopped(control, signal, looked_at);
        }
    }
}

/// Empties a descriptor for signals. One such structure, or several in a row, tell no more than that
/// one is there.
fn drain(changes: RawFd) {
    let mut information = [0_u8; 4 * size_of::<libc::signalfd_siginfo>()];
    // SAFETY: the buffer is writable.
    unsafe { libc::read(changes, information.as_mut_ptr().cast(), information.len()) };
}

/// The process group of a process of our own terminal session; -1 where it is in another.
fn group_in_own_session(pid: libc::pid_t) -> libc::pid_t {
    // SAFETY: one integer each.
    let sessions = [pid, 0].map(|pid| unsafe { libc::getsid(pid) });
    if sessions[0] != sessions[1] || sessions[0] == -1 {
        return -1;
    }
    // SAFETY: one integer.
    unsafe { libc::getpgid(pid) }
}

/// A pipe, both ends close-on-exec: the one to read from, and the one to write to.
fn pipe() -> Option<(RawFd, RawFd)> {
    let mut ends = [-1; 2];
    // SAFETY: there is room for the two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0;
    made.then_some((ends[0], ends[1]))
}

/// Whom a signal for the command is sent to.
#[derive(Clone, Copy)]
enum Reach<'a> {
    /// Its whole group.
    Group,
    /// Itself, if its group hasn't got the signal already, as far as that is known.
    Process(Option<&'a Witness>),
}

/// A process in the group that the command shares with its wrapper, which blocks all signals, so that
/// it can be asked whether the group has got one. The kernel signals all of a group in one go, so what
/// has reached the wrapper in this way has reached the witness as well.
///
/// Its end isn't told by `SIGCHLD`, so that `wait4(2)` passes over it: it counts for none of the
/// command's processes.
struct Witness {
    pid: libc::pid_t,
    link: RawFd,
    /// For each signal, when the group was last known to have got it, in milliseconds; 0: never.
    seen: [Cell<u64>; signal::LAST as usize + 1],
}

impl Witness {
    /// `None` where there can't be one; signals may then reach the command twice.
    fn start() -> Option<Self> {
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

    /// Enters the group. Returns whether that has worked.
    fn join(&self, group: libc::pid_t) -> bool {
        // SAFETY: integers only.
        let joined = unsafe { libc::setpgid(self.pid, group) } == 0;
        if !joined {
            self.end();
        }
        joined
    }

    fn end(&self) {
        // SAFETY: integers only: a child that nobody has reaped. It may have been stopped.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let mut status = 0;
        // SAFETY: `status` is writable.
        unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) };
    }

    /// Whether the group has got this signal, or one that undoes it. Two of the same that come at once
    /// are one to the witness, and may be two to the wrapper.
    fn has_seen(&self, signal: c_int) -> bool {
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

/// Ends the supervisor, and its witness before it.
fn leave(witness: Option<&Witness>) -> ! {
    if let Some(witness) = witness {
        witness.end();
    }
    exit_now(0)
}

fn not_started(control: RawFd, step: Step, errno: c_int) -> ! {
    send_packet(control, &Packet::new([NOT_STARTED, step as i32, errno, 0]));
    exit_now(0)
}

/// Closes every descriptor but these three, which become 0, 1 and 2; the third may be -1. Returns the
/// first's new number.
fn keep_three(first: RawFd, second: RawFd, third: RawFd) -> RawFd {
    let mut kept = [first, second, third];
    kept.sort_unstable();
    close_all_but(&kept);
    // Out of each other's way first. They are never 0 to 2 here unless the gate runs without
    // standard descriptors.
    // SAFETY: integers only.
    let first = unsafe { libc::fcntl(first, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: integers only.
    let second = unsafe { libc::fcntl(second, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: integers only.
    let third = unsafe { libc::fcntl(third, libc::F_DUPFD_CLOEXEC, 3) };
    // SAFETY: integers only; the numbers' earlier owners are not used again in this process.
    unsafe { libc::dup2(first, 0) };
    // SAFETY: as above.
    unsafe { libc::dup2(second, 1) };
    // SAFETY: as above.
    let last = unsafe { libc::dup2(third, 2) };
    close_range(if last == 2 { 3 } else { 2 }, RawFd::MAX, 0);
    0
}

/// Reaps until nothing is left; passes on signals; kills everything once the gate lets go.
/// `changes` tells those of children; `reach` is `None` where the command never ran.
fn wait_for_all(control: RawFd, changes: RawFd, child: libc::pid_t, reach: Option<Reach<'_>>) {
    let mut running = reach.is_some();
    let own_group = matches!(reach, Some(Reach::Group));
    loop {
        if !reap_ended(control, child, &mut running) {
            return;
        }
        let mut sources = [control, changes].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: two entries, both writable. All signals are blocked, so it isn't interrupted.
        unsafe { libc::poll(sources.as_mut_ptr(), 2, -1) };
        if sources[1].revents != 0 {
            drain(changes);
        }
        if sources[0].revents != 0 {
            let mut signal = [0_u8; 4];
            // SAFETY: the buffer is writable.
            let read =
                unsafe { libc::recv(control, signal.as_mut_ptr().cast(), 4, libc::MSG_DONTWAIT) };
            if read == 4 {
                let signal = i32::from_ne_bytes(signal);
                let seen = match reach {
                    Some(Reach::Process(Some(witness))) => witness.has_seen(signal),
                    _ => false,
                };
                if running && !seen {
                    pass_on(child, signal, own_group);
                }
            } else if read == 0 || errno() != libc::EAGAIN {
                if running {
                    pass_on(child, libc::SIGTERM, own_group);
                    pass_on(child, libc::SIGCONT, own_group);
                }
                let witness = match reach {
                    Some(Reach::Process(witness)) => witness,
                    _ => None,
                };
                signal_children(libc::SIGTERM, witness);
                let mut grace = GRACE_MILLISECONDS;
                while grace > 0 && reap_ended(control, child, &mut running) {
                    // SAFETY: no entries. Nothing else is waited for, so short naps do.
                    unsafe { libc::poll(std::ptr::null_mut(), 0, NAP_MILLISECONDS) };
                    grace -= NAP_MILLISECONDS;
                }
                kill_all(control, child, witness, &mut running, own_group);
                return;
            }
        }
    }
}

/// Sends a signal to the command, which hasn't been reaped.
fn pass_on(child: libc::pid_t, signal: c_int, whole_group: bool) {
    let target = if whole_group { -child } else { child };
    // SAFETY: integers only; what fails here failed for the command too.
    unsafe { libc::kill(target, signal) };
}

/// Reaps what has ended, and reports the command's own changes. Returns whether any child is left.
fn reap_ended(control: RawFd, child: libc::pid_t, running: &mut bool) -> bool {
    while reap_one(
        control,
        child,
        running,
        libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED,
    ) {}
    // SAFETY: no information is wanted; nothing is reaped.
    let left = unsafe {
        libc::waitid(
            libc::P_ALL,
            0,
            std::ptr::null_mut(),
            libc::WEXITED | libc::WNOHANG | libc::WNOWAIT,
        )
    };
    left == 0
}

/// Reaps one process, or takes note of its change; `flags` are those of `wait4(2)`. Returns whether
/// there was one.
fn reap_one(control: RawFd, child: libc::pid_t, running: &mut bool, flags: c_int) -> bool {
    let mut status = 0;
    let looked_at = context::monotonic_nanoseconds();
    // SAFETY: all zeroes is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both places are writable.
    let pid = unsafe { libc::wait4(-1, &raw mut status, flags, &raw mut usage) };
    if pid == child && *running {
        if libc::WIFSTOPPED(status) {
            send_stopped(control, libc::WSTOPSIG(status), looked_at);
        } else if libc::WIFCONTINUED(status) {
            send_packet(control, &Packet::new([CONTINUED, 0, 0, 0]));
        } else {
            *running = false;
            send_packet(
                control,
                &Packet {
                    numbers: [ENDED, status, 0, 0],
                    counts: [
                        microseconds(usage.ru_utime),
                        microseconds(usage.ru_stime),
                        usage.ru_maxrss.unsigned_abs(),
                    ],
                },
            );
        }
    }
    pid > 0
}

fn microseconds(time: libc::timeval) -> u64 {
    time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_usec.unsigned_abs()
}

/// Kills every descendant. Each that dies hands its own children to the supervisor, as the nearest
/// subreaper, so killing children until there are none leaves nobody.
fn kill_all(
    control: RawFd,
    child: libc::pid_t,
    witness: Option<&Witness>,
    running: &mut bool,
    own_group: bool,
) {
    while reap_ended(control, child, running) {
        match signal_children(libc::SIGKILL, witness) {
            // No such list (a kernel without CONFIG_PROC_CHILDREN, or no /proc): what is left is the
            // command and its group. One that has been reaped is no child, so the call then does
            // nothing but in the moment before its id is used again.
            None => pass_on(child, libc::SIGKILL, own_group),
            Some(Signalled { refused, sent: 0 }) if refused > 0 => {
                send_packet(control, &Packet::new([LEFT_BEHIND, refused, 0, 0]));
                return;
            }
            Some(_) => {}
        }
        reap_one(control, child, running, 0);
    }
}

/// How many children a signal was sent to, and for how many it may not be.
#[derive(Default)]
struct Signalled {
    sent: c_int,
    refused: c_int,
}

/// Sends a signal to the children that `/proc` lists (`proc_pid_children(5)`), as many as one read
/// tells, but not to the witness. `None` where there is no such list.
fn signal_children(signal: c_int, witness: Option<&Witness>) -> Option<Signalled> {
    // SAFETY: the string is readable. The supervisor has one thread, whose children these are.
    let list = unsafe {
        libc::open(
            c"/proc/thread-self/children".as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    if list == -1 {
        return None;
    }
    let witness = witness.map_or(-1, |witness| witness.pid);
    let mut signalled = Signalled::default();
    let mut text = [0_u8; 4096];
    // SAFETY: the buffer is writable.
    let read = unsafe { libc::read(list, text.as_mut_ptr().cast(), text.len()) };
    // SAFETY: it is ours, and not used again.
    unsafe { libc::close(list) };
    let mut pid: libc::pid_t = 0;
    for byte in text.iter().take(read.max(0).unsigned_abs()) {
        if byte.is_ascii_digit() {
            pid = pid
                .wrapping_mul(10)
                .wrapping_add(libc::pid_t::from(byte - b'0'));
        } else {
            if pid > 1 && pid != witness {
                // SAFETY: integers only. A child that nobody has reaped: the id is still its own.
                match unsafe { libc::kill(pid, signal) } {
                    0 => signalled.sent += 1,
                    _ => signalled.refused += 1,
                }
            }
            pid = 0;
        }
    }
    Some(signalled)
}

/// Becomes the command once it may, or tells through `status` why not.
fn become_command(plan: &Plan, joined: libc::pid_t, status: RawFd, release: RawFd) -> ! {
    let confinement = plan.command.confinement.as_ref();
    let ruleset = confinement.map_or(-1, Confinement::ruleset_number);
    let [status, release, ruleset] = [status, release, ruleset].map(Cell::new);
    let Err((step, errno)) = prepare_and_execute(plan, joined, [&status, &release, &ruleset]);
    let status = status.get();
    let mut bytes = [0_u8; 8];
    bytes[..4].copy_from_slice(&(step as i32).to_ne_bytes());
    bytes[4..].copy_from_slice(&errno.to_ne_bytes());
    // SAFETY: `bytes` is readable.
    unsafe { libc::write(status, bytes.as_ptr().cast(), bytes.len()) };
    exit_now(127)
}

fn prepare_and_execute(
    plan: &Plan,
    joined: libc::pid_t,
    kept: [&Cell<RawFd>; 3],
) -> Result<std::convert::Infallible, (Step, c_int)> {
    let context = &plan.command.context;
    // SAFETY: integers only. It fails where the group is in another terminal session, or gone.
    if joined <= 0 || unsafe { libc::setpgid(0, joined) } != 0 {
        // SAFETY: integers only.
        unsafe { libc::setpgid(0, 0) };
    }
    let at = |step: Step| move |errno: c_int| (step, errno);
    // Before the descriptors are placed: one of them may get the number that the directory has here.
    enter_directory(&plan.command.directory).map_err(at(Step::Directory))?;
    place_descriptors(plan, kept).map_err(at(Step::Descriptors))?;
    // SAFETY: one integer.
    unsafe { libc::umask(context.umask.unwrap_or(0o022) & 0o777) };
    set_schedule(context);
    set_memory(plan);
    for (resource, soft, hard) in &context.limits {
        set_limit(*resource, *soft, *hard).map_err(at(Step::Context))?;
    }
    let mut byte = [0_u8; 1];
    // SAFETY: the buffer is writable. It ends without a byte if the supervisor is no more.
    if unsafe { libc::read(kept[1].get(), byte.as_mut_ptr().cast(), 1) } != 1 {
        return Err((Step::Fork, libc::ECHILD));
    }
    set_signals(plan).map_err(at(Step::Context))?;
    if context.no_new_privileges {
        // SAFETY: integers only.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
            return Err((Step::Context, errno()));
        }
    }
    for number in &plan.command.closed_by_exec {
        // SAFETY: integers only.
        unsafe { libc::fcntl(*number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // Last: what comes before it may need what it takes away.
    if let Some(confinement) = &plan.command.confinement {
        confinement
            .apply(kept[2].get())
            .map_err(at(Step::Confinement))?;
    }
    let program = plan.command.program.as_ptr();
    // SAFETY: a string and two null-terminated arrays of strings, all owned by `plan`.
    unsafe { libc::execve(program, plan.argv.as_ptr(), plan.envp.as_ptr()) };
    let failure = errno();
    if failure == libc::ENOEXEC
        && let Some(script) = &plan.script
    {
        // SAFETY: as above.
        unsafe { libc::execve(c"/bin/sh".as_ptr(), script.as_ptr(), plan.envp.as_ptr()) };
    }
    Err((Step::Exec, failure))
}

/// When and where it runs: never sooner than the gate itself. What isn't granted stays as the gate's.
fn set_schedule(context: &InheritedContext) {
    if let Some(nice) = context.nice {
        // SAFETY: integers only; it can't fail for this process.
        let own = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        // SAFETY: integers only.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice.max(own)) };
    }
    if let Some(policy @ (libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE)) =
        context.scheduler
    {
        let none = libc::sched_param { sched_priority: 0 };
        // SAFETY: the parameter is readable.
        unsafe { libc::sched_setscheduler(0, policy, &raw const none) };
    }
    // Of the classes, the first is real time.
    if let Some(priority) = context.io_priority
        && priority >> IO_CLASS_SHIFT != 1
    {
        // SAFETY: integers only: this process.
        unsafe { libc::syscall(libc::SYS_ioprio_set, IO_WHO_PROCESS, 0, priority) };
    }
    if !context.cpus.is_empty() {
        let size = size_of_val(&context.cpus[..]);
        // SAFETY: the mask is readable for its size.
        unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size, context.cpus.as_ptr()) };
    }
    if let Some(slack) = context.timer_slack {
        // SAFETY: integers only.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack, 0, 0, 0) };
    }
}

fn set_memory(plan: &Plan) {
    if let Some(personality) = plan.command.context.personality {
        // SAFETY: one integer.
        unsafe { libc::personality(libc::c_ulong::from(personality & PERSONALITY)) };
    }
    for (path, value) in [
        (c"/proc/self/oom_score_adj", &plan.oom_score_adj),
        (c"/proc/self/coredump_filter", &plan.core_dump_filter),
    ] {
        let Some(Decimal { digits, length }) = value else {
            continue;
        };
        // SAFETY: the string is readable.
        let file = unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
        if file != -1 {
            // SAFETY: the digits are readable. What may not be lowered stays as it is.
            unsafe { libc::write(file, digits.as_ptr().cast(), *length) };
            // SAFETY: it is ours, and not used again.
            unsafe { libc::close(file) };
        }
    }
}

/// Puts each descriptor at its number, and has exec close all others. What is in the way of one and
/// needed later, `kept` too, moves to whatever number is free: one free number is enough.
fn place_descriptors(plan: &Plan, kept: [&Cell<RawFd>; 3]) -> Result<(), c_int> {
    for (copy, (source, _)) in plan.copies.iter().zip(&plan.command.descriptors) {
        copy.set(source.as_raw_fd());
    }
    for (index, (_, destination)) in plan.command.descriptors.iter().enumerate() {
        let rest = plan.copies.get(index..).and_then(<[_]>::split_first);
        let (this, later) = rest.ok_or(libc::EINVAL)?;
        if this.get() == *destination || is_same_file(this.get(), *destination) {
            // SAFETY: integers only. Exec is to leave it open.
            if unsafe { libc::fcntl(*destination, libc::F_SETFD, 0) } == -1 {
                return Err(errno());
            }
            continue;
        }
        for needed in later.iter().chain(kept) {
            if needed.get() == *destination {
                // SAFETY: integers only.
                let moved = unsafe { libc::fcntl(*destination, libc::F_DUPFD_CLOEXEC, 0) };
                if moved == -1 {
                    return Err(errno());
                }
                needed.set(moved);
            }
        }
        // SAFETY: integers only. The copy isn't close-on-exec.
        if unsafe { libc::dup2(this.get(), *destination) } == -1 {
            return Err(errno());
        }
    }
    let mut next = 0;
    for destination in &plan.destinations {
        close_range(next, destination - 1, libc::CLOSE_RANGE_CLOEXEC);
        next = destination + 1;
    }
    close_range(next, RawFd::MAX, libc::CLOSE_RANGE_CLOEXEC);
    Ok(())
}

/// Whether both numbers are of one open file already, as for what the gate itself inherited: a number
/// beyond the limit can be kept, but not made.
fn is_same_file(one: RawFd, other: RawFd) -> bool {
    // `KCMP_FILE`, `linux/kcmp.h`.
    const FILE: c_int = 0;
    // SAFETY: no arguments.
    let own = unsafe { libc::getpid() };
    // SAFETY: integers only. Without this call (`CONFIG_KCMP`) nothing is the same.
    unsafe { libc::syscall(libc::SYS_kcmp, own, own, FILE, one, other) == 0 }
}

/// [`NOT_EXACTLY`] where it isn't exactly the directory of its name.
fn enter_directory(directory: &Directory) -> Result<(), c_int> {
    let result = match directory {
        // SAFETY: the string is readable.
        Directory::Named(name) | Directory::Exactly(name) => unsafe { libc::chdir(name.as_ptr()) },
        // SAFETY: one integer.
        Directory::Open(fd) => unsafe { libc::fchdir(fd.as_raw_fd()) },
    };
    if result != 0 {
        return Err(errno());
    }
    match directory {
        Directory::Exactly(name) => is_working_directory(name),
        Directory::Named(_) | Directory::Open(_) => Ok(()),
    }
}

/// Whether the kernel's own name for the directory that has been entered is this.
fn is_working_directory(name: &CStr) -> Result<(), c_int> {
    let mut buffer = [0_u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer is writable, and as long as is said. The call itself rather than the library's function, which
    // may allocate.
    let length = unsafe { libc::syscall(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) };
    // The length counts the NUL.
    let length = usize::try_from(length).map_err(|_| errno())?;
    match buffer.get(..length) {
        Some(found) if found == name.to_bytes_with_nul() => Ok(()),
        _ => Err(NOT_EXACTLY),
    }
}

fn set_limit(resource: u32, soft: u64, hard: u64) -> Result<(), c_int> {
    let mut own = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `own` is writable; an unknown resource is an error.
    if unsafe { libc::getrlimit(resource, &raw mut own) } != 0 {
        return Err(errno());
    }
    let hard = hard.min(own.rlim_max);
    let limit = libc::rlimit {
        rlim_cur: soft.min(hard),
        rlim_max: hard,
    };
    // SAFETY: `limit` is readable.
    if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
        return Err(errno());
    }
    Ok(())
}

/// Every disposition to its default or to ignored, and then the mask. By system calls, because the C
/// library keeps two signals for itself, and a command may have inherited those too.
fn set_signals(plan: &Plan) -> Result<(), c_int> {
    for number in 1..=signal::LAST {
        let ignored = plan.ignored & 1 << (number - 1) != 0;
        let action = KernelAction::new(if ignored {
            libc::SIG_IGN
        } else {
            libc::SIG_DFL
        });
        // SAFETY: `action` is readable, no smaller than the kernel's, and no code. It fails for KILL
        // and STOP.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                number,
                &raw const action,
                std::ptr::null_mut::<KernelAction>(),
                size_of::<KernelSet>(),
            )
        };
    }
    // SAFETY: the set is readable, and of the size that is said.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const plan.blocked,
            std::ptr::null_mut::<KernelSet>(),
            size_of::<KernelSet>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(errno()) }
}
