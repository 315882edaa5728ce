//! The command's own process, from its fork to the execution of the program.

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, RawFd};

use super::super::confine::Confinement;
use super::super::signal::{self, KernelAction, KernelSet};
use super::forked::{close_range, errno, exit_now};
use super::plan::{Decimal, Plan};
use super::{Directory, InheritedContext, NOT_EXACTLY, Step};

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

/// Becomes the command once it may, or tells through `status` why not.
pub(super) fn become_command(plan: &Plan, joined: libc::pid_t, status: RawFd, release: RawFd) -> ! {
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
