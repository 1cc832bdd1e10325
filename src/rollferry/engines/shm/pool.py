"""Free segments, kept for the next put."""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from rollferry.engines.shm.descriptors import close_file, lock_whole
from rollferry.engines.shm.directory import Directory

__all__ = ["Pool", "Segment"]

DEFAULT_LIMIT = 2 << 30
SLACK = 1 << 20  # a segment may be this much larger than twice what is needed


class Segment(NamedTuple):
    """A segment being written.

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


class Pool:
    """The free segments of a directory, which other processes use too.

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

    def take(self, nbytes: int, warm: set[int]) -> Segment | None:
        """Take a free segment of at least that size, not much larger, locked whole and moved to ``tmp/``.

        Parameters
        ----------
        nbytes
            Bytes needed.
        warm
            Inodes of segments to prefer.
        """
        largest = 2 * nbytes + SLACK
        usable = [entry for entry in self._directory.pooled() if nbytes <= entry[0] <= largest]
        if len(usable) > 1:
            usable.sort(key=lambda entry: (inode(entry[1]) not in warm, entry[0]))
        for capacity, path in usable:
            fd = lock_whole(path)
            if fd is None:
                continue
            try:
                if os.fstat(fd).st_size >= capacity:
                    target = self._directory.tmp_path()
                    os.rename(path, target)
                    return Segment(fd, capacity, target)
                os.unlink(path)  # not of our making; writing to it could raise SIGBUS
            except FileNotFoundError:  # trimmed by somebody else
                pass
            except BaseException:
                close_file(fd)
                raise
            close_file(fd)
        return None

    def put_back(self, path: Path) -> bool:
        """Move a segment that is no longer needed to the pool; False where it is gone already."""
        try:
            capacity = os.stat(path, follow_symlinks=False).st_size
            if capacity == 0:
                os.unlink(path)
                return True
            os.rename(path, self._directory.pool_path(capacity))
        except FileNotFoundError:
            if path.exists():  # then it is the pool that is missing
                raise
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
                try:
                    self.put_back(path)
                finally:
                    close_file(fd)


def delete(path: Path) -> None:
    """Delete a free segment."""
    fd = lock_whole(path)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        if fd is not None:
            # Its memory goes back now, though its last writer may have it mapped; that one never looks at it unlocked.
            os.ftruncate(fd, 0)
    finally:
        if fd is not None:
            close_file(fd)


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
