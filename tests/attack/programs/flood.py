"""Sends the gate more descriptors than it can have open, none of which it has a use for, and looks whether it still answers.

Without a gate it is one that keeps whatever it gets.
"""

import errno
import json
import os
import resource
import socket
import struct
import sys
import time

# A gate raises its own limit as far as it may, which is as far as for what it starts.
MOST = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
DESCRIPTORS = MOST + MOST // 4


def keep(session):
    """What a gate without bounds is."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    kept = []
    while True:
        datagram, descriptors, _, _ = socket.recv_fds(session, 64, 16)
        kept += descriptors
        if datagram == b"\0" and len(descriptors) == 1:
            stream = socket.socket(fileno=os.dup(descriptors[0]))
            if stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                stream.sendall(struct.pack("<I", 2) + b"{}")


def unbounded():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    if os.fork() == 0:
        ours.close()
        try:
            keep(theirs)
        except OSError as error:
            print("without bounds:", error, flush=True)
        os._exit(0)
    theirs.close()
    return ours


def send(session, datagram, descriptors):
    """However busy the gate is: the kernel bounds what is on its way."""
    for _ in range(1000):
        try:
            return socket.send_fds(session, [datagram], descriptors)
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            time.sleep(0.01)
    raise OSError("it takes no more")


def handshakes(session):
    """Streams on which nothing is said, in hundreds, which then end."""
    sent = 0
    while sent < DESCRIPTORS:
        held = []
        for _ in range(100):
            ours, theirs = socket.socketpair()
            send(session, b"\0", [theirs.fileno()])
            theirs.close()
            held.append(ours)
        sent += len(held)
        for stream in held:
            stream.close()


def others(session):
    """Datagrams that aren't handshakes, with as many descriptors as one takes."""
    file = os.open("/dev/null", os.O_RDONLY)
    for number in range(DESCRIPTORS // 16):
        send(session, (b"\0", b"\0\0", b"\1", b"x" * 4096)[number % 4], [file] * 16)


def answers(session):
    """Whether an honest request gets an answer."""
    ours, theirs = socket.socketpair()
    request = {"file": "/bin/true", "argv": ["true"], "workdir": os.getcwd(), "env": {}}
    text = json.dumps(request).encode()
    ours.sendall(struct.pack("<I", len(text)) + text)
    send(session, b"\0", [theirs.fileno()])
    theirs.close()
    ours.settimeout(40)
    try:
        return len(ours.recv(4)) == 4
    except OSError:
        return False


try:
    if "CODEX_ESCALATE_SOCKET" in os.environ:
        session = socket.socket(fileno=os.dup(int(os.environ["CODEX_ESCALATE_SOCKET"])))
    else:
        session = unbounded()
    if not answers(session):
        sys.exit("there was no answer before")
    {"handshakes": handshakes, "others": others}[sys.argv[1]](session)
    answered = answers(session)
except OSError as error:
    # Nobody is there to send to.
    print(error)
    answered = False
sys.exit(1 if answered else 0)
