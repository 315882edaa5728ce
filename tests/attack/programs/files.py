"""Attacks on files by what shells have no words for."""

import ctypes
import os

from attack import SECRET, check, libc, main

HIDDEN = os.environ["HOME"] + "/.ssh/id"
OUTSIDE = os.environ["OUTSIDE"]
AT_FDCWD, AT_SYMLINK_FOLLOW = -100, 0x400
RENAME_EXCHANGE = 2


def reopened(number, flags=os.O_RDONLY):
    return os.open(f"/proc/self/fd/{number}", flags)


def place():
    return SECRET in os.read(reopened(os.open(HIDDEN, os.O_PATH)), 64)


def place_of_directory():
    directory = os.open(os.path.dirname(HIDDEN), os.O_PATH)
    return SECRET in os.read(os.open("id", os.O_RDONLY, dir_fd=directory), 64)


def handle():
    """`name_to_handle_at` and `open_by_handle_at`."""
    memory = ctypes.create_string_buffer(8 + 128)
    ctypes.c_uint.from_buffer(memory).value = 128
    mount = ctypes.c_int()
    check(libc.name_to_handle_at(AT_FDCWD, HIDDEN.encode(), memory, ctypes.byref(mount), 0))
    directory = os.open(".", os.O_RDONLY)
    file = check(libc.open_by_handle_at(directory, memory, os.O_RDONLY))
    return SECRET in os.read(file, 64)


def load():
    """What can be loaded as a library can be read."""
    try:
        ctypes.CDLL(HIDDEN)
    except OSError as error:
        # It was opened, and isn't one.
        return "invalid ELF header" in str(error) or "file too short" in str(error)
    return False


def unnamed():
    """A file without a name, which gets one in another directory."""
    file = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o644)
    path = f"/proc/self/fd/{file}".encode()
    check(libc.linkat(AT_FDCWD, path, AT_FDCWD, f"{OUTSIDE}/unnamed".encode(), AT_SYMLINK_FOLLOW))
    os.unlink(f"{OUTSIDE}/unnamed")
    return True


def core_dump():
    """By a name alone, in the working directory, and only where nothing has that name yet."""
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY
    name = f"core.{os.getpid()}"
    os.close(os.open(name, flags, 0o600))
    os.unlink(name)
    return True


def unnamed_outside():
    os.open(OUTSIDE, os.O_TMPFILE | os.O_RDWR, 0o644)
    return True


def exchange():
    with open("mine", "w") as file:
        file.write("there\n")
    names = b"mine", f"{OUTSIDE}/file".encode()
    check(libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE))
    check(libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE))
    return True


def reopen_for_writing():
    """What is open for reading, opened again for writing."""
    os.write(reopened(os.open(f"{OUTSIDE}/file", os.O_RDONLY), os.O_WRONLY), b"there\n")
    return True


def truncate():
    os.truncate(f"{OUTSIDE}/file", 6)
    return True


def attribute():
    os.setxattr(f"{OUTSIDE}/file", "user.attack", b"x")
    os.removexattr(f"{OUTSIDE}/file", "user.attack")
    return True


def capability():
    """A program of one's own that gets a capability when it is executed: `CAP_DAC_OVERRIDE`."""
    open("mine", "w").close()
    value = bytes.fromhex("01000002" "02000000" "00000000" "00000000" "00000000")
    os.setxattr("mine", "security.capability", value)
    return True


main({
    "core_dump": core_dump,
    "place": place,
    "place_of_directory": place_of_directory,
    "handle": handle,
    "load": load,
    "unnamed": unnamed,
    "unnamed_outside": unnamed_outside,
    "exchange": exchange,
    "reopen_for_writing": reopen_for_writing,
    "truncate": truncate,
    "attribute": attribute,
    "capability": capability,
})
