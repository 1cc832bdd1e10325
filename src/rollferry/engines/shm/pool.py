"""Free segments, kept for the next put."""

import contextlib
import os
import stat
from collections.abc import Collection, Iterator
from typing import NamedTuple

from rollferry import _native
from rollferry.engines.accounts import namespace_of
from rollferry.engines.shm.descriptors import NOT_OURS, close_file, lock_whole, open_file
from rollferry.engines.shm.directory import Directory
from rollferry.engines.shm.segment import HEADER_NBYTES, READER_BYTE, key_in

__all__ = ["Pool", "Segment"]

DEFAULT_LIMIT = 2 << 30
SLACK = 1 << 20  # a segment may be this much larger than twice what is needed
BLOCK = 512  # bytes, of which st_blocks counts
GUESSES = 4  # segments to look for by name before the folder is listed


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
    path: str | None


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

    def by_namespace(self) -> dict[str, int]:
        """Give the bytes of free segments by the namespace of the bundle that was in each; those of none under an empty name."""
        found: dict[str, int] = {}
        for capacity, inode in self._directory.pooled():
            namespace = namespace_in(self._directory.pool_path(capacity, inode))
            found[namespace] = found.get(namespace, 0) + capacity
        return found

    def nbytes(self) -> int:
        """Give the bytes of memory of free segments, whether somebody reads them or not."""
        found = 0
        for entry in self._directory.pooled():
            with contextlib.suppress(FileNotFoundError):
                found += os.stat(self._directory.pool_path(*entry), follow_symlinks=False).st_blocks * BLOCK
        return found

    def free_nbytes(self) -> int:
        """Give the bytes of memory of free segments that nobody reads any more. It locks none, so as to be in nobody's way."""
        free = 0
        for entry in self._directory.pooled():
            with opened(self._directory.pool_path(*entry)) as fd:
                if fd is not None and not _native.is_locked(fd, READER_BYTE):
                    free += os.fstat(fd).st_blocks * BLOCK
        return free

    def take(self, nbytes: int, warm: Collection[tuple[int, int]]) -> Segment | None:
        """Take a free segment of at least that size, not much larger, locked whole and moved to ``tmp/``.

        Parameters
        ----------
        nbytes
            Bytes needed.
        warm
            Capacity and inode of segments to prefer, free or not, the likeliest to be free first.
        """
        for capacity, inode in self._candidates(nbytes, warm):
            path = self._directory.pool_path(capacity, inode)
            fd = lock_whole(path)
            if fd is None:
                continue
            try:
                if os.fstat(fd).st_size >= capacity:
                    target = self._directory.tmp_path(inode)
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

    def _candidates(self, nbytes: int, warm: Collection[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Give capacity and inode of segments that may be free and are of a fitting size."""
        largest = 2 * nbytes + SLACK
        guesses = [entry for entry in warm if nbytes <= entry[0] <= largest]
        yield from guesses[:GUESSES]
        usable = [entry for entry in self._directory.pooled() if nbytes <= entry[0] <= largest]
        yield from sorted(usable, key=lambda entry: (entry not in guesses, entry[0]))

    def put_back(self, path: str) -> bool:
        """Move a segment that is no longer needed to the pool; False where it is gone already."""
        try:
            status = os.stat(path, follow_symlinks=False)
            if status.st_size == 0 or not stat.S_ISREG(status.st_mode):
                os.unlink(path)
                return True
            os.rename(path, self._directory.pool_path(status.st_size, status.st_ino))
        except FileNotFoundError:
            if os.path.lexists(path):  # then it is the pool that is missing
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
        paths = {self._directory.pool_path(*entry): entry[0] for entry in entries}
        for path in sorted(paths, key=changed):
            if total <= limit:
                return
            delete(path)
            total -= paths[path]

    def sweep(self) -> int:
        """Move segments whose writer has died to the pool; say how many."""
        swept = 0
        for path in self._directory.unfinished():
            fd = lock_whole(path)
            if fd is not None:
                try:
                    swept += self.put_back(path)
                finally:
                    close_file(fd)
        return swept


def namespace_in(path: str) -> str:
    """Give the namespace of the bundle that was in a segment last; empty where there was none."""
    with opened(path) as fd:
        return "" if fd is None else namespace_of(key_in(os.pread(fd, HEADER_NBYTES, 0)))


@contextlib.contextmanager
def opened(path: str) -> Iterator[int | None]:
    """Have a segment open for reading; None where it is gone, or no file."""
    try:
        fd = open_file(path, os.O_RDONLY)
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise
        fd = None
    try:
        yield fd if fd is not None and stat.S_ISREG(os.fstat(fd).st_mode) else None
    finally:
        if fd is not None:
            close_file(fd)


def delete(path: str) -> None:
    """Delete a free segment."""
    fd = lock_whole(path)
    try:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(path)
        if fd is not None:
            # Its memory goes back now, though its last writer may have it mapped; that one never looks at it unlocked.
            os.ftruncate(fd, 0)
    finally:
        if fd is not None:
            close_file(fd)


def changed(path: str) -> int:
    """Give when a path was last changed or moved; 0 where it is gone."""
    try:
        return os.stat(path, follow_symlinks=False).st_ctime_ns
    except FileNotFoundError:
        return 0
