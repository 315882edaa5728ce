"""Attacks by sockets."""

import os
import socket
import struct

from attack import SECRET, main

BUS = os.environ["OUTSIDE"] + "/bus"
LOG = os.environ["OUTSIDE"] + "/log"
HIDDEN = "\0" + os.environ["ABSTRACT"]
TCP = ("127.0.0.1", int(os.environ["TCP"]))
UDP = ("127.0.0.1", int(os.environ["UDP"]))


def connect(family, address):
    with socket.socket(family) as stream:
        stream.settimeout(20)
        stream.connect(address)
        return SECRET in stream.recv(64)


def service():
    host, port = os.environ["SERVICE"].removeprefix("http://").split(":")
    socket.create_connection((host, int(port)), 20).close()
    return True


def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(5)
        one.sendto(b"x", UDP)
        return SECRET in one.recv(64)


def made(*kind):
    socket.socket(*kind).close()
    return True


def datagram(address):
    """By `sendmsg`, whose address a filter can't see, from one of a pair."""
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return one.sendmsg([b"x"], [], 0, address) == 1


def connected_datagram(address):
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.connect(address)
    return one.send(b"x") == 1


def fast_open():
    """A connection by `sendto`, without `connect`."""
    with socket.socket() as stream:
        stream.sendto(b"x", socket.MSG_FASTOPEN, TCP)
        return SECRET in stream.recv(64)


def pass_out():
    """A descriptor of the sandbox's, to a service outside."""
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", 0))
    return one.sendmsg([b"x"], [rights], 0, HIDDEN + "-log") == 1


main({
    "tcp": lambda: connect(socket.AF_INET, TCP),
    "fast_open": fast_open,
    "service": service,
    "udp": udp,
    "bus": lambda: connect(socket.AF_UNIX, BUS),
    "hidden": lambda: connect(socket.AF_UNIX, HIDDEN),
    "log": lambda: datagram(LOG),
    "hidden_log": lambda: datagram(HIDDEN + "-log"),
    "connected_hidden_log": lambda: connected_datagram(HIDDEN + "-log"),
    "pass_out": pass_out,
    "raw": lambda: made(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "packet": lambda: made(socket.AF_PACKET, socket.SOCK_RAW, 0),
    "netlink": lambda: made(socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "alg": lambda: made(socket.AF_ALG, socket.SOCK_SEQPACKET, 0),
    "vsock": lambda: made(socket.AF_VSOCK, socket.SOCK_STREAM),
})
