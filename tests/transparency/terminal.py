"""An interactive shell on a terminal of its own, and what a person does there.

terminal.py bash|zsh ARGUMENT...: starts ARGUMENT... and goes through every scenario below, or through
those that SCENARIOS names. Exits with 0 where the shell answered as it should each time. Nothing depends on
time: every step waits for what the one before it makes appear.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

PATIENCE = 20
kind, *arguments = sys.argv[1:]


class Terminal:
    def __init__(self):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # Python ignores some signals; the shell must not inherit that.
            for name in ("SIGPIPE", "SIGXFSZ"):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            os.execvp(arguments[0], arguments)
        self.seen = b""
        self.step = "start"
        self.size(24, 200)

    def size(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def fail(self, why):
        sys.exit(f"{kind}: {self.step}: {why}; seen since: {self.seen!r}")

    def send(self, text):
        os.write(self.fd, text.encode())

    def expect(self, pattern):
        """Reads on until PATTERN appears, and drops all up to it."""
        end = time.monotonic() + PATIENCE
        pattern = re.compile(pattern.encode())
        while not (found := pattern.search(self.seen)):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                self.fail(f"no {pattern.pattern!r}")
            try:
                self.seen += os.read(self.fd, 4096)
            except OSError:
                self.fail(f"the shell is gone, and no {pattern.pattern!r}")
        self.seen = self.seen[found.end():]
        return found

    def prompt(self):
        self.expect("@> ")
        self.home = os.tcgetpgrp(self.fd)

    def line(self, text):
        self.send(text + "\r")

    def run(self, text):
        """A command that ends by itself, its prompt waited for."""
        self.line(text)
        # What is typed is shown first; the answer is on a line of its own.
        self.expect(r"\n")
        self.prompt()

    def job(self):
        """Waits until a job has the terminal: a shell may say so before."""
        shell = self.home
        while os.tcgetpgrp(self.fd) == shell:
            time.sleep(0.001)

    def status(self, expected):
        self.line("echo status=$?.")
        found = self.expect(r"\nstatus=(\d+)\.").group(1)
        if int(found) != expected:
            self.fail(f"status {int(found)}, not {expected}")
        self.prompt()


# Says when it is there, then reads: so that nobody has to guess how long a start takes.
READY = "/bin/sh -c 'echo rea''dy; exec sleep 987'"


def interrupt(t):
    t.line(READY)
    t.expect("ready")
    t.send("\x03")
    t.prompt()
    t.status(130)


def quit_key(t):
    t.line(READY)
    t.expect("ready")
    t.send("\x1c")
    t.prompt()
    t.status(131)


def interrupt_handled_once(t):
    t.line("/bin/sh -c 'trap \"echo g''ot\" INT; echo rea''dy; while :; do read x && exit 7; done'")
    t.expect("ready")
    t.send("\x03")
    t.expect("got")
    t.send("end\r")
    if b"got" in t.expect(r"(?s).*?@> ").group(0):
        t.fail("the signal came twice")
    t.status(7)


def stop_and_go_on(t):
    t.line("/bin/sh -c 'echo rea''dy; exec cat'")
    t.expect("ready")
    t.send("one\r")
    t.expect("one\r\none\r\n")
    for _ in range(3):
        t.send("\x1a")
        t.expect("(?i)stopped|suspended")
        t.prompt()
        t.line("fg")
        t.job()
        t.expect("cat")
        t.expect(r"\n")
        t.send("two\r")
        t.expect("two\r\ntwo\r\n")
    t.send("\x04")
    t.prompt()
    t.status(0)


def background(t):
    t.line(READY)
    t.expect("ready")
    t.send("\x1a")
    t.expect("(?i)stopped|suspended")
    t.prompt()
    t.line("bg")
    # zsh may draw no new prompt when the news of its job comes in between.
    t.expect("sleep 987'")
    t.expect(r"\n")
    t.line("jobs")
    t.expect("(?i)running")
    t.prompt()
    t.line("fg")
    t.job()
    t.send("\x03")
    t.prompt()
    t.status(130)


def goes_on(t):
    """Waits until the shell's job runs: a shell learns that some time after it has continued it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        t.line("jobs")
        found = t.expect(r"(?i)\[\d+\]\s*[-+]?\s*(running|continued|stopped|suspended)").group(1)
        t.prompt()
        if found.lower() in (b"running", b"continued"):
            return
        time.sleep(0.01)
    t.fail("the job doesn't go on")


def stop_by_signal(t):
    t.line("set -b" if kind == "bash" else "setopt notify")
    t.prompt()
    t.line(READY + " &")
    t.expect("ready")
    t.line("kill -STOP %%")
    t.expect("(?i)stopped|suspended")
    t.line("kill -CONT %%")
    goes_on(t)
    t.line("kill %%")
    t.expect("(?i)terminated")
    t.line("wait")
    t.line("echo e''nd")
    t.expect("end")
    t.prompt()


def reading_in_background(t):
    t.line("cat &")
    t.expect("(?i)stopped|suspended")
    t.line("")
    t.prompt()
    t.line("fg")
    t.job()
    t.expect("cat")
    t.expect(r"\n")
    t.send("line\r")
    t.expect("line\r\nline\r\n")
    t.send("\x04")
    t.prompt()
    t.status(0)


def handled_once_in_group(t):
    t.line("/bin/sh -c 'trap \"echo g''ot\" USR1; trap \"exit 9\" TERM; echo rea''dy; while :; do sleep 0.01; done' &")
    t.expect("ready")
    t.line("kill -USR1 %%")
    t.expect("got")
    t.line("kill -USR1 %%")
    t.expect("got")
    t.line("kill %%; wait $!; echo status=$?.")
    before = t.expect(r"(?s).*\nstatus=(\d+)\.")
    if b"got" in before.group(0):
        t.fail("the signal came twice")
    if before.group(1) != b"9":
        t.fail(f"status {before.group(1)}")
    t.prompt()


def kill_wrapper(t):
    # The process that the shell knows: natively the command itself.
    t.line("/bin/sh -c 'echo rea''dy; exec sleep 1001' &")
    t.expect("ready")
    t.line("kill -KILL $!; wait $!; echo status=$?.")
    t.expect(r"\nstatus=137\.")
    t.prompt()
    t.line("while pgrep -f '^sleep 1001'; do :; done; echo go''ne")
    t.expect("gone")
    t.prompt()


def time_limit(t):
    t.run("timeout 0.2 sleep 987")
    t.status(124)
    t.run("timeout -s KILL 0.2 sleep 987")
    t.status(137)
    t.run("timeout --foreground 0.2 sleep 987")
    t.status(124)


def window(t):
    t.line("stty size")
    t.expect(r"\n24 200")
    t.prompt()
    t.line("/bin/sh -c 'trap \"stty size; exit 5\" WINCH; echo rea''dy; while :; do read x; done'")
    t.expect("ready")
    t.size(30, 100)
    t.expect("30 100")
    t.prompt()
    t.status(5)
    t.size(24, 200)


def raw(t):
    t.line("/bin/sh -c 'stty raw -echo; echo rea''dy; dd bs=1 count=3 2>/dev/null | od -An -tx1; stty sane'")
    t.expect("ready")
    t.send("\x03\x1a\x04")
    t.expect("03 1a 04")
    t.prompt()
    t.status(0)


def editor(t):
    t.line("vi -u NONE -N edited")
    t.expect("edited")
    t.send("itext\x1b:wq\r")
    t.prompt()
    t.line("cat edited")
    t.expect(r"\ntext")
    t.prompt()


def terminal_by_name(t):
    t.line("/bin/sh -c 'echo to the terminal >/dev/tty' >/dev/null 2>&1")
    t.expect(r"\nto the terminal")
    t.prompt()
    t.line("/bin/sh -c 'test -t 0 && test -t 1 && test -t 2 && tty' | grep -c pts")
    t.expect(r"\n0")
    t.prompt()
    t.line("tty")
    t.expect(r"\n/dev/pts/")
    t.prompt()


def pipelines(t):
    t.line("yes | head -n 2 | cat -n")
    t.expect("2\ty")
    t.prompt()
    parts = [f"/bin/sh -c 'echo rea''dy >&2; exec {part}'" for part in ("yes", "cat", "cat >/dev/null")]
    t.line(" | ".join(parts))
    for _ in parts:
        t.expect("ready")
    t.send("\x1a")
    t.expect("(?i)stopped|suspended")
    t.prompt()
    t.line("fg")
    t.job()
    t.send("\x03")
    t.prompt()
    t.status(130)


def editing_and_history(t):
    t.line("/bin/echo one$((1+1))")
    t.expect(r"\none2")
    t.prompt()
    t.send("\x10\r")
    t.expect(r"\none2")
    t.prompt()
    t.send("echo abcX\x7fd\r")
    t.expect(r"\nabcd")
    t.prompt()
    t.send("/bin/ech\tcompleted\r")
    t.expect(r"\ncompleted")
    t.prompt()


def shells_in_shells(t):
    inner = arguments[0] if os.environ.get("INNER") is None else os.environ["INNER"]
    flags = "--norc --noprofile" if kind == "bash" else "-f +o promptsp"
    for _ in range(2):
        t.line(f"PS1='@> ' {inner} {flags} -i")
        t.expect(r"\n")
        t.prompt()
    interrupt(t)
    t.line("exit 3")
    t.prompt()
    t.status(3)
    t.line("exit 4")
    t.prompt()
    t.status(4)


def traps_wait_and_time(t):
    t.line("trap 'echo tr''apped' USR1; /bin/sh -c \"kill -USR1 $$\"; trap - USR1")
    t.expect("trapped")
    t.prompt()
    t.line("time /bin/true")
    t.expect("(?i)real|total")
    t.prompt()
    t.line("/bin/sh -c 'exit 6' & wait $!; echo status=$?.")
    t.expect(r"\nstatus=6\.")
    t.prompt()


SCENARIOS = [
    interrupt, quit_key, interrupt_handled_once, stop_and_go_on, background, stop_by_signal,
    reading_in_background, handled_once_in_group, kill_wrapper, time_limit, window, raw, editor,
    terminal_by_name, pipelines, editing_and_history, shells_in_shells, traps_wait_and_time,
]

wanted = os.environ.get("SCENARIOS", "").split()
t = Terminal()
try:
    t.prompt()
    for scenario in SCENARIOS:
        if not wanted or scenario.__name__ in wanted:
            t.step = scenario.__name__
            began = time.monotonic()
            scenario(t)
            print(f"{scenario.__name__} {time.monotonic() - began:.2f}")
    t.step = "end"
    t.line("exit 11")
    while True:
        try:
            if not os.read(t.fd, 4096):
                break
        except OSError:
            break
    _, status = os.waitpid(t.pid, 0)
    if os.waitstatus_to_exitcode(status) != 11:
        t.fail(f"the shell's own status is {status:#x}")
finally:
    # All of the terminal's session: a scenario that failed leaves its jobs.
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(name)) == t.pid:
                os.kill(int(name), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
