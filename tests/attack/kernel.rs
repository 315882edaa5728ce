//! Attacks by system calls that undo a sandbox, or do something to the machine.

use crate::attack::{Attack, Who};

pub(crate) const ATTACKS: &[Attack] = &[
    Attack::new("use `io_uring`", "python3 $PROGRAMS/kernel.py io_uring"),
    Attack::new(
        "use `userfaultfd`",
        "python3 $PROGRAMS/kernel.py userfaultfd",
    ),
    Attack::new("make a BPF map", "python3 $PROGRAMS/kernel.py bpf").by(Who::Root),
    Attack::new(
        "add a key to a keyring",
        "python3 $PROGRAMS/kernel.py keyring",
    ),
    Attack::new(
        "measure performance",
        "python3 $PROGRAMS/kernel.py performance",
    ),
    Attack::new("mount", "python3 $PROGRAMS/kernel.py mount").by(Who::Root),
    Attack::new(
        "mount by a file system's descriptor",
        "python3 $PROGRAMS/kernel.py new_mount",
    )
    .by(Who::Root),
    Attack::new("copy a mount", "python3 $PROGRAMS/kernel.py copied_mount").by(Who::Root),
    Attack::new(
        "make a user namespace",
        "python3 $PROGRAMS/kernel.py user_namespace",
    ),
    Attack::new(
        "make a user namespace by `clone`",
        "python3 $PROGRAMS/kernel.py clone",
    ),
    Attack::new(
        "make a user namespace by `clone3`",
        "python3 $PROGRAMS/kernel.py clone3",
    ),
    Attack::new(
        "make a user namespace by the 32 bit interface",
        "$BUILT/old_calls 32",
    ),
    Attack::new(
        "make a user namespace by x32's interface",
        "$BUILT/old_calls x32",
    ),
    Attack::new(
        "make a mount namespace",
        "python3 $PROGRAMS/kernel.py mount_namespace",
    )
    .by(Who::Root),
    Attack::new(
        "make a network namespace",
        "python3 $PROGRAMS/kernel.py network_namespace",
    )
    .by(Who::Root),
    Attack::new(
        "enter a namespace",
        "python3 $PROGRAMS/kernel.py set_namespace",
    )
    .by(Who::Root),
    Attack::new(
        "change the root directory",
        "python3 $PROGRAMS/kernel.py change_root",
    )
    .by(Who::Root),
    Attack::new(
        "change the machine's name",
        "python3 $PROGRAMS/kernel.py hostname",
    )
    .by(Who::Root),
    Attack::new("read the kernel's log", "python3 $PROGRAMS/kernel.py log").by(Who::Root),
    Attack::new("load a module", "python3 $PROGRAMS/kernel.py module").by(Who::Root),
    Attack::new(
        "watch a file system (`fanotify`)",
        "python3 $PROGRAMS/kernel.py watch",
    )
    .by(Who::Root),
    Attack::new(
        "use input and output ports",
        "python3 $PROGRAMS/kernel.py ports",
    )
    .by(Who::Root),
    Attack::new(
        "attach System V shared memory of a process outside",
        "python3 $PROGRAMS/kernel.py shared_memory",
    ),
    Attack::new(
        "use a System V message queue of a process outside",
        "python3 $PROGRAMS/kernel.py machine_queue",
    ),
    Attack::new(
        "open a POSIX message queue of a process outside",
        "python3 $PROGRAMS/kernel.py queue",
    ),
    Attack::new(
        "type into the terminal (`TIOCSTI`)",
        "python3 $PROGRAMS/kernel.py typing",
    ),
    Attack::new(
        "type into it by a number of 64 bits",
        "python3 $PROGRAMS/kernel.py typing_wide",
    ),
];
