"""Runs a command on a terminal of its own, which is its standard input, and with a limit on open files that an attack
can reach."""

import os
import pty
import resource
import sys

OPEN_FILES = 4096

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
hard = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1024), hard))

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
