"""Shared mappings of segments that this process wrote, kept so that writing to one again takes no page faults."""

import errno
import os
import threading
from collections import OrderedDict
from typing import NamedTuple

from rollferry import _native
from rollferry.engines.shm.segment import FileId
from rollferry.memory.leases import threads_for

__all__ = ["Mapping", "Mappings"]

MAX_KEPT = 64


class Mapping(NamedTuple):
    """A shared mapping of a segment.

    Parameters
    ----------
    identity
        Device and inode of the file.
    lease
        The mapping.
    fd
        Descriptor that it was made through, which tells when the file was deleted.
    """

    identity: FileId
    lease: _native.Lease
    fd: int


class Mappings:
    """Mappings that nobody is writing through. Thread-safe.

    Parameters
    ----------
    in_memory
        Whether the segments lie in memory, where giving them pages reserves all that they need.
    """

    def __init__(self, *, in_memory: bool) -> None:
        self._in_memory = in_memory
        self._lock = threading.RLock()  # a signal handler may put too
        self._kept: OrderedDict[FileId, Mapping] = OrderedDict()
        self._closed = False

    def take(self, fd: int, capacity: int) -> Mapping:
        """Give a mapping of a locked segment, kept or new; the caller has it alone until `keep` or `drop`.

        Writing to it takes no page faults, and can't fail for want of memory; OSError where there is none.
        """
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        with self._lock:
            found = self._kept.pop(identity, None)
        if found is not None:
            if len(found.lease) == capacity:
                return found
            self.drop(found)
        # Through an open file description of its own: a mapping of the segment's would keep that one's locks.
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            lease = _native.map_shared(own, capacity)
            if self._in_memory:
                populate(fd, lease)
            else:
                os.posix_fallocate(fd, 0, capacity)
            return Mapping(identity, lease, own)
        except BaseException:
            os.close(own)
            raise

    def keep(self, mapping: Mapping) -> None:
        """Keep a mapping for the next use."""
        with self._lock:
            self._kept[mapping.identity] = mapping
            self._shrink(0 if self._closed else MAX_KEPT)

    def drop(self, mapping: Mapping) -> None:
        """Let go of a mapping."""
        os.close(mapping.fd)

    def prune(self) -> None:
        """Drop mappings of deleted segments, whose memory they hold."""
        with self._lock:
            for identity, mapping in list(self._kept.items()):
                if os.fstat(mapping.fd).st_nlink == 0:
                    del self._kept[identity]
                    os.close(mapping.fd)

    def segments(self) -> list[tuple[int, int]]:
        """Give capacity and inode of the segments that are mapped, the longest unused first."""
        with self._lock:
            return [(len(mapping.lease), identity[1]) for identity, mapping in self._kept.items()]

    def close(self) -> None:
        """Drop all mappings, and keep none from now on."""
        with self._lock:
            self._closed = True
            self._shrink(0)

    def after_fork(self) -> None:
        """Drop all mappings in the child of a fork, where another thread may have held the lock."""
        self._lock = threading.RLock()  # a signal handler may put too
        self._shrink(0)

    def _shrink(self, limit: int) -> None:
        while len(self._kept) > limit:
            _, mapping = self._kept.popitem(last=False)
            os.close(mapping.fd)


def populate(fd: int, lease: _native.Lease) -> None:
    """Give all pages of a mapped file memory."""
    try:
        _native.populate(lease, threads_for(len(lease)))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        os.posix_fallocate(fd, 0, len(lease))  # a kernel before Linux 5.14
