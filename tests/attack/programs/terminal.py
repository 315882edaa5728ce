"""Runs a command on a terminal of its own, which is its standard input."""

import os
import pty
import sys

master, slave = pty.openpty()
child = os.fork()
if child == 0:
    os.setsid()
    # The first terminal that is opened controls the session.
    os.close(os.open(os.ttyname(slave), os.O_RDWR))
    os.dup2(slave, 0)
    os.execvp(sys.argv[1], sys.argv[1:])
os.close(slave)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
