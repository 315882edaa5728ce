"""A patched shell on a terminal, with a wrapper: editing, history, job control.

interactive.py bash|zsh SHELL WRAPPER LOG
"""

import os
import sys

# No compiled copy is left beside the source.
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from pseudo_terminal import FLAGS, PROMPT, Terminal  # noqa: E402

kind, shell, wrapper, log = sys.argv[1:]
home = os.path.dirname(log)
inputrc = os.path.join(home, "inputrc")
with open(inputrc, "w") as file:
    file.write("set enable-bracketed-paste off\n")


def asked():
    """What the wrapper was asked so far."""
    try:
        with open(log) as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


env = {
    "PATH": "/usr/bin:/bin",
    "HOME": home,
    "INPUTRC": inputrc,
    "TERM": "vt100",
    "LC_ALL": "C",
    "PS1": PROMPT[kind],
    "EXEC_WRAPPER": wrapper,
    "PASSTHROUGH_LOG": log,
    "HISTFILE": "",
}
t = Terminal(kind, [shell, *FLAGS[kind]], env)
try:
    t.step = "a command"
    t.line("/bin/echo one$((1+1))")
    t.expect(r"\none2")
    t.step = "history"
    t.line("\x10")  # previous line
    t.expect(r"\none2")
    t.step = "editing"
    t.line("echo abcX\x7fd")  # rubout
    t.expect(r"\nabcd")
    t.step = "job control"
    t.line("/bin/sleep 100")
    t.job()
    t.wait("the wrapper isn't asked", lambda: len(asked()) == 3)
    t.send("\x1a")
    t.expect("(?i)stopped|suspended")
    t.line("jobs")
    t.expect("/bin/sleep 100")
    t.foreground()
    t.send("\x03")
    t.status(130)
    t.step = "a command that isn't there"
    t.line("no-such-cmd; echo status=$?.")
    t.expect(r"\nstatus=127\.")
    t.step = "a job in the background"
    t.line("/bin/sleep 0.3 & wait; echo status=$?.")
    t.expect(r"\nstatus=0\.")
    t.exit(3)
finally:
    t.clear()

want = ["/bin/echo|/bin/echo|one2"] * 2
want += ["/bin/sleep|/bin/sleep|100", "/bin/sleep|/bin/sleep|0.3"]
if asked() != want:
    sys.exit(f"the wrapper was asked {asked()}, not {want}")
