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

# Nothing takes this long unless it hangs. Who runs this waits longer, to see what is said of it.
PATIENCE = 25

PROMPT = {"bash": r"@$$.\#> ", "zsh": "@$$.%!> "}
# zsh tells at once of a job that stops or ends, and may then leave out a prompt that it is about to draw.
FLAGS = {
    "bash": ["--norc", "--noprofile", "-i"],
    "zsh": ["-f", "+o", "promptsp", "+o", "promptcr", "-o", "promptsubst", "+o", "notify", "-i"],
}

SHOWN_PROMPT = re.compile(rb"@((\d+)\.\d+)> ")


def processes():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def state_and_group(pid):
    """A process's state and process group, or a pair of nothing where it is no more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None, None
    return fields[0].decode(), int(fields[2])


class Terminal:
    def __init__(self, kind, arguments, env=None):
        self.kind = kind
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # Python ignores some signals, and so may who started this in the background; a login wouldn't.
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_DFL)
            os.execvpe(arguments[0], arguments, os.environ if env is None else env)
        # What was written since the last line was typed, and not expected yet.
        self.seen = b""
        # The last prompt, and the one at which the last line was typed.
        self.prompt_shown = None
        self.prompt_answered = None
        self.tail = b""
        self.quiet_since = time.monotonic()
        self.step = "start"
        self.size(24, 200)

    def size(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def fail(self, why):
        sys.exit(f"{self.kind}: {self.step}: {why}; seen since: {self.seen!r}\n{self.situation()}")

    def situation(self):
        """What the terminal and its processes are at."""
        try:
            lines = [f"foreground {os.tcgetpgrp(self.fd)}, line editor {self.is_edited()}"]
        except (OSError, termios.error) as error:
            lines = [f"no terminal any more: {error}"]
        for pid in processes():
            try:
                if os.getsid(pid) != self.pid:
                    continue
                with open(f"/proc/{pid}/cmdline") as line, open(f"/proc/{pid}/wchan") as place:
                    command = line.read().replace("\0", " ")
                    lines.append(f"{pid}: {state_and_group(pid)} in {place.read()}: {command}")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return "\n".join(lines)

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
        self.quiet_since = time.monotonic()
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

    def has_prompt(self):
        """Whether the shell shows a new prompt. zsh 5.9 leaves one out that it is about to draw when a job's
        state changes just then, and waits for what is typed: an empty line has it draw the next."""
        if self.prompt_shown not in (None, self.prompt_answered):
            return True
        is_left_out = self.kind == "zsh" and self.prompt_shown and self.is_edited()
        if is_left_out and time.monotonic() > self.quiet_since + 2:
            self.quiet_since = time.monotonic()
            self.send("\r")
        return False

    def prompt(self):
        """Waits for a prompt that answers what was typed, with the shell's line editor behind it."""
        self.wait("no new prompt", self.has_prompt)
        self.shell = int(self.prompt_shown.split(b".")[0])
        self.wait("no shell with the terminal", self.shell_has_terminal)
        self.wait("no line editor", self.is_edited)

    def shell_has_terminal(self):
        return os.tcgetpgrp(self.fd) == state_and_group(self.shell)[1]

    def is_edited(self):
        return not termios.tcgetattr(self.fd)[3] & termios.ICANON

    def line(self, text):
        """Types a line at the prompt."""
        self.prompt()
        self.prompt_answered = self.prompt_shown
        self.seen = b""
        self.quiet_since = time.monotonic()
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
        """Waits until a job has the terminal and all of it runs: a shell may say so before.

        What is typed too early is the shell's; a Ctrl-Z for a job that is still stopped is undone by what
        continues it.
        """
        self.wait("no job that runs has the terminal", self.job_runs)

    def job_runs(self):
        group = os.tcgetpgrp(self.fd)
        if group == state_and_group(self.shell)[1] or self.is_edited():
            return False
        states = [state for state, of in map(state_and_group, processes()) if of == group]
        return "T" not in states and any(state != "Z" for state in states)

    def start(self, text, said="ready"):
        """Types a line that starts a job, and waits until that is in the foreground and has said something."""
        self.line(text)
        self.expect(said)
        self.job()

    def foreground(self):
        """Has the last job go on in the foreground."""
        self.line("fg")
        self.job()

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
        for pid in processes():
            try:
                if os.getsid(pid) == self.pid:
                    os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
