"""Opening and locking the files of the shm:// engine, and its errors."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollferry import _native
from rollferry.engines.shm.segment import READER_BYTE, WRITER_BYTE
from rollferry.errors import EngineError

__all__ = ["NOT_OURS", "close_file", "lock_whole", "names", "open_file", "opened_leased", "translated"]

# Descriptors that have locks or are about to; a fork waits until each is either open and noted, or closed.
HELD: set[int] = set()
FORKING = threading.RLock()

OPENING = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # what lies there may be a link, or a pipe
# No file of ours, whatever its name.
NOT_OURS = (errno.ELOOP, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENXIO, errno.ESPIPE)


@contextmanager
def translated(root: Path) -> Iterator[None]:
    """Raise EngineError in place of OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise EngineError("no file descriptor is left; raise the limit (ulimit -n)") from error
        raise EngineError(f"the directory {root} can't be used: {error}") from error


def open_file(path: str, flags: int) -> int | None:
    """Open a file of ours, to be closed by `close_file`; None where there is none."""
    try:
        with FORKING:
            fd = os.open(path, flags | OPENING, 0o600)
            HELD.add(fd)
            return fd
    except FileNotFoundError:
        return None


def close_file(fd: int) -> None:
    """Close what `open_file` opened, which drops its locks."""
    with FORKING:
        HELD.discard(fd)
        os.close(fd)


@contextmanager
def opened_leased(path: str) -> Iterator[int | None]:
    """Have a published segment open for reading, leased; None where it is gone. A mapping of it keeps the lease."""
    with FORKING:
        fd = _native.open_leased(path, READER_BYTE)
        try:
            yield fd
        finally:
            if fd is not None:
                os.close(fd)


def close_all_in_child() -> None:
    """Close what the parent had open: a lock that the child of a fork held too would outlive its writer or reader."""
    while HELD:
        os.close(HELD.pop())
    FORKING.release()


def names(path: str, fd: int) -> bool:
    """Whether a path still leads to an open file."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def lock_whole(path: str) -> int | None:
    """Open a named segment that nobody writes or reads, and lock it whole; None where somebody does, or it is none or gone."""
    try:
        fd = open_file(path, os.O_RDWR)
    except OSError as error:
        if error.errno in NOT_OURS:
            return None
        raise
    if fd is None:
        return None
    # The segment may have been taken, and even published, between opening and locking. Who holds the writer's byte while
    # the path still leads here is the only one who may move it; before, the reader's byte is none of ours to lock.
    try:
        if _native.try_lock(fd, WRITER_BYTE, True) and names(path, fd) and _native.try_lock(fd, READER_BYTE, True):
            return fd
    except BaseException:
        close_file(fd)
        raise
    close_file(fd)
    return None


os.register_at_fork(before=FORKING.acquire, after_in_parent=FORKING.release, after_in_child=close_all_in_child)
