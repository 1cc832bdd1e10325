"""Memory in which payloads are packed: anonymous files, which the keeper of the node opens through /proc.

They vanish with their process. Free ones are kept for the next put, so that it takes no page faults.
"""

import os
import threading

import numpy as np

from rollferry import _native
from rollferry.engines.base import Bytes
from rollferry.engines.ray.actors import Staged
from rollferry.errors import EngineFullError
from rollferry.memory.leases import bytes_of

__all__ = ["Staging", "StagingPool"]


class Staging:
    """One anonymous file, mapped.

    Parameters
    ----------
    nbytes
        Bytes of it, at least one.
    """

    def __init__(self, nbytes: int) -> None:
        self.fd = os.memfd_create("rollferry", os.MFD_CLOEXEC)
        self.capacity = 0
        try:
            self.grow(nbytes)
        except BaseException:
            os.close(self.fd)
            raise

    def grow(self, nbytes: int) -> None:
        """Make it at least so long."""
        if nbytes <= self.capacity:
            return
        try:
            os.posix_fallocate(self.fd, 0, nbytes)  # reserved now: a lack of memory is an error, and never a SIGBUS
            self.memory: Bytes = bytes_of(_native.map_shared(self.fd, nbytes))
        except (OSError, MemoryError, OverflowError) as error:
            raise EngineFullError(f"there is no memory to pack {nbytes:,} bytes", needed=nbytes, free=0) from error
        self.capacity = nbytes

    def describe(self, nbytes: int) -> Staged:
        """Say where the first bytes of it are."""
        status = os.fstat(self.fd)
        return Staged(os.getpid(), self.fd, (status.st_dev, status.st_ino), nbytes)

    def close(self) -> None:
        """Give its memory back, once no view is left."""
        self.memory = np.empty(0, np.uint8)
        os.close(self.fd)


class StagingPool:
    """Free staging memory of this process.

    Parameters
    ----------
    limit
        Bytes kept at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._free: list[Staging] = []  # by capacity, rising
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        with self._lock:
            return sum(staging.capacity for staging in self._free)

    def take(self, nbytes: int) -> Staging:
        """Give memory of so many bytes or more."""
        with self._lock:
            fitting = [staging for staging in self._free if staging.capacity >= nbytes]
            found = fitting[0] if fitting else self._free[-1] if self._free else None
            if found is not None:
                self._free.remove(found)
        if found is None:
            return Staging(max(nbytes, 1))
        try:
            found.grow(nbytes)
        except BaseException:
            found.close()
            raise
        return found

    def give(self, staging: Staging) -> None:
        """Take memory back."""
        with self._lock:
            self._free.append(staging)
            self._free.sort(key=lambda staging: staging.capacity)
            dropped = []
            while sum(staging.capacity for staging in self._free) > self._limit:
                dropped.append(self._free.pop(0))
        for old in dropped:
            old.close()

    def clear(self) -> None:
        """Give all free memory back."""
        with self._lock:
            dropped, self._free = self._free, []
        for staging in dropped:
            staging.close()
