"""A process outside of the sandbox, with a secret in all that others could get at."""

import ctypes
import os
import signal

SECRET = b"secret-of-mine"

libc = ctypes.CDLL(None)
os.setpgid(0, 0)
libc.shmat.restype = ctypes.c_void_p

memory = ctypes.create_string_buffer(SECRET)
file = open("id")
for number in (signal.SIGUSR1, signal.SIGIO):
    signal.signal(number, lambda *_: None)

# System V's shared memory and message queue, and POSIX's queue.
shared = libc.shmget(0, 4096, 0o1600)
ctypes.memmove(libc.shmat(shared, None, 0), SECRET, len(SECRET))
libc.shmctl(shared, 0, None)
messages = libc.msgget(0, 0o1600)
queue = f"/execgate-attack-{os.getpid()}"
realtime = ctypes.CDLL("librt.so.1")
realtime.mq_open(queue.encode(), os.O_CREAT | os.O_RDWR, 0o600, None)


def end(*_):
    libc.msgctl(messages, 0, None)
    realtime.mq_unlink(queue.encode())
    os._exit(0)


signal.signal(signal.SIGTERM, end)
print(os.getpid(), ctypes.addressof(memory), file.fileno(), shared, messages, queue, flush=True)
while True:
    signal.pause()
