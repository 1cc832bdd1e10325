"""The engine itself."""

import os
import time
import weakref
from collections.abc import Sequence

from rollferry.engines.accounts import usage_of
from rollferry.engines.base import Reader, Ready, Usage, Writer
from rollferry.engines.shm import notes
from rollferry.engines.shm.descriptors import translated
from rollferry.engines.shm.directory import Directory
from rollferry.engines.shm.guarantees import Guarantees
from rollferry.engines.shm.mappings import Mappings
from rollferry.engines.shm.peaks import Peaks
from rollferry.engines.shm.pool import Pool
from rollferry.engines.shm.reader import ShmReader, gone
from rollferry.engines.shm.reservations import Reservations
from rollferry.engines.shm.writer import ShmWriter

__all__ = ["ShmEngine"]

TIDY_SECONDS = 1.0  # between looks at what other processes left behind


class ShmEngine:
    """Bundles as files of a tmpfs; see `Engine`.

    Parameters
    ----------
    path
        Directory; empty for this user's own under /dev/shm.
    pool_nbytes
        Most bytes of free segments to keep.
    """

    scheme = "shm"
    networked = False
    retries = 0

    def __init__(self, path: str, pool_nbytes: int | None) -> None:
        self._directory = Directory(path)
        self._pool = Pool(self._directory, pool_nbytes)
        self._mappings = Mappings(in_memory=self._directory.in_memory)
        self._reservations = Reservations(self._directory)
        self._guarantees = Guarantees(self._directory, self._pool)
        self._peaks = Peaks(self._directory)
        self._tidy_at = 0.0
        ENGINES.add(self)

    def begin(self, key: str, payload_nbytes: int, manifest_nbytes: int, ready: Sequence[Ready] = ()) -> Writer:
        writer = ShmWriter(
            self._directory,
            self._pool,
            self._mappings,
            guarantees=self._guarantees,
            peaks=self._peaks,
            key=key,
            payload_nbytes=payload_nbytes,
            manifest_nbytes=manifest_nbytes,
        )
        with translated(self._directory.root):
            if time.monotonic() >= self._tidy_at:
                self._tidy_at = time.monotonic() + TIDY_SECONDS
                self._mappings.prune()
                self._pool.sweep()
                notes.sweep(self._directory)
            writer.acquire()
        return writer

    def open(self, key: str) -> Reader:
        with translated(self._directory.root):
            return ShmReader(self._directory, key)

    def remove(self, key: str) -> bool:
        with translated(self._directory.root):
            removed = self._pool.put_back(self._directory.live_path(key))
            notes.forget(self._directory, key)
            return removed

    def list(self) -> list[str]:
        with translated(self._directory.root):
            return list(self._directory.live_keys())

    def sizes(self) -> dict[str, int]:
        with translated(self._directory.root):
            found = self._directory.live_sizes()
            self._peaks.seen(found)
            return found

    def note(self, key: str, text: str) -> None:
        with translated(self._directory.root):
            if not notes.add(self._directory, key, text):
                raise gone(key, self._directory)

    def notes(self, key: str) -> set[str]:
        with translated(self._directory.root):
            return notes.read(self._directory, key)

    def reserve(self, namespace: str, key: str, nbytes: int, quota: int, *, queue: bool) -> bool:
        with translated(self._directory.root):
            return self._reservations.take(namespace, key, nbytes, quota, queue=queue)

    def unreserve(self, key: str) -> None:
        with translated(self._directory.root):
            self._reservations.give_back(key)

    def guarantee(self, namespace: str, nbytes: int) -> None:
        with translated(self._directory.root):
            self._guarantees.give(namespace, nbytes)

    def unfinished(self) -> dict[str, int]:
        return {}  # whoever puts sweeps them

    def usage(self) -> Usage:
        sizes = self.sizes()
        with translated(self._directory.root):
            return usage_of(
                sizes,
                pooled=self._pool.by_namespace(),
                peaks=self._peaks.read(),
                guaranteed=self._guarantees.given(),
                free_nbytes=self._directory.free_nbytes() + self._pool.free_nbytes(),
            )

    def close(self) -> None:
        self._guarantees.close()
        self._mappings.close()

    def after_fork(self) -> None:
        """Drop the mappings in the child of a fork."""
        self._mappings.after_fork()
        self._reservations.after_fork()
        self._guarantees.after_fork()


ENGINES: weakref.WeakSet[ShmEngine] = weakref.WeakSet()


def after_fork_in_child() -> None:
    """Tell all engines of this process."""
    for engine in list(ENGINES):
        engine.after_fork()


os.register_at_fork(after_in_child=after_fork_in_child)
