"""A hostile process of a session: asks for as much of the gate's memory as it can, and never says what for.

Writes "flooding" when it has asked, and then a line for each answer, until its standard input ends.
"""

import array
import os
import select
import socket
import struct
import sys

REQUESTS, LENGTH = 64, 4 << 20

session = socket.socket(fileno=int(os.environ["CODEX_ESCALATE_SOCKET"]))
asking = []
for number in range(REQUESTS):
    here, there = socket.socketpair()
    descriptor = array.array("i", [there.fileno()])
    session.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)])
    there.close()
    here.sendall(struct.pack("<I", LENGTH) + b"x" * 1000)
    asking.append(here)
print("flooding", flush=True)
poll = select.poll()
poll.register(0, select.POLLIN | select.POLLHUP)
for here in asking:
    poll.register(here.fileno(), select.POLLIN)
answers = {here.fileno(): here for here in asking}
while True:
    for descriptor, _ in poll.poll():
        if descriptor == 0:
            sys.exit(0)
        answer = answers[descriptor].recv(1 << 16)
        poll.unregister(descriptor)
        print(answer[4:].decode(), flush=True)
