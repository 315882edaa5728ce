"""Processes that would outlive their session. `leftovers.py HOW MARK`: MARK is in all of their command lines."""

import os
import signal
import sys
import time

HOW, MARK = sys.argv[1:3]


def forever():
    for number in range(1, signal.SIGRTMAX + 1):
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            try:
                signal.signal(number, signal.SIG_IGN)
            except OSError:
                pass
    with open(f"{MARK}.{HOW}", "w"):
        pass
    while True:
        time.sleep(1000)


def daemon():
    """One that has left its session and its parent."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            forever()
    os._exit(0)


def zombies():
    """A parent that waits for none of its children, of which one has left a child of its own."""
    for _ in range(50):
        if os.fork() == 0:
            os._exit(0)
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            forever()
        os._exit(0)
    forever()


def bomb():
    """Some that are never there for long: each leaves another, in a session of its own. Not many at a time: without
    a gate the first process of the machine has them to bury, and not all of these are quick."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(4):
        if os.fork() == 0:
            while True:
                if os.fork() != 0:
                    os._exit(0)
                os.setsid()
                time.sleep(0.1)
    forever()


{"daemon": daemon, "zombies": zombies, "bomb": bomb}[HOW]()
