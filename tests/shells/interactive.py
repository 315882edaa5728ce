"""A patched shell on a terminal, with a wrapper: editing, history, job control.

interactive.py bash|zsh SHELL WRAPPER LOG
"""

import os
import pty
import select
import sys
import time

kind, shell, wrapper, log = sys.argv[1:]
env = {
    "PATH": "/usr/bin:/bin",
    "HOME": os.path.dirname(log),
    "TERM": "vt100",
    "LC_ALL": "C",
    "PS1": "@> ",
    "EXEC_WRAPPER": wrapper,
    "PASSTHROUGH_LOG": log,
    "HISTFILE": "",
}
flags = ["--norc", "--noprofile"] if kind == "bash" else ["-f", "+o", "promptsp"]
pid, fd = pty.fork()
if pid == 0:
    os.execve(shell, [shell, *flags, "-i"], env)

seen = b""


def expect(text, why):
    """Reads on until TEXT appears, and drops all up to it."""
    global seen
    end = time.monotonic() + 15
    while text not in seen:
        left = end - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            sys.exit(f"{why}: no {text!r} in {seen!r}")
        try:
            seen += os.read(fd, 4096)
        except OSError:
            sys.exit(f"{why}: the shell is gone; it wrote {seen!r}")
    seen = seen.split(text, 1)[1]


def send(text):
    os.write(fd, text.encode())


try:
    expect(b"@> ", "a prompt")
    send("/bin/echo one$((1+1))\r")
    expect(b"one2", "a command")
    expect(b"@> ", "a prompt after it")
    send("\x10\r")  # previous line
    expect(b"one2", "history")
    expect(b"@> ", "a prompt after it")
    send("echo abcX\x7fd\r")  # rubout
    expect(b"abcd", "editing")
    expect(b"@> ", "a prompt after it")
    send("/bin/sleep 100\r")
    time.sleep(1)
    send("\x1a")
    expect(b"topped" if kind == "bash" else b"suspended", "Ctrl-Z")
    expect(b"@> ", "a prompt after it")
    send("jobs\r")
    expect(b"/bin/sleep 100", "jobs")
    expect(b"@> ", "a prompt after it")
    send("fg\r")
    time.sleep(1)
    send("\x03")
    expect(b"@> ", "Ctrl-C")
    send("echo status=$?\r")
    expect(b"status=130", "the status after Ctrl-C")
    expect(b"@> ", "a prompt after it")
    send("no-such-cmd; echo status=$?\r")
    expect(b"status=127", "a command that isn't there")
    expect(b"@> ", "a prompt after it")
    send("/bin/sleep 0.3 & wait; echo waited=$?\r")
    expect(b"waited=0", "a job in the background")
    send("exit 3\r")
    end = time.monotonic() + 10
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            sys.exit("the shell doesn't exit")
        if select.select([fd], [], [], 0.1)[0]:
            try:
                os.read(fd, 4096)
            except OSError:
                time.sleep(0.1)
    if os.waitstatus_to_exitcode(status) != 3:
        sys.exit(f"exit status {os.waitstatus_to_exitcode(status)}, not 3")
    with open(log) as asked:
        lines = asked.read().splitlines()
    want = ["/bin/echo|/bin/echo|one2"] * 2
    want += ["/bin/sleep|/bin/sleep|100", "/bin/sleep|/bin/sleep|0.3"]
    if lines != want:
        sys.exit(f"the wrapper was asked {lines}, not {want}")
finally:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass
