"""Bytes set aside for bundles being written: a claim for each, with the size in its name."""

import os
import re
import time

from rollferry.engines.shm import claims
from rollferry.engines.shm.claims import Claim
from rollferry.engines.shm.descriptors import close_file, open_file
from rollferry.engines.shm.directory import Directory
from rollferry.engines.shm.segment import HEADER_NBYTES, unpack_header
from rollferry.errors import BundleError

__all__ = ["Reservations"]

HELD = re.compile(r"([A-Za-z0-9_-]+)\.([0-9a-f]{32})-([0-9a-f]{1,16})")  # namespace, id, bytes
WAITS = re.compile(r"([A-Za-z0-9_-]+)~([0-9a-f]{16})-([0-9a-f]{32})")  # namespace, since when, id


class Reservations:
    """What is set aside in a directory. Thread-safe.

    Parameters
    ----------
    directory
        The directory.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._held: dict[str, Claim] = {}
        self._waiting: dict[str, Claim] = {}
        self._sizes: dict[str, dict[str, int]] = {}  # by namespace: of the bundles last seen, which don't change

    def take(self, namespace: str, key: str, nbytes: int, quota: int, *, queue: bool) -> bool:
        """Set bytes aside if those of the namespace then stay within its quota."""
        with claims.alone(f"{self._directory.reserved}/{namespace}"):
            own = self._waiting.get(key)
            set_aside, waiting = self._others(namespace)  # before the bundles: what is published meanwhile is in both
            first = (own is None and not waiting) or (own is not None and all(own.path <= path for path in waiting))
            if first and self._used(namespace, set_aside) + nbytes <= quota:
                self._held[key] = claims.make(f"{self._directory.reserved}/{key}-{nbytes:x}")
                claims.withdraw(self._waiting.pop(key, None))
                return True
            if own is None and queue:
                now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                self._waiting[key] = claims.make(f"{self._directory.reserved}/{namespace}~{now:016x}-{key[-32:]}")
            return False

    def give_back(self, key: str) -> None:
        """End what was set aside for a bundle, or the waiting for it."""
        claims.withdraw(self._held.pop(key, None))
        claims.withdraw(self._waiting.pop(key, None))

    def after_fork(self) -> None:
        """Leave what the parent has set aside to it."""
        self._held.clear()
        self._waiting.clear()

    def _used(self, namespace: str, set_aside: dict[str, int]) -> int:
        """Give the bytes that bundles take, or will take."""
        live = self._live(namespace)
        return sum(live.values()) + sum(size for key, size in set_aside.items() if key not in live)

    def _live(self, namespace: str) -> dict[str, int]:
        """Give the bytes of each bundle, without the space behind them in their segments."""
        start = f"{namespace}."
        known = self._sizes.setdefault(namespace, {})
        names = self._directory.live_names()
        if names != known.keys():  # most are known, so only the others cost more than to be listed
            for name in known.keys() - names:
                del known[name]
            for name in names - known.keys():
                counts = name.startswith(start) and self._directory.is_key(name)
                known[name] = self._content_nbytes(name) if counts else 0
        return known

    def _content_nbytes(self, key: str) -> int:
        """Give the bytes of a bundle; where it is damaged or can't be opened, those of its memory, which it takes all the same."""
        path = self._directory.live_path(key)
        try:
            nbytes = os.stat(path, follow_symlinks=False).st_size
        except FileNotFoundError:  # removed meanwhile
            return 0
        try:
            fd = open_file(path, os.O_RDONLY)
            if fd is None:
                return 0
            try:
                sizes = unpack_header(os.pread(fd, HEADER_NBYTES, 0), key, nbytes)
            finally:
                close_file(fd)
        except (OSError, BundleError):
            return nbytes
        return 0 if sizes is None else sum(sizes)

    def _others(self, namespace: str) -> tuple[dict[str, int], list[str]]:
        """Give the bytes that are set aside for each bundle, and the paths of those who wait, which sort by when they came."""
        set_aside, waiting = {}, []
        for name in os.listdir(self._directory.reserved):
            held, waits = HELD.fullmatch(name), WAITS.fullmatch(name)
            path = f"{self._directory.reserved}/{name}"
            if held is not None and held[1] == namespace and claims.holds(path):
                set_aside[f"{held[1]}.{held[2]}"] = int(held[3], 16)
            elif waits is not None and waits[1] == namespace and claims.holds(path):
                waiting.append(path)
        return set_aside, waiting
