"""Most bytes that the bundles of each namespace took at a time, for all processes: in the name of an empty file for each.

So it takes no memory of a file system that is full, as it may be just then.
"""

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress

from rollferry.engines.accounts import totals
from rollferry.engines.shm.descriptors import close_file, open_file
from rollferry.engines.shm.directory import Directory

__all__ = ["Peaks"]

PEAK = re.compile(r"([A-Za-z0-9_-]+)\+([0-9a-f]{1,16})")  # namespace, bytes
PAUSE = 0.01  # seconds between two looks of a process that puts, at least
SHARE = 100  # and so many times as long as a look takes


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
        began = time.monotonic()
        if began >= self._due:
            with suppress(OSError):  # the put that this is by the way of has done its work
                self.seen(self._directory.live_sizes())
            now = time.monotonic()
            self._due = now + max(PAUSE, SHARE * (now - began))

    def seen(self, sizes: Mapping[str, int]) -> None:
        """Note what bundles take, by key."""
        higher = {name: nbytes for name, nbytes in totals(sizes).items() if nbytes > self._known.get(name, 0)}
        if higher:
            self._known = self.read()
        for namespace, nbytes in higher.items():
            before = self._known.get(namespace, 0)
            if nbytes > before:
                fd = open_file(self._path(namespace, nbytes), os.O_RDONLY | os.O_CREAT)
                if fd is not None:
                    close_file(fd)
                with suppress(FileNotFoundError, IsADirectoryError):  # somebody else went higher, or it is none of ours
                    os.unlink(self._path(namespace, before))
                self._known[namespace] = nbytes

    def read(self) -> dict[str, int]:
        """Give the peaks by namespace."""
        found: dict[str, int] = {}
        for match in map(PEAK.fullmatch, os.listdir(self._directory.peaks)):
            if match is not None:
                found[match[1]] = max(found.get(match[1], 0), int(match[2], 16))
        return found

    def _path(self, namespace: str, nbytes: int) -> str:
        return f"{self._directory.peaks}/{namespace}+{nbytes:x}"
