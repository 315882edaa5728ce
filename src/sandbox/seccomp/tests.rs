//! What the filters answer, by running them as the kernel does: `Documentation/networking/filter.rst`.

use std::io::Read;

use super::*;

const PERMITTED: u32 = 0;
const EPERM: u32 = libc::EPERM.unsigned_abs();
const ENOSYS: u32 = libc::ENOSYS.unsigned_abs();

/// `linux/audit.h`.
const MACHINE: u32 = if cfg!(target_arch = "x86_64") {
    0xc000_003e
} else {
    0xc000_00b7
};

/// What one filter returns for a call.
fn run(filter: &Filter, machine: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let mut bytes = Vec::new();
    std::fs::File::from(filter.to_file().unwrap())
        .read_to_end(&mut bytes)
        .unwrap();
    let program: Vec<_> = bytes.chunks(8).collect();
    // `struct seccomp_data`, in words.
    let mut data = vec![number, machine, 0, 0];
    for argument in arguments {
        let [low, high] = [argument & u64::from(u32::MAX), argument >> 32];
        data.extend([low, high].map(|half| u32::try_from(half).unwrap()));
    }
    let (mut at, mut accumulator) = (0, 0_u32);
    loop {
        let instruction = program[at];
        let code = u16::from_ne_bytes([instruction[0], instruction[1]]);
        let operand = u32::from_ne_bytes(instruction[4..].try_into().unwrap());
        at += 1;
        let holds = match code {
            0x20 => {
                accumulator = data[operand as usize / 4];
                continue;
            }
            0x54 => {
                accumulator &= operand;
                continue;
            }
            0x05 => {
                at += operand as usize;
                continue;
            }
            0x06 => return operand,
            0x15 => accumulator == operand,
            0x25 => accumulator > operand,
            0x35 => accumulator >= operand,
            0x45 => accumulator & operand != 0,
            other => panic!("the instruction {other:x}"),
        };
        at += usize::from(instruction[if holds { 2 } else { 3 }]);
    }
}

/// The error that a call ends with.
fn answer(filters: &[Filter], number: libc::c_long, arguments: &[u64]) -> u32 {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    for filter in filters {
        match run(filter, MACHINE, u32::try_from(number).unwrap(), all) {
            libc::SECCOMP_RET_ALLOW => {}
            refusal => return refusal & libc::SECCOMP_RET_DATA,
        }
    }
    PERMITTED
}

fn off() -> Vec<Filter> {
    filters(NetworkAccess::Denied, Communication::Shared).unwrap()
}

fn on() -> Vec<Filter> {
    filters(NetworkAccess::Allowed, Communication::Own).unwrap()
}

#[test]
fn there_are_filters_with_and_without_a_network() {
    assert_eq!((off().len(), on().len()), (2, 2));
    assert_ne!(off(), on());
}

#[test]
fn what_reaches_beyond_a_sandbox_is_refused_whatever_its_arguments() {
    // Written out once more: what is taken out of a list has to be taken out here as well.
    let calls = [
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_process_madvise,
        libc::SYS_pidfd_getfd,
        libc::SYS_kcmp,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
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
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_keyctl,
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
    #[cfg(target_arch = "x86_64")]
    let here = [
        libc::SYS_iopl,
        libc::SYS_ioperm,
        libc::SYS_modify_ldt,
        libc::SYS_uselib,
        libc::SYS_ustat,
        libc::SYS_sysfs,
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let here: [libc::c_long; 0] = [];
    for filters in [off(), on()] {
        for call in calls.into_iter().chain(here) {
            for arguments in [[0; 6], [u64::MAX; 6]] {
                assert_eq!(answer(&filters, call, &arguments), EPERM, "{call}");
            }
        }
        // The last two are `open_tree_attr` and `file_setattr`.
        for call in [libc::SYS_clone3, libc::SYS_openat2, 467, 469] {
            assert_eq!(answer(&filters, call, &[]), ENOSYS, "{call}");
        }
        for call in [libc::SYS_read, libc::SYS_execve, libc::SYS_kill] {
            assert_eq!(answer(&filters, call, &[u64::MAX; 6]), PERMITTED, "{call}");
        }
    }
}

/// What a call may be asked for, and what not.
fn tells(filters: &[Filter], call: libc::c_long, permitted: &[&[u64]], refused: &[&[u64]]) {
    for arguments in permitted {
        let found = answer(filters, call, arguments);
        assert_eq!(found, PERMITTED, "{call} {arguments:x?}");
    }
    for arguments in refused {
        assert_eq!(
            answer(filters, call, arguments),
            EPERM,
            "{call} {arguments:x?}"
        );
    }
}

#[test]
fn what_is_refused_by_its_arguments_is_refused_by_no_more_and_no_less() {
    let filters = off();
    let bit = |flag: libc::c_int| u64::from(flag.cast_unsigned());
    let child = bit(libc::SIGCHLD);
    for flag in [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ] {
        tells(
            &filters,
            libc::SYS_clone,
            &[&[child]],
            &[&[bit(flag) | child]],
        );
        tells(&filters, libc::SYS_unshare, &[], &[&[bit(flag)]]);
    }
    let files = bit(libc::CLONE_FILES);
    tells(
        &filters,
        libc::SYS_unshare,
        &[&[files]],
        &[&[0x80], &[files | 0x80]],
    );

    // Terminals and files' flags, also with bits that the kernel doesn't look at.
    let wide = 1 << 32;
    for control in [
        0x5412,
        0x541d,
        0x541c,
        0x4008_6602,
        0x401c_5820,
        0x4008_7602,
        0x4008_6604,
        // Snapshots and subvolumes of Btrfs, `SNAP_CREATE`, `SNAP_CREATE_V2`, `SUBVOL_CREATE`, `SUBVOL_SETFLAGS`; of bcachefs.
        0x5000_9401,
        0x5000_9417,
        0x5000_940e,
        0x4008_941a,
        0x4020_bc10,
    ] {
        // What `cp` shares content by is of Btrfs's kind.
        tells(
            &filters,
            libc::SYS_ioctl,
            &[
                &[0, 0x5401],
                &[0, 0x4004_9409],
                &[0, 0x4020_940d],
                &[0, 0xc018_9436],
            ],
            &[&[0, control], &[0, control | wide]],
        );
    }

    for (call, own, other) in [
        (libc::SYS_prlimit64, &[0, 7][..], &[5, 7][..]),
        (libc::SYS_setpriority, &[0, 0], &[0, 5]),
        (libc::SYS_ioprio_set, &[1, 0], &[1, 5]),
        (libc::SYS_sched_setscheduler, &[0], &[5]),
        (libc::SYS_sched_setparam, &[0], &[5]),
        (libc::SYS_sched_setattr, &[0], &[5]),
        (libc::SYS_migrate_pages, &[0], &[5]),
    ] {
        tells(&filters, call, &[own], &[other]);
    }

    // Of a process group, and of a user: 0 isn't the caller alone.
    for call in [libc::SYS_setpriority, libc::SYS_ioprio_set] {
        tells(&filters, call, &[], &[&[2, 0], &[3, 0]]);
    }
}

#[test]
fn modes_and_kinds_of_what_is_made_are_those_that_give_nobody_more() {
    let filters = off();
    let bit = |flag: libc::c_int| u64::from(flag.cast_unsigned());
    // Modes: with the set-user-ID bit, with the set-group-ID bit.
    for id in [0o4755, 0o2755] {
        tells(&filters, libc::SYS_fchmod, &[&[3, 0o755]], &[&[3, id]]);
        for call in [libc::SYS_fchmodat, SYS_FCHMODAT2, libc::SYS_mkdirat] {
            tells(&filters, call, &[&[3, 1, 0o1777]], &[&[3, 1, id]]);
        }
        let makes = [bit(libc::O_CREAT), bit(libc::O_TMPFILE | libc::O_RDWR)];
        for flags in makes {
            let permitted: &[&[u64]] = &[&[3, 1, flags, 0o755], &[3, 1, 0, id]];
            tells(&filters, libc::SYS_openat, permitted, &[&[3, 1, flags, id]]);
            #[cfg(target_arch = "x86_64")]
            tells(&filters, libc::SYS_open, &[&[1, 0, id]], &[&[1, flags, id]]);
        }
        #[cfg(target_arch = "x86_64")]
        for call in [
            libc::SYS_chmod,
            libc::SYS_creat,
            libc::SYS_mkdir,
            libc::SYS_mknod,
        ] {
            tells(&filters, call, &[&[1, 0o644]], &[&[1, id]]);
        }
        let file = u64::from(libc::S_IFREG) | id;
        tells(
            &filters,
            libc::SYS_mknodat,
            &[&[3, 1, 0o644]],
            &[&[3, 1, file]],
        );
    }
    for kind in [libc::S_IFCHR, libc::S_IFBLK] {
        let pipe = u64::from(libc::S_IFIFO) | 0o644;
        let device = u64::from(kind) | 0o644;
        tells(
            &filters,
            libc::SYS_mknodat,
            &[&[3, 1, pipe]],
            &[&[3, 1, device]],
        );
        #[cfg(target_arch = "x86_64")]
        tells(&filters, libc::SYS_mknod, &[&[1, pipe]], &[&[1, device]]);
    }
}

#[test]
fn sockets_are_those_that_the_network_has() {
    let family = |number: libc::c_int| [u64::from(number.cast_unsigned())];
    let [unix, internet, internet6, netlink, packet, vsock, alg] = [
        libc::AF_UNIX,
        libc::AF_INET,
        libc::AF_INET6,
        libc::AF_NETLINK,
        libc::AF_PACKET,
        libc::AF_VSOCK,
        libc::AF_ALG,
    ]
    .map(family);
    let all: [&[u64]; 7] = [
        &unix, &internet, &internet6, &netlink, &packet, &vsock, &alg,
    ];
    tells(&off(), libc::SYS_socket, &all[..1], &all[1..]);
    tells(&off(), libc::SYS_connect, &[], &[&[3, 1, 16]]);
    let to = |address| [3, 1, 1, 0, address, 0];
    let named: &[&[u64]] = &[&to(1), &to(1 << 32)];
    tells(&off(), libc::SYS_sendto, &[&to(0)], named);

    let others = [&all[..1], &all[4..]].concat();
    tells(&on(), libc::SYS_socket, &all[1..4], &others);
    tells(&on(), libc::SYS_connect, &[&[3, 1, 16]], &[]);
    tells(&on(), libc::SYS_sendto, &[&to(1)], &[]);
    for filters in [off(), on()] {
        tells(&filters, libc::SYS_socketpair, &all[..1], &all[1..]);
    }
}

#[test]
fn memory_and_queues_without_a_path_are_there_only_where_they_are_the_sandboxs_own() {
    for call in [
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
    ] {
        assert_eq!(answer(&off(), call, &[]), ENOSYS, "{call}");
        assert_eq!(answer(&on(), call, &[]), PERMITTED, "{call}");
    }
}

#[test]
fn other_numbers_for_the_same_calls_are_no_way_around() {
    let number = u32::try_from(libc::SYS_ptrace).unwrap();
    for filter in off() {
        // x32's, on x86-64.
        let found = run(&filter, MACHINE, number | 0x4000_0000, [0; 6]);
        assert_eq!(found, libc::SECCOMP_RET_ERRNO | ENOSYS);
        // Another machine's: i386.
        let found = run(&filter, 0x4000_0003, number, [0; 6]);
        assert_eq!(found, libc::SECCOMP_RET_KILL_PROCESS);
    }
}
