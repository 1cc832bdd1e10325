"""Most bytes that the bundles of each namespace took at a time: a file for each, with a number, for all processes."""

import os
import time
from collections.abc import Mapping

from rollferry import _native
from rollferry.engines.accounts import totals
from rollferry.engines.shm.descriptors import NOT_OURS, close_file, open_file
from rollferry.engines.shm.directory import Directory
from rollferry.engines.shm.segment import WRITER_BYTE

__all__ = ["Peaks"]

SECONDS = 1.0  # between two looks of a process that puts
DIGITS = 20


class Peaks:
    """The peaks of a directory. Thread-safe.

    Parameters
    ----------
    directory
        Where the bundles lie.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._known: dict[str, int] = {}
        self._due = 0.0

    def by_the_way(self) -> None:
        """Look, unless that was done just now."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + SECONDS
            self.seen(self._directory.live_sizes())

    def seen(self, sizes: Mapping[str, int]) -> None:
        """Note what bundles take, by key."""
        for namespace, nbytes in totals(sizes).items():
            if nbytes > self._known.get(namespace, 0):
                self._raise(namespace, nbytes)

    def read(self) -> dict[str, int]:
        """Give the peaks by namespace."""
        found = {}
        for namespace in self._directory.peaked():
            fd = self._opened(namespace, os.O_RDONLY)
            if fd is not None:
                try:
                    found[namespace] = number(fd)
                finally:
                    close_file(fd)
        return found

    def _raise(self, namespace: str, nbytes: int) -> None:
        """Write down a peak that is higher than the one that is there; where another process is about to, the next look does."""
        fd = self._opened(namespace, os.O_RDWR | os.O_CREAT)
        if fd is None:
            return
        try:
            if _native.try_lock(fd, WRITER_BYTE, True):
                peak = max(nbytes, number(fd))
                os.pwrite(fd, f"{peak:0{DIGITS}}".encode(), 0)
                self._known[namespace] = peak
        except OSError:  # the file system is so full that not even this fits
            pass
        finally:
            close_file(fd)

    def _opened(self, namespace: str, flags: int) -> int | None:
        try:
            return open_file(self._directory.peak_path(namespace), flags)
        except OSError as error:
            if error.errno in NOT_OURS:
                return None
            raise


def number(fd: int) -> int:
    """Read the number in a file; 0 where there is none."""
    digits = os.pread(fd, DIGITS, 0)
    return int(digits) if digits.isdigit() else 0
