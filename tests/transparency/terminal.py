"""An interactive shell on a terminal of its own, and what a person does there.

terminal.py bash|zsh ARGUMENT...: starts ARGUMENT... with flags for an interactive shell, and goes through every scenario below, or through
those that SCENARIOS names. Exits with 0 where the shell answered as it should each time. Nothing depends on
time: every step waits for what the one before it makes appear.
"""

import os
import signal
import sys
import time

# No compiled copy is left beside the source.
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from pseudo_terminal import FLAGS, PROMPT, Terminal  # noqa: E402

kind, *arguments = sys.argv[1:]


# Says when it is there, then reads: so that nobody has to guess how long a start takes.
READY = "/bin/sh -c 'echo rea''dy; exec sleep 987'"


def interrupt(t):
    t.start(READY)
    t.send("\x03")
    t.status(130)


def quit_key(t):
    t.start(READY)
    t.send("\x1c")
    t.status(131)


def interrupt_handled_once(t):
    t.start("/bin/sh -c 'trap \"echo g''ot\" INT; echo rea''dy; while :; do read x && exit 7; done'")
    t.send("\x03")
    t.expect("got")
    t.send("end\r")
    t.prompt()
    if b"got" in t.seen:
        t.fail("the signal came twice")
    t.status(7)


def stop_and_go_on(t):
    t.start("/bin/sh -c 'echo rea''dy; exec cat'")
    t.send("one\r")
    t.expect("one\r\none\r\n")
    for _ in range(3):
        t.send("\x1a")
        t.expect("(?i)stopped|suspended")
        t.prompt()
        t.foreground()
        t.send("two\r")
        t.expect("two\r\ntwo\r\n")
    t.send("\x04")
    t.status(0)


# bash takes no notice of a job that stops just while it looks for jobs to tell of, ahead of a prompt
# (notify_of_job_status in its jobs.c, as of 5.2), until it waits for another process: hence a command first.
LIST_JOBS = "/bin/true; jobs"


def background(t):
    t.start(READY)
    t.send("\x1a")
    t.expect("(?i)stopped|suspended")
    t.run("bg")
    t.until("(?i)running|continued", LIST_JOBS)
    t.foreground()
    t.send("\x03")
    t.status(130)


def stop_by_signal(t):
    t.line(READY + " &")
    t.expect("ready")
    t.run("kill -STOP %%")
    t.until("(?i)stopped|suspended", LIST_JOBS)
    t.run("kill -CONT %%")
    # A shell learns that its job runs some time after it has continued it.
    t.until("(?i)running|continued", LIST_JOBS)
    t.run("kill %%; wait")
    # There is no job any more.
    t.run("kill %%")
    t.status(1)


def news_of_a_job(t):
    t.run("set -b" if kind == "bash" else "setopt notify")
    t.line(READY + " &")
    t.expect("ready")
    t.line("echo jo''b=$! in the background")
    job = int(t.expect(r"job=(\d+) in").group(1))
    # The shell waits for a line meanwhile.
    t.prompt()
    os.killpg(job, signal.SIGSTOP)
    t.expect("(?i)stopped|suspended")
    os.killpg(job, signal.SIGCONT)
    os.killpg(job, signal.SIGTERM)
    t.expect("(?i)terminated")
    t.run("set +b" if kind == "bash" else "unsetopt notify")


def reading_in_background(t):
    t.run("cat &")
    t.until("(?i)stopped|suspended", LIST_JOBS)
    t.foreground()
    t.send("line\r")
    t.expect("line\r\nline\r\n")
    t.send("\x04")
    t.status(0)


# Says of each signal that it has come, the moment it does, and in the end how many there were.
COUNTER = (
    "import signal as s; s.pthread_sigmask(0, [10, 15]); print(\"rea\" \"dy\", flush=1); "
    "n = [print(\"g\" \"ot\", flush=1) for _ in iter(lambda: s.sigwait([10, 15]), 15)]; "
    "print(\"to\" \"tal\", len(n), flush=1); exit(9)"
)


def handled_once_in_group(t):
    t.run(f"counter='{COUNTER}'")
    t.line('python3 -c "$counter" &')
    t.expect("ready")
    for _ in range(3):
        t.line("kill -USR1 %%")
        t.expect("got")
    t.line("kill %%; wait $!; echo status=$?.")
    if t.expect(r"total (\d+)").group(1) != b"3":
        t.fail("a signal came twice")
    t.expect(r"\nstatus=9\.")


def kill_wrapper(t):
    # The process that the shell knows: natively the command itself.
    command = f"sleep 1001.{t.pid}"
    t.line(f"/bin/sh -c 'echo rea''dy; exec {command}' &")
    t.expect("ready")
    t.line("kill -KILL $!; wait $!; echo status=$?.")
    t.expect(r"\nstatus=137\.")
    t.line(f"while pgrep -f '^{command}'; do :; done; echo go''ne")
    t.expect("gone")


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
    t.start("/bin/sh -c 'trap \"stty size\" WINCH; echo rea''dy; while :; do read x && exit 5; done'")
    for rows, columns in (30, 100), (24, 200):
        t.size(rows, columns)
        t.expect(f"{rows} {columns}")
    t.send("end\r")
    t.status(5)


def raw(t):
    t.line("/bin/sh -c 'stty raw -echo; echo rea''dy; dd bs=1 count=3 2>/dev/null | od -An -tx1; stty sane'")
    t.expect("ready")
    t.send("\x03\x1a\x04")
    t.expect("03 1a 04")
    t.status(0)


def editor(t):
    t.line("vi -u NONE -N edited")
    t.expect('"edited"')
    t.wait("vi doesn't read", t.is_edited)
    t.send("itext")
    t.expect("text")
    t.send("\x1b:wq\r")
    t.line("cat edited")
    t.expect(r"\ntext")


def terminal_by_name(t):
    t.line("/bin/sh -c 'echo to the terminal >/dev/tty' >/dev/null 2>&1")
    t.expect(r"\nto the terminal")
    t.line("/bin/sh -c 'test -t 0 && test -t 1 && test -t 2 && tty' | grep -c pts")
    t.expect(r"\n0")
    t.line("tty")
    t.expect(r"\n/dev/pts/")


def pipelines(t):
    t.line("yes | head -n 2 | cat -n")
    t.expect("2\ty")
    t.prompt()
    parts = [f"/bin/sh -c 'echo rea''dy >&2; exec {part}'" for part in ("yes", "cat", "cat >/dev/null")]
    t.line(" | ".join(parts))
    for _ in parts:
        t.expect("ready")
    t.job()
    t.send("\x1a")
    t.expect("(?i)stopped|suspended")
    t.foreground()
    t.send("\x03")
    t.status(130)


def editing_and_history(t):
    t.line("/bin/echo one$((1+1))")
    t.expect(r"\none2")
    t.line("\x10")
    t.expect(r"\none2")
    t.line("echo abcX\x7fd")
    t.expect(r"\nabcd")
    t.line("/bin/ech\tcompleted")
    t.expect(r"\ncompleted")


def shells_in_shells(t):
    inner = os.environ.get("INNER", arguments[0])
    for _ in range(2):
        t.run(f"PS1='{PROMPT[kind]}' {inner} {' '.join(FLAGS[kind])}")
    interrupt(t)
    t.line("exit 3")
    t.status(3)
    t.line("exit 4")
    t.status(4)


def limits_files_and_exec(t):
    t.line("(ulimit -n 64; /bin/sh -c 'echo li''mit $(ulimit -n)')")
    t.expect("limit 64")
    t.run("echo 'x=$((6 * 7)); /bin/echo so''urced $x' >file")
    t.line(". ./file")
    t.expect(r"\nsourced 42")
    t.line("/bin/echo st''ill $x")
    t.expect(r"\nstill 42")
    inner = os.environ.get("INNER", arguments[0])
    t.run(f"PS1='{PROMPT[kind]}' {inner} {' '.join(FLAGS[kind])}")
    t.line("exec /bin/sh -c 'exit 9'")
    t.status(9)


def traps_wait_and_time(t):
    t.line("trap 'echo tr''apped' USR1; /bin/sh -c \"kill -USR1 $$\"; trap - USR1")
    t.expect("trapped")
    t.line("time /bin/true")
    t.expect("(?i)real|total")
    t.line("/bin/sh -c 'exit 6' & wait $!; echo status=$?.")
    t.expect(r"\nstatus=6\.")


SCENARIOS = [
    interrupt, quit_key, interrupt_handled_once, stop_and_go_on, background, stop_by_signal, news_of_a_job,
    reading_in_background, handled_once_in_group, kill_wrapper, time_limit, window, raw, editor,
    terminal_by_name, pipelines, editing_and_history, shells_in_shells, limits_files_and_exec,
    traps_wait_and_time,
]

wanted = os.environ.get("SCENARIOS", "").split()
t = Terminal(kind, [*arguments, *FLAGS[kind]], {**os.environ, "PS1": PROMPT[kind]})
try:
    for scenario in SCENARIOS:
        if not wanted or scenario.__name__ in wanted:
            t.step = scenario.__name__
            began = time.monotonic()
            scenario(t)
            t.prompt()
            print(f"{scenario.__name__} {time.monotonic() - began:.2f}")
    t.exit(11)
finally:
    t.clear()
