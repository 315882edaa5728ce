"""Changes a program `d/tool` by what shells have no words for."""

import mmap
import os
import signal
import time

from attack import check, libc, main


def exchange():
    return check(libc.renameat2(-100, b"evil", -100, b"d/tool", 2)) == 0


def mapping():
    """A page that has been written once already: what is written then changes no time."""
    with open("d/tool", "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    memory[0:1] = memory[0:1]
    open("mapped", "w").close()
    while not os.path.exists("write"):
        time.sleep(0.002)
    at = memory.find(b"good")
    memory[at:at + 4] = b"evil"
    open("written", "w").close()
    return True


def memory():
    """A program that is in no directory, while this process lives."""
    file = os.memfd_create("tool")
    os.write(file, open("evil", "rb").read())
    os.symlink(f"/proc/{os.getpid()}/fd/{file}", "d/memory")
    signal.pause()


main({"exchange": exchange, "mapping": mapping, "memory": memory})
