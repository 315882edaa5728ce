//! The filter of system calls: what Landlock and mounts don't cover.
//!
//! What is refused gives an error, and ends nobody: programs that try whether they may go on without.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare,
    SeccompCondition as Condition, SeccompFilter, SeccompRule as Rule,
};

use crate::model::NetworkAccess;
use crate::sys::confine::{Filter, Instruction};

/// Refused whatever the arguments are.
const REFUSED: &[libc::c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Input and output past this filter.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    // Keyrings.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // The kernel itself, and the machine.
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_nfsservctl,
];

/// Refused on machines that have them.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[libc::c_long] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[libc::c_long] = &[];

/// New namespaces, in `clone(2)` and `unshare(2)`.
const NAMESPACES: [libc::c_int; 8] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    CLONE_NEWTIME,
];
/// `linux/sched.h`. In `clone(2)` the bit is part of a signal's number, which is never as large.
const CLONE_NEWTIME: libc::c_int = 0x80;

/// Typing into a terminal, and changing how the kernel treats a file: `ioctl_tty(2)`, `ioctl_iflags(2)`.
const CONTROLS: [u64; 7] = [
    libc::TIOCSTI,
    libc::TIOCCONS,
    // `TIOCLINUX`: pasting, on a virtual console.
    0x541c,
    // `FS_IOC_SETFLAGS`, `FS_IOC_FSSETXATTR`, `FS_IOC_SETVERSION`, `EXT4_IOC_SETVERSION`.
    0x4008_6602,
    0x401c_5820,
    0x4008_7602,
    0x4008_6604,
];

/// What file systems with subvolumes do for whoever has a directory open: a snapshot is another way to what is hidden.
/// The kind of a control is in these bits of it (`asm-generic/ioctl.h`).
const KIND_OF_CONTROL: u64 = 0xff00;
/// `linux/btrfs.h`, and bcachefs.
const KINDS_OF_SUBVOLUMES: [u64; 2] = [0x9400, 0xbc00];
/// `FICLONE`, `FICLONERANGE` and `FIDEDUPERANGE` are of Btrfs's kind, and every file system's: `ioctl_ficlone(2)`.
const SHARES_CONTENT: [u64; 3] = [0x4004_9409, 0x4020_940d, 0xc018_9436];

/// Calls that change how another process runs, with the argument that names it; 0 is the caller.
const OTHERS: [(libc::c_long, u8); 7] = [
    (libc::SYS_prlimit64, 0),
    (libc::SYS_setpriority, 1),
    (libc::SYS_ioprio_set, 1),
    (libc::SYS_sched_setscheduler, 0),
    (libc::SYS_sched_setparam, 0),
    (libc::SYS_sched_setattr, 0),
    (libc::SYS_migrate_pages, 0),
];

/// Calls whose first argument says whether they mean a process, with what says so: else 0 is all of a user's.
const OF_MANY: [(libc::c_long, u64); 2] = [
    (libc::SYS_setpriority, libc::PRIO_PROCESS as u64),
    // `IOPRIO_WHO_PROCESS`, of `linux/ioprio.h`.
    (libc::SYS_ioprio_set, 1),
];

/// Programs that become another user when they are executed are not to be made.
const SET_ID: [u64; 2] = [libc::S_ISUID as u64, libc::S_ISGID as u64];

/// Flags of `open(2)` by which a file is made: `O_CREAT`, and what of `O_TMPFILE` is its alone.
const MAKES: [u64; 2] = [
    libc::O_CREAT as u64,
    (libc::O_TMPFILE & !libc::O_DIRECTORY) as u64,
];

fn condition(argument: u8, compare: Compare, value: u64) -> seccompiler::Result<Condition> {
    // The kernel looks at 32 bits of these: a filter that looked at more could be got around.
    Ok(Condition::new(argument, Length::Dword, compare, value)?)
}

fn all(conditions: Vec<Condition>) -> seccompiler::Result<Rule> {
    Ok(Rule::new(conditions)?)
}

/// That this argument has one of these bits.
fn any_bit(argument: u8, bits: impl IntoIterator<Item = u64>) -> seccompiler::Result<Vec<Rule>> {
    bits.into_iter()
        .map(|bit| all(vec![condition(argument, Compare::MaskedEq(bit), bit)?]))
        .collect()
}

type Rules = BTreeMap<libc::c_long, Vec<Rule>>;

/// What is refused with "permission denied".
fn refused(network: NetworkAccess) -> seccompiler::Result<Rules> {
    let mut rules: Rules = REFUSED
        .iter()
        .chain(REFUSED_HERE)
        .map(|call| (*call, vec![]))
        .collect();
    let namespaces = || NAMESPACES.map(|bit| u64::from(bit.cast_unsigned()));
    rules.insert(libc::SYS_unshare, any_bit(0, namespaces())?);
    let others = namespaces()
        .into_iter()
        .filter(|bit| *bit != CLONE_NEWTIME as u64);
    rules.insert(libc::SYS_clone, any_bit(0, others)?);
    let controls = CONTROLS.map(|control| all(vec![condition(1, Compare::Eq, control)?]));
    let mut controls = controls.into_iter().collect::<Result<Vec<_>, _>>()?;
    for kind in KINDS_OF_SUBVOLUMES {
        let mut conditions = vec![condition(1, Compare::MaskedEq(KIND_OF_CONTROL), kind)?];
        for shares in SHARES_CONTENT {
            conditions.push(condition(1, Compare::Ne, shares)?);
        }
        controls.push(all(conditions)?);
    }
    rules.insert(libc::SYS_ioctl, controls);

    // The limits and priorities of other processes of the user, the gate among them.
    for (call, process) in OTHERS {
        let other = condition(process, Compare::Ne, 0)?;
        rules.insert(call, vec![all(vec![other])?]);
    }
    for (call, process) in OF_MANY {
        let others = all(vec![condition(0, Compare::Ne, process)?])?;
        rules.entry(call).or_default().push(others);
    }

    rules.insert(libc::SYS_fchmod, any_bit(1, SET_ID)?);
    rules.insert(libc::SYS_fchmodat, any_bit(2, SET_ID)?);
    rules.insert(SYS_FCHMODAT2, any_bit(2, SET_ID)?);
    rules.insert(libc::SYS_mkdirat, any_bit(2, SET_ID)?);
    let creates = |flags: u8, mode: u8| -> seccompiler::Result<Vec<Rule>> {
        let rule = |(flag, bit)| {
            all(vec![
                condition(flags, Compare::MaskedEq(flag), flag)?,
                condition(mode, Compare::MaskedEq(bit), bit)?,
            ])
        };
        let kinds = MAKES
            .into_iter()
            .flat_map(|flag| SET_ID.map(|bit| (flag, bit)));
        kinds.map(rule).collect()
    };
    rules.insert(libc::SYS_openat, creates(2, 3)?);
    #[cfg(target_arch = "x86_64")]
    {
        rules.insert(libc::SYS_chmod, any_bit(1, SET_ID)?);
        rules.insert(libc::SYS_creat, any_bit(1, SET_ID)?);
        rules.insert(libc::SYS_mkdir, any_bit(1, SET_ID)?);
        rules.insert(libc::SYS_open, creates(1, 2)?);
        // A FIFO and a socket are made by it too.
        rules.insert(libc::SYS_mknod, nodes(1)?);
    }
    rules.insert(libc::SYS_mknodat, nodes(2)?);
    sockets(&mut rules, network)?;
    Ok(rules)
}

/// Devices, and set-id bits on whatever is made.
fn nodes(mode: u8) -> seccompiler::Result<Vec<Rule>> {
    let mut rules = any_bit(mode, SET_ID)?;
    for kind in [libc::S_IFCHR, libc::S_IFBLK] {
        let mask = Compare::MaskedEq(libc::S_IFMT.into());
        rules.push(all(vec![condition(mode, mask, kind.into())?])?);
    }
    Ok(rules)
}

/// Without a network: sockets are Unix sockets, and made in pairs or inherited: what can't connect reaches
/// nobody by a name. With one: sockets of the internet, and Unix sockets in pairs.
///
/// Where a name leads is nothing that a filter can see, and the sockets of services that are the way out
/// of a sandbox have names: container engines, service managers, agents that sign.
fn sockets(rules: &mut Rules, network: NetworkAccess) -> seccompiler::Result<()> {
    let none_of = |domains: &[libc::c_int]| {
        let conditions = domains
            .iter()
            .map(|domain| condition(0, Compare::Ne, u64::from(domain.cast_unsigned())))
            .collect::<seccompiler::Result<_>>()?;
        all(conditions)
    };
    match network {
        NetworkAccess::Denied => {
            rules.insert(libc::SYS_socket, vec![none_of(&[libc::AF_UNIX])?]);
            rules.insert(libc::SYS_connect, vec![]);
            // To a name, rather than to the other end.
            let named = Condition::new(4, Length::Qword, Compare::Ne, 0)?;
            rules.insert(libc::SYS_sendto, vec![all(vec![named])?]);
        }
        NetworkAccess::Allowed => {
            let internet = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
            rules.insert(libc::SYS_socket, vec![none_of(&internet)?]);
        }
    }
    rules.insert(libc::SYS_socketpair, vec![none_of(&[libc::AF_UNIX])?]);
    Ok(())
}

/// `asm/unistd.h`: the same on all machines.
const SYS_FCHMODAT2: libc::c_long = 452;
/// Since Linux 6.15 and 6.17: mounts, and what `FS_IOC_FSSETXATTR` does.
const SYS_OPEN_TREE_ATTR: libc::c_long = 467;
const SYS_FILE_SETATTR: libc::c_long = 469;

/// Calls whose arguments a filter can't see: said not to be there, so that programs and libraries use their
/// elders, which it can.
const NOT_THERE: [libc::c_long; 4] = [
    libc::SYS_clone3,
    libc::SYS_openat2,
    SYS_OPEN_TREE_ATTR,
    SYS_FILE_SETATTR,
];

/// Shared memory, semaphores and queues of System V, and POSIX's queues: `sysvipc(7)`, `mq_overview(7)`. They have no
/// path, and belong to whoever is of the same user.
const COMMUNICATION: [libc::c_long; 13] = [
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Whose memory, semaphores and queues without a path those of a sandbox are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Communication {
    /// Its own: it has a namespace for them.
    Own,
    /// All processes': they are said not to be there.
    Shared,
}

/// The filters for a sandbox, to be put in force one after the other.
///
/// # Errors
/// A machine that the filters aren't written for.
pub(super) fn filters(
    network: NetworkAccess,
    communication: Communication,
) -> io::Result<Vec<Filter>> {
    let shared: &[libc::c_long] = match communication {
        Communication::Own => &[],
        Communication::Shared => &COMMUNICATION,
    };
    let absent = NOT_THERE.iter().chain(shared);
    let absent = absent.map(|call| (*call, vec![])).collect();
    let compiled = refused(network).and_then(|refused| {
        Ok([
            compile(refused, libc::EPERM)?,
            compile(absent, libc::ENOSYS)?,
        ])
    });
    compiled
        .map_err(io::Error::other)?
        .into_iter()
        .map(|program| Filter::new(instructions(program)))
        .collect()
}

fn compile(rules: Rules, errno: libc::c_int) -> seccompiler::Result<BpfProgram> {
    let machine = std::env::consts::ARCH.try_into()?;
    let refusal = SeccompAction::Errno(errno.unsigned_abs());
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, refusal, machine)?.try_into()?)
}

/// The program, with a beginning that knows x86-64's second set of numbers for the same calls (x32): it
/// passes the check of the machine, and none of its numbers is in a list.
fn instructions(program: BpfProgram) -> Vec<Instruction> {
    const X32: u32 = 0x4000_0000;
    let load_number = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0);
    let at_least = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32);
    let not_there = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    let refuse = (libc::BPF_RET | libc::BPF_K, 0, 0, not_there);
    #[allow(clippy::cast_possible_truncation, reason = "operations are 16 bits")]
    let beginning =
        [load_number, at_least, refuse].map(|(code, if_true, if_false, operand)| Instruction {
            code: code as u16,
            if_true,
            if_false,
            operand,
        });
    let rest = program.into_iter().map(|instruction| Instruction {
        code: instruction.code,
        if_true: instruction.jt,
        if_false: instruction.jf,
        operand: instruction.k,
    });
    beginning.into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests;
