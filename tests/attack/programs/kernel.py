"""Attacks by system calls that undo a sandbox, or do something to the machine."""

import ctypes
import errno
import os
import signal
import socket
import sys

from attack import LACKING, SECRET, call, check, libc, main

CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET = 0x10000000, 0x00020000, 0x40000000


def io_uring():
    return call("io_uring_setup", 1, ctypes.create_string_buffer(256)) >= 0


def userfaultfd():
    # For user space only, which ordinary users may.
    return call("userfaultfd", 1) >= 0


def bpf():
    # BPF_MAP_CREATE: an array of one.
    attributes = (ctypes.c_uint * 32)(2, 4, 4, 1)
    return call("bpf", 0, attributes, ctypes.sizeof(attributes)) >= 0


def keyring():
    return call("add_key", b"user", b"attack", b"x", 1, -2) > 0


def performance():
    attributes = (ctypes.c_uint * 32)(1, 128)
    # `exclude_kernel` and `exclude_hv`.
    attributes[10] = 1 << 5 | 1 << 6
    return call("perf_event_open", attributes, 0, -1, -1, 0) >= 0


def mount():
    os.mkdir("m")
    check(libc.mount(b"none", b"m", b"tmpfs", 0, None))
    check(libc.umount(b"m"))
    return True


def new_mount():
    return call("fsopen", b"tmpfs", 0) >= 0


def copied_mount():
    # OPEN_TREE_CLONE
    return call("open_tree", -100, b"/", 1) >= 0


def unshare(flags):
    def attempt():
        try:
            check(libc.unshare(flags))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EUSERS):
                sys.exit(LACKING)
            raise
        return True
    return attempt


def clone():
    child = call("clone", CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True


def clone3():
    arguments = (ctypes.c_ulong * 8)(CLONE_NEWUSER, 0, 0, 0, signal.SIGCHLD)
    child = call("clone3", arguments, ctypes.sizeof(arguments))
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True


def set_namespace():
    return check(libc.setns(os.open("/proc/self/ns/net", os.O_RDONLY), CLONE_NEWNET)) == 0


def change_root():
    os.chroot("/")
    return True


def hostname():
    name = socket.gethostname().encode()
    return check(libc.sethostname(name, len(name))) == 0


def log():
    return check(libc.klogctl(3, ctypes.create_string_buffer(4096), 4096)) >= 0


def module():
    """Something that isn't one: whoever is told so may load one."""
    number = {"x86_64": 175}.get(os.uname().machine, 105)
    libc.syscall(number, b"x" * 64, 64, b"")
    if ctypes.get_errno() == errno.ENOSYS:
        sys.exit(LACKING)
    return ctypes.get_errno() == errno.ENOEXEC


def watch():
    return check(libc.fanotify_init(0, 0)) >= 0


def ports():
    if os.uname().machine != "x86_64":
        sys.exit(LACKING)
    return check(libc.iopl(3)) == 0


def typing(request):
    """Types into the terminal that it's run on."""
    def attempt():
        try:
            with open("/proc/sys/dev/tty/legacy_tiocsti") as file:
                if file.read().strip() == "0" and os.getuid():
                    sys.exit(LACKING)
        except FileNotFoundError:
            pass
        with open("/dev/tty", "rb", 0) as terminal:
            check(libc.ioctl(terminal.fileno(), ctypes.c_ulong(request), b"x"))
        return True
    return attempt


def shared_memory():
    """System V's, of a process outside."""
    libc.shmat.restype = ctypes.c_void_p
    place = libc.shmat(int(os.environ["SHARED"]), None, 0o10000)
    if place in (None, ctypes.c_void_p(-1).value):
        check(-1)
    return ctypes.string_at(place, len(SECRET)) == SECRET


def queue():
    """POSIX's, of a process outside."""
    queue = check(ctypes.CDLL("librt.so.1", use_errno=True).mq_open(os.environ["QUEUE"].encode(), os.O_RDWR))
    return queue >= 0


def machine_queue():
    """System V's, of a process outside."""
    # IPC_STAT
    return check(libc.msgctl(int(os.environ["MESSAGES"]), 2, ctypes.create_string_buffer(256))) == 0


main({
    "io_uring": io_uring,
    "userfaultfd": userfaultfd,
    "bpf": bpf,
    "keyring": keyring,
    "performance": performance,
    "mount": mount,
    "new_mount": new_mount,
    "copied_mount": copied_mount,
    "user_namespace": unshare(CLONE_NEWUSER),
    "mount_namespace": unshare(CLONE_NEWNS),
    "network_namespace": unshare(CLONE_NEWNET),
    "clone": clone,
    "clone3": clone3,
    "set_namespace": set_namespace,
    "change_root": change_root,
    "hostname": hostname,
    "log": log,
    "module": module,
    "watch": watch,
    "ports": ports,
    "typing": typing(0x5412),
    "typing_wide": typing(0x100005412),
    "shared_memory": shared_memory,
    "queue": queue,
    "machine_queue": machine_queue,
})
