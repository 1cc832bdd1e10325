"""Free segments, reused so that a warm put takes no page faults, and this process's mappings of them."""

import contextlib
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from rollferry import _native
from rollferry.engines.shm.descriptors import lock_whole
from rollferry.engines.shm.directory import Directory

__all__ = ["Pool", "Segment"]

DEFAULT_LIMIT = 2 << 30
MAX_MAPPINGS = 64
SLACK = 1 << 20  # a segment may be this much larger than twice what is needed
FileId = tuple[int, int]


class Segment(NamedTuple):
    """A segment locked whole.

    Parameters
    ----------
    fd
        Descriptor that holds the locks.
    capacity
        Bytes of the file.
    path
        Where it lies under ``tmp/``; None where it has no name yet.
    """

    fd: int
    capacity: int
    path: Path | None


class Mapping(NamedTuple):
    """A mapping kept for the next use, and a descriptor that tells when the file was deleted."""

    lease: _native.Lease
    fd: int


class Pool:
    """The free segments of a directory. Thread-safe.

    Parameters
    ----------
    directory
        Where they lie.
    limit
        Most bytes to keep free; by default 2 GiB, or a quarter of the file system if that is less.
    """

    def __init__(self, directory: Directory, limit: int | None) -> None:
        self._directory = directory
        self.limit = min(DEFAULT_LIMIT, directory.total_nbytes() // 4) if limit is None else limit
        self._lock = threading.Lock()
        self._mappings: OrderedDict[FileId, Mapping] = OrderedDict()
        self._closed = False

    def after_fork(self) -> None:
        """Drop all mappings in the child of a fork, where another thread may have held the lock."""
        self._lock = threading.Lock()
        self._drop(0)

    def take(self, nbytes: int) -> Segment | None:
        """Take a free segment of at least that size, not much larger, locked whole and moved to ``tmp/``."""
        largest = 2 * nbytes + SLACK
        usable = [entry for entry in self._directory.pooled() if nbytes <= entry[0] <= largest]
        if not usable:
            return None
        warm = self._warm_inodes()
        usable.sort(key=lambda entry: (inode(entry[1]) not in warm, entry[0]))
        for capacity, path in usable:
            fd = lock_whole(path)
            if fd is None:
                continue
            target = self._directory.tmp_path()
            try:
                if os.fstat(fd).st_size < capacity:  # not of our making; writing to it could raise SIGBUS
                    os.unlink(path)
                    os.close(fd)
                    continue
                os.rename(path, target)
            except FileNotFoundError:  # trimmed by somebody else
                os.close(fd)
                continue
            return Segment(fd, capacity, target)
        return None

    def mapping(self, segment: Segment) -> _native.Lease:
        """Give a shared mapping of a segment, the same one as before where this process has it."""
        status = os.fstat(segment.fd)
        identity = (status.st_dev, status.st_ino)
        with self._lock:
            found = self._mappings.get(identity)
            if found is not None and len(found.lease) == segment.capacity:
                self._mappings.move_to_end(identity)
                return found.lease
        # Through an open file description of its own: a mapping of the segment's would keep that one's locks.
        watch = os.open(f"/proc/self/fd/{segment.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            lease = _native.map_shared(watch, segment.capacity)
        except BaseException:
            os.close(watch)
            raise
        with self._lock:
            self._mappings[identity] = Mapping(lease, watch)
            self._drop(0 if self._closed else MAX_MAPPINGS)
        return lease

    def close(self) -> None:
        """Drop all mappings, and keep none from now on."""
        with self._lock:
            self._closed = True
            self._drop(0)

    def _drop(self, limit: int) -> None:
        while len(self._mappings) > limit:
            _, mapping = self._mappings.popitem(last=False)  # first, since a fork during close() would close it again
            os.close(mapping.fd)

    def _warm_inodes(self) -> set[int]:
        """Give the inodes that this process has mapped; mappings of deleted files are dropped, since they hold memory."""
        with self._lock:
            for identity, mapping in list(self._mappings.items()):
                if os.fstat(mapping.fd).st_nlink == 0:
                    del self._mappings[identity]  # first, since a fork during close() would close it again
                    os.close(mapping.fd)
            return {number for _, number in self._mappings}

    def put_back(self, path: Path) -> bool:
        """Move a segment that is no longer needed to the pool; False where it is gone already."""
        try:
            capacity = os.stat(path, follow_symlinks=False).st_size
            if capacity == 0:
                os.unlink(path)
                return True
            os.rename(path, self._directory.pool_path(capacity))
        except FileNotFoundError:
            return False
        with contextlib.suppress(OSError):  # what is moved is moved; the next one trims again
            self.trim(self.limit)
        return True

    def trim(self, limit: int) -> None:
        """Delete free segments, the longest unused first, until the rest takes at most `limit` bytes."""
        entries = self._directory.pooled()
        total = sum(capacity for capacity, _ in entries)
        if total <= limit:
            return
        for capacity, path in sorted(entries, key=lambda entry: changed(entry[1])):
            if total <= limit:
                return
            delete(path)
            total -= capacity

    def sweep(self) -> None:
        """Move segments whose writer has died to the pool."""
        for path in self._directory.unfinished():
            fd = lock_whole(path)
            if fd is not None:
                self.put_back(path)
                os.close(fd)


def delete(path: Path) -> None:
    """Delete a free segment."""
    fd = lock_whole(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    if fd is not None:
        # Its memory goes back now, though its last writer may have it mapped; that one never looks at it unlocked.
        os.ftruncate(fd, 0)
        os.close(fd)


def inode(path: Path) -> int:
    """Give the inode of a path; 0 where it is gone."""
    try:
        return os.stat(path, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return 0


def changed(path: Path) -> int:
    """Give when a path was last changed or moved; 0 where it is gone."""
    try:
        return os.stat(path, follow_symlinks=False).st_ctime_ns
    except FileNotFoundError:
        return 0
