"""Notes beside bundles: a file of lines for each bundle that has some."""

import errno
import os
import stat
from contextlib import suppress

from rollferry.engines.shm.directory import Directory

__all__ = ["add", "forget", "read", "sweep"]

MAX_NBYTES = 1 << 27  # of notes that are read; those of the most readers are less
FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO in the place of a file would block


def add(directory: Directory, key: str, text: str) -> bool:
    """Write a line; False where the bundle isn't there."""
    path = directory.notes_path(key)
    # One write to a file that is open for appending: lines of several processes don't mix.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | FLAGS, 0o600)
    try:
        os.write(fd, f"{text}\n".encode())
    finally:
        os.close(fd)
    if os.path.lexists(directory.live_path(key)):
        return True
    forget(directory, key)  # who removed the bundle may have looked before the note was there
    return False


def read(directory: Directory, key: str) -> set[str]:
    """Give the whole lines."""
    try:
        fd = os.open(directory.notes_path(key), os.O_RDONLY | FLAGS)
    except FileNotFoundError:
        return set()
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "the notes are no file", directory.notes_path(key))
        return set(os.read(fd, min(status.st_size, MAX_NBYTES)).decode("ascii", "replace").split("\n")[:-1])
    finally:
        os.close(fd)


def forget(directory: Directory, key: str) -> None:
    """Delete all lines."""
    with suppress(FileNotFoundError, IsADirectoryError):  # the latter is none of ours
        os.unlink(directory.notes_path(key))


def sweep(directory: Directory) -> None:
    """Delete the lines about bundles that are gone: whoever removed one, or wrote one too late, may have died over it."""
    for key in directory.noted():
        if not os.path.lexists(directory.live_path(key)):
            forget(directory, key)
