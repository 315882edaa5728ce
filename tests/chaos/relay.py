"""A cable between two hosts that can be spoilt: carries IP packets between two TUN devices.

    relay.py FIRST SECOND SEED

It makes the two devices in the network namespace that it is started in, and whoever started it moves them
to where they are to be. Lines on standard input say what the cable does from then on:

    DELAY LOSS STATE     milliseconds each way, percent of the packets each way, and "whole" or "cut"

Each is answered by a line with how many packets have been carried and how many dropped so far. A cut drops
packets in silence, those on their way included, as a cable does that is pulled out. Ends with its input.

The kernel's netem does the same where it is built in, which it often isn't in virtual machines; this needs
TUN alone, and the same seed drops the same packets.
"""

import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

# <linux/if_tun.h>
TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
# More than the largest packet of a device with the usual MTU.
PACKET = 65536
# On their way in one direction; a queue as long as that of a poor router.
QUEUE = 10000


def device(name):
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI)
    fcntl.ioctl(descriptor, TUNSETIFF, flags)
    return descriptor


def main():
    first, second, seed = sys.argv[1:]
    chance = random.Random(int(seed))
    ends = [device(first), device(second)]
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    # By the end that they go to: when each packet is to arrive.
    on_the_way = {end: deque() for end in ends}
    delay, loss, is_cut = 0.0, 0.0, False
    carried = dropped = 0
    poll = select.poll()
    for descriptor in [*ends, sys.stdin.fileno()]:
        poll.register(descriptor, select.POLLIN)
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        for end, packets in on_the_way.items():
            while packets and packets[0][0] <= now:
                try:
                    os.write(end, packets.popleft()[1])
                    carried += 1
                except OSError:
                    # The device isn't up, or its queue is full.
                    dropped += 1
        due = [packets[0][0] for packets in on_the_way.values() if packets]
        timeout = max(0.0, min(due) - now) * 1000 if due else None
        for descriptor, _ in poll.poll(timeout):
            if descriptor in other:
                try:
                    packet = os.read(descriptor, PACKET)
                except OSError:
                    continue
                packets = on_the_way[other[descriptor]]
                if is_cut or chance.random() * 100 < loss or len(packets) >= QUEUE:
                    dropped += 1
                else:
                    packets.append((time.monotonic() + delay, packet))
                continue
            line = os.read(descriptor, 4096).decode().split()
            if not line:
                return
            delay, loss, is_cut = int(line[0]) / 1000, float(line[1]), line[2] == "cut"
            if is_cut:
                dropped += sum(map(len, on_the_way.values()))
                for packets in on_the_way.values():
                    packets.clear()
            print(carried, dropped, flush=True)


main()
