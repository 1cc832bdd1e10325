"""Shared mappings of segments that this process wrote, kept so that writing to one again takes no page faults."""

import os
import threading
from collections import OrderedDict
from typing import NamedTuple

from rollferry import _native
from rollferry.engines.shm.segment import FileId

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
    """Mappings that nobody is writing through. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may put too
        self._kept: OrderedDict[FileId, Mapping] = OrderedDict()
        self._closed = False

    def take(self, fd: int, capacity: int, *, recycled: bool) -> Mapping:
        """Give a mapping of a locked segment, kept or new; the caller has it alone until `keep` or `drop`."""
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
            return Mapping(identity, _native.map_shared(own, capacity, recycled), own)
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

    def inodes(self) -> set[int]:
        """Give the inodes of the segments that are mapped."""
        with self._lock:
            return {inode for _, inode in self._kept}

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
