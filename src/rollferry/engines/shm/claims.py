"""Claims: files that say something as long as the process that made them lives, by a lock."""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from rollferry import _native
from rollferry.engines.shm.descriptors import close_file, lock_whole, open_file
from rollferry.engines.shm.segment import READER_BYTE, WRITER_BYTE

__all__ = ["Claim", "alone", "holds", "make", "withdraw"]

PAUSE = 0.0005
PATIENCE = 30.0  # with a process that was stopped while it was alone


class Claim(NamedTuple):
    """A claim of this process: its descriptor, and its path."""

    fd: int
    path: str


def make(path: str) -> Claim:
    """Make a claim; its name says what it is."""
    fd = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    if fd is None or not _native.try_lock(fd, WRITER_BYTE, True):
        raise FileNotFoundError(f"{path} can't be made")
    return Claim(fd, path)


def withdraw(claim: Claim | None) -> None:
    """End a claim, if there is one."""
    if claim is not None:
        with suppress(FileNotFoundError):
            os.unlink(claim.path)
        close_file(claim.fd)


def holds(path: str) -> bool:
    """Whether the process that made a claim lives; else it is deleted. What is no file was made by nobody."""
    fd = lock_whole(path)
    if fd is None:
        with suppress(FileNotFoundError):
            return stat.S_ISREG(os.lstat(path).st_mode)
        return False
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
    finally:
        close_file(fd)
    return False


@contextmanager
def alone(path: str) -> Iterator[int]:
    """Wait until nobody else is where a file stands for; give its descriptor. Others are there for microseconds, unless stopped."""
    fd = open_file(path, os.O_RDWR | os.O_CREAT)
    if fd is None:
        raise FileNotFoundError(f"{path} can't be made")
    try:
        late = time.monotonic() + PATIENCE
        while not _native.try_lock(fd, READER_BYTE, True):
            if time.monotonic() > late:
                raise BlockingIOError(f"another process has had {path} locked for {PATIENCE} seconds")
            time.sleep(PAUSE)
        yield fd
    finally:
        close_file(fd)
