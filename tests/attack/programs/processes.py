"""Attacks on processes outside: the gate, what it has escalated, and others of its user."""

import ctypes
import fcntl
import os
import resource
import signal
import subprocess
import sys

from attack import SECRET, call, check, gate, libc, main, running, supervisor, victim

PTRACE_ATTACH, PTRACE_DETACH = 16, 17


def read(path):
    with open(path, "rb") as file:
        return file.read()


def environment():
    return SECRET in read(f"/proc/{victim()}/environ")


def gates_environment():
    return b"EXECGATE_POLICY_TOKEN_FILE=" in read(f"/proc/{gate()}/environ")


def memory():
    with open(f"/proc/{victim()}/mem", "rb", 0) as file:
        file.seek(int(os.environ["ADDRESS"]))
        return file.read(len(SECRET)) == SECRET


def gates_memory():
    pid = gate()
    place = next(line.split("-")[0] for line in open(f"/proc/{pid}/maps"))
    with open(f"/proc/{pid}/mem", "rb", 0) as file:
        file.seek(int(place, 16))
        return file.read(4) == b"\x7fELF"


def maps():
    return b"execgate" in read(f"/proc/{gate()}/maps")


def descriptors():
    pid = gate()
    links = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
    return any("socket" in link for link in links)


def descriptor():
    return SECRET in read(f"/proc/{victim()}/fd/{os.environ['DESCRIPTOR']}")


def directory():
    return SECRET in read(f"/proc/{victim()}/cwd/id")


def root():
    return SECRET in read(f"/proc/{gate()}/root{os.environ['HOME']}/.ssh/id")


def gates_directory():
    """What the gate's directory leads to."""
    return SECRET in read(f"/proc/{gate()}/cwd/../home/.ssh/id")


def trace(pid):
    check(libc.ptrace(PTRACE_ATTACH, pid, None, None))
    os.waitpid(pid, 0)
    check(libc.ptrace(PTRACE_DETACH, pid, None, None))
    return True


class Span(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def spans(buffer):
    here = Span(ctypes.addressof(buffer), len(SECRET))
    there = Span(int(os.environ["ADDRESS"]), len(SECRET))
    return ctypes.byref(here), 1, ctypes.byref(there), 1, 0


def read_memory():
    buffer = ctypes.create_string_buffer(len(SECRET))
    check(libc.process_vm_readv(victim(), *spans(buffer)))
    return buffer.raw == SECRET


def write_memory():
    buffer = ctypes.create_string_buffer(SECRET)
    return check(libc.process_vm_writev(victim(), *spans(buffer))) == len(SECRET)


def take_descriptor():
    process = call("pidfd_open", victim(), 0)
    file = call("pidfd_getfd", process, int(os.environ["DESCRIPTOR"]), 0)
    return SECRET in os.pread(file, 64, 0)


def send(pid):
    # Ignored by whoever gets it, and refused to who may not send.
    os.kill(pid, signal.SIGURG)
    return True


def send_by_descriptor():
    process = call("pidfd_open", victim(), 0)
    return call("pidfd_send_signal", process, signal.SIGURG, None, 0) == 0


def send_to_group():
    os.killpg(os.getpgid(victim()), signal.SIGURG)
    return True


def send_to_thread():
    return call("tgkill", victim(), victim(), signal.SIGURG) == 0


def send_with_a_value():
    information = ctypes.create_string_buffer(128)
    # `si_code` is SI_QUEUE, -1.
    ctypes.memmove(ctypes.addressof(information) + 8, ctypes.byref(ctypes.c_int(-1)), 4)
    return call("rt_sigqueueinfo", victim(), signal.SIGURG, information) == 0


def send_by_ownership():
    """A descriptor that is ready sends a signal to its owner, who is named."""
    pid = victim()
    before = pending_or_caught(pid)
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, pid)
    fcntl.fcntl(reader, fcntl.F_SETFL, fcntl.fcntl(reader, fcntl.F_GETFL) | os.O_ASYNC)
    os.write(writer, b"x")
    return any(pending_or_caught(pid) != before for _ in range(1000))


def pending_or_caught(pid):
    """How often it went to sleep: it wakes for each signal that it handles."""
    with open(f"/proc/{pid}/status") as file:
        return next(line for line in file if line.startswith("voluntary_ctxt_switches"))


def pause_supervisor():
    pid = supervisor()
    os.kill(pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGCONT)
    return True


def priority():
    os.setpriority(os.PRIO_PROCESS, victim(), 19)
    return True


def limit():
    pid = victim()
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft - 1, hard))
    return True


def processors():
    pid = victim()
    os.sched_setaffinity(pid, os.sched_getaffinity(pid))
    return True


def oom():
    with open(f"/proc/{victim()}/oom_score_adj", "w") as file:
        file.write("900")
    return True


def command_line():
    return b"victim.py" in read(f"/proc/{victim()}/cmdline")


class escalated:
    """A command that was escalated, and reads what it is given."""

    def __enter__(self):
        # Another that attacks beside this one has a command line of its own.
        mark = os.path.abspath("cat.end")
        open(mark, "w").close()
        self.process = subprocess.Popen(
            [os.environ["SHELL_HERE"], "-c", '/bin/cat -u - "$0"; :', mark],
            stdin=subprocess.PIPE, stdout=open("cat.out", "w"), close_fds=False,
        )
        return running(["/bin/cat", "-u", "-", mark])

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def signal_escalated():
    with escalated() as pid:
        return send(pid)


def trace_escalated():
    with escalated() as pid:
        return trace(pid)


def escalated_directory():
    with escalated() as pid:
        return SECRET in read(f"/proc/{pid}/root{os.environ['HOME']}/.ssh/id")


def inject():
    with escalated() as pid:
        with open(f"/proc/{pid}/fd/0", "wb", 0) as file:
            file.write(b"injected\n")
    return b"injected" in read("cat.out")


main({
    "environment": environment,
    "gates_environment": gates_environment,
    "memory": memory,
    "gates_memory": gates_memory,
    "maps": maps,
    "descriptors": descriptors,
    "descriptor": descriptor,
    "directory": directory,
    "root": root,
    "gates_directory": gates_directory,
    "trace": lambda: trace(victim()),
    "trace_gate": lambda: trace(supervisor()),
    "read_memory": read_memory,
    "write_memory": write_memory,
    "take_descriptor": take_descriptor,
    "signal": lambda: send(victim()),
    "signal_gate": lambda: send(gate()),
    "signal_by_descriptor": send_by_descriptor,
    "signal_group": send_to_group,
    "signal_thread": send_to_thread,
    "signal_with_a_value": send_with_a_value,
    "signal_by_ownership": send_by_ownership,
    "pause_supervisor": pause_supervisor,
    "priority": priority,
    "limit": limit,
    "processors": processors,
    "oom": oom,
    "command_line": command_line,
    "signal_escalated": signal_escalated,
    "trace_escalated": trace_escalated,
    "escalated_directory": escalated_directory,
    "inject": inject,
})
