//! The life of a supervisor, after the fork.

use std::ffi::c_int;
use std::os::fd::RawFd;

use super::super::context;
use super::execute::become_command;
use super::forked::{close_all_but, close_range, errno, exit_now};
use super::inside::Inside;
use super::plan::Plan;
use super::report::{CONTINUED, ENDED, LEFT_BEHIND, NOT_STARTED, Packet, STARTED, STOPPED, Step};
use super::witness::Witness;
use super::{GRACE, ProcessGroup, signal_set};

#[allow(clippy::cast_possible_truncation, reason = "a quarter of a second")]
const GRACE_MILLISECONDS: c_int = GRACE.as_millis() as c_int;
const NAP_MILLISECONDS: c_int = 5;

/// Whom a signal for the command is sent to.
#[derive(Clone, Copy)]
enum Reach<'a> {
    /// Its whole group.
    Group,
    /// Itself, if its group hasn't got the signal already, as far as that is known.
    Process(Option<&'a Witness>),
    /// Likewise, where it isn't the child but what that has started.
    Inner(&'a Inside, Option<&'a Witness>),
    /// Its whole group, which it may not have entered yet.
    InnerGroup(&'a Inside),
}

impl<'a> Reach<'a> {
    fn witness(self) -> Option<&'a Witness> {
        match self {
            Self::Group | Self::InnerGroup(_) => None,
            Self::Process(witness) | Self::Inner(_, witness) => witness,
        }
    }
}

/// How many children a signal was sent to, and for how many it may not be.
#[derive(Default)]
struct Signalled {
    sent: c_int,
    refused: c_int,
}

/// The whole life of a supervisor.
pub(super) fn supervise(plan: &Plan, control: RawFd) -> ! {
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
    let witness = witness.map(|witness| witness.moved_to(2));
    let witness = witness.as_ref();
    let status = 1;
    let mut children = signal_set(&[libc::SIGCHLD]);
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the set is readable. Without it nothing could be waited for: nothing may go on.
    let changes = unsafe { libc::signalfd(-1, &raw mut children, flags) };
    if changes == -1 {
        let errno = errno();
        kill_all(control, child, Reach::Process(witness), &mut false);
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
    let inside = Inside::default();
    let reach = match (own_group, plan.command.told_signals) {
        (true, None) => Reach::Group,
        (true, Some(_)) => Reach::InnerGroup(&inside),
        (false, None) => Reach::Process(witness),
        (false, Some(_)) => Reach::Inner(&inside, witness),
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
            pass_on(child, libc::SIGKILL, Reach::Process(None));
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

/// Reaps until nothing is left; passes on signals; kills everything once the gate lets go.
/// `changes` tells those of children; `reach` is `None` where the command never ran.
fn wait_for_all(control: RawFd, changes: RawFd, child: libc::pid_t, reach: Option<Reach<'_>>) {
    let mut running = reach.is_some();
    let reach = reach.unwrap_or(Reach::Process(None));
    loop {
        if !reap_ended(control, child, &mut running) {
            return;
        }
        let mut sources = [control, changes].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        let patience = match reach {
            Reach::Inner(inside, _) | Reach::InnerGroup(inside)
                if running && inside.has_waiting(child) =>
            {
                NAP_MILLISECONDS
            }
            _ => -1,
        };
        // SAFETY: two entries, both writable. All signals are blocked, so it isn't interrupted.
        unsafe { libc::poll(sources.as_mut_ptr(), 2, patience) };
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
                let seen = reach.witness().is_some_and(|it| it.has_seen(signal));
                if running && !seen {
                    pass_on(child, signal, reach);
                }
            } else if read == 0 || errno() != libc::EAGAIN {
                if running {
                    pass_on(child, libc::SIGTERM, reach);
                    pass_on(child, libc::SIGCONT, reach);
                }
                signal_children(libc::SIGTERM, reach.witness());
                let mut grace = GRACE_MILLISECONDS;
                while grace > 0 && reap_ended(control, child, &mut running) {
                    // SAFETY: no entries. Nothing else is waited for, so short naps do.
                    unsafe { libc::poll(std::ptr::null_mut(), 0, NAP_MILLISECONDS) };
                    grace -= NAP_MILLISECONDS;
                }
                kill_all(control, child, reach, &mut running);
                return;
            }
        }
    }
}

/// Kills every descendant. Each that dies hands its own children to the supervisor, as the nearest
/// subreaper, so killing children until there are none leaves nobody.
fn kill_all(control: RawFd, child: libc::pid_t, reach: Reach<'_>, running: &mut bool) {
    while reap_ended(control, child, running) {
        match signal_children(libc::SIGKILL, reach.witness()) {
            // No such list (a kernel without CONFIG_PROC_CHILDREN, or no /proc): what is left is the
            // command and its group. One that has been reaped is no child, so the call then does
            // nothing but in the moment before its id is used again.
            None => pass_on(child, libc::SIGKILL, reach),
            Some(Signalled { refused, sent: 0 }) if refused > 0 => {
                send_packet(control, &Packet::new([LEFT_BEHIND, refused, 0, 0]));
                return;
            }
            Some(_) => {}
        }
        reap_one(control, child, running, 0);
    }
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

/// Sends a signal to the command, which hasn't been reaped, as far as it reaches.
fn pass_on(child: libc::pid_t, signal: c_int, reach: Reach<'_>) {
    let target = match reach {
        Reach::Group => -child,
        Reach::Process(_) => child,
        Reach::InnerGroup(inside) => {
            if !Inside::is_there(child) {
                inside.send(child, signal);
            }
            -child
        }
        Reach::Inner(inside, _) => {
            inside.send(child, signal);
            match signal {
                // It tells of the stop. What it has blocked would be of no use to it.
                libc::SIGKILL | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU | libc::SIGCONT => {
                    child
                }
                _ => return,
            }
        }
    };
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

fn not_started(control: RawFd, step: Step, errno: c_int) -> ! {
    send_packet(control, &Packet::new([NOT_STARTED, step as i32, errno, 0]));
    exit_now(0)
}

/// Ends the supervisor, and its witness before it.
fn leave(witness: Option<&Witness>) -> ! {
    if let Some(witness) = witness {
        witness.end();
    }
    exit_now(0)
}
