"""A person at an interactive shell on a pseudo-terminal, who never types before the shell is ready.

The shell's prompt has to be PROMPT[kind]: it names the shell's process and the number of its command, so
that a prompt which is merely drawn again isn't taken for the answer to what was typed.
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

# Nothing takes this long unless it hangs.
PATIENCE = 60

PROMPT = {"bash": r"@$$.\#> ", "zsh": "@$$.%!> "}
FLAGS = {"bash": ["--norc", "--noprofile"], "zsh": ["-f", "+o", "promptsp", "-o", "promptsubst"]}

SHOWN_PROMPT = re.compile(rb"@(\d+\.\d+)> ")


class Terminal:
    def __init__(self, kind, arguments, env=None):
        self.kind = kind
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # Python ignores some signals; the shell must not inherit that.
            for name in ("SIGPIPE", "SIGXFSZ"):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            os.execvpe(arguments[0], arguments, os.environ if env is None else env)
        # What was written since the last line was typed, and not expected yet.
        self.seen = b""
        # The last prompt, and the one at which the last line was typed.
        self.prompt_shown = None
        self.prompt_answered = None
        self.tail = b""
        self.step = "start"
        self.size(24, 200)

    def size(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def fail(self, why):
        sys.exit(f"{self.kind}: {self.step}: {why}; seen since: {self.seen!r}")

    def read(self, why, until):
        """Reads what there is; fails with WHY when time is up."""
        left = until - time.monotonic()
        if left <= 0 or not select.select([self.fd], [], [], left)[0]:
            self.fail(why)
        try:
            new = os.read(self.fd, 4096)
        except OSError:
            new = b""
        if not new:
            self.fail(f"the shell is gone, and {why}")
        self.seen += new
        self.tail = self.tail[-64:] + new
        for shown in SHOWN_PROMPT.finditer(self.tail):
            self.prompt_shown = shown.group(1)

    def wait(self, why, condition):
        """Waits until CONDITION holds, whatever is written meanwhile."""
        until = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > until:
                self.fail(why)
            if select.select([self.fd], [], [], 0.002)[0]:
                self.read(why, until)

    def send(self, text):
        os.write(self.fd, text.encode())

    def expect(self, pattern):
        """Waits until PATTERN has been written since the last line was typed, and passes over all up to it."""
        until = time.monotonic() + PATIENCE
        compiled = re.compile(pattern.encode())
        while not (found := compiled.search(self.seen)):
            self.read(f"no {pattern!r}", until)
        self.seen = self.seen[found.end():]
        return found

    def prompt(self):
        """Waits for a prompt that answers what was typed, with the shell's line editor behind it."""
        self.wait("no new prompt", lambda: self.prompt_shown not in (None, self.prompt_answered))
        self.wait("no line editor", self.is_edited)
        self.home = os.tcgetpgrp(self.fd)

    def is_edited(self):
        return not termios.tcgetattr(self.fd)[3] & termios.ICANON

    def line(self, text):
        """Types a line at the prompt."""
        self.prompt()
        self.prompt_answered = self.prompt_shown
        self.seen = b""
        self.send(text + "\r")

    def run(self, text):
        """A command that ends by itself."""
        self.line(text)
        self.prompt()

    def until(self, pattern, command):
        """Runs a command again and again until it, or a message before it, has the pattern."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            self.line(command)
            self.prompt()
            if re.search(pattern.encode(), self.seen):
                return
        self.fail(f"no {pattern!r} by {command!r}")

    def job(self):
        """Waits until a job has the terminal: a shell may say so before."""
        self.wait("no job has the terminal", lambda: os.tcgetpgrp(self.fd) != self.home)

    def status(self, expected):
        self.line("echo status=$?.")
        found = self.expect(r"\nstatus=(\d+)\.").group(1)
        if int(found) != expected:
            self.fail(f"status {int(found)}, not {expected}")

    def exit(self, status):
        """Has the shell exit, and waits for that."""
        self.step = "end"
        self.line(f"exit {status}")
        try:
            while os.read(self.fd, 4096):
                pass
        except OSError:
            pass
        _, ended = os.waitpid(self.pid, 0)
        if os.waitstatus_to_exitcode(ended) != status:
            self.fail(f"the shell's own status is {ended:#x}")

    def clear(self):
        """Ends all of the terminal's session: a scenario that failed leaves its jobs."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.getsid(int(name)) == self.pid:
                    os.kill(int(name), signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
