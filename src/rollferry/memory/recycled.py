"""Private memory for results that goes from one to the next, so that filling it takes no page faults."""

import threading
from collections import deque
from functools import partial

from rollferry.memory.leases import Bytes, allocate, lend

__all__ = ["RecycledMemory", "rounded"]

MIN_BITS = 16  # the smallest piece has 64 KiB


class RecycledMemory:
    """Lends memory, which comes back when the last view of it dies. Thread-safe.

    Parameters
    ----------
    limit
        Most bytes of free memory to keep.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._free: list[Bytes] = []  # the longest unused first
        # Finalizers may run at any moment, also within the lock; so they only append, which needs none.
        self._returned: deque[Bytes] = deque()

    @property
    def nbytes(self) -> int:
        """Bytes of free memory."""
        with self._lock:
            self._collect()
            return sum(map(len, self._free))

    def lend(self, nbytes: int) -> Bytes:
        """Give so many bytes, whose content is undefined. Raises EngineFullError where there is no memory."""
        size = rounded(nbytes)
        with self._lock:
            self._collect()
            fitting = [place for place, memory in enumerate(self._free) if size <= len(memory) <= 2 * size]
            memory = self._free.pop(min(fitting, key=lambda place: len(self._free[place]))) if fitting else None
        if memory is None:
            memory = allocate(size)
        return lend(memory, 0, nbytes, partial(self._returned.append, memory))

    def clear(self) -> None:
        """Drop all free memory, and keep none from now on."""
        with self._lock:
            self._limit = 0
            self._collect()

    def _collect(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
        while sum(map(len, self._free)) > self._limit:
            self._free.pop(0)


def rounded(nbytes: int) -> int:
    """Give a size of few different ones, an eighth larger at most."""
    step = 1 << max(MIN_BITS, nbytes.bit_length() - 4)
    return max(-(-nbytes // step), 1) * step
