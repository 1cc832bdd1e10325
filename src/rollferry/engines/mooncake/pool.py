"""Registered memory: lent to writers, and to results for as long as any view of them lives."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from rollferry.errors import EngineError
from rollferry.memory.leases import Bytes, allocate, lend
from rollferry.memory.recycled import rounded

__all__ = ["Borrowed", "Pool", "Region"]

Register = Callable[[int, int], None]
Unregister = Callable[[int], None]


class Region:
    """A piece of memory of this process.

    Parameters
    ----------
    nbytes
        Its size.
    """

    def __init__(self, nbytes: int) -> None:
        self.memory = allocate(nbytes)
        self.nbytes = nbytes
        self.address = self.memory.ctypes.data
        self.registration: weakref.finalize[..., Region] | None = None  # ends it if the region gets lost


class Pool:
    """Keeps free regions registered, up to a limit; above it, regions are registered for one transfer only.

    Nothing ever waits: where no free region fits, there is a new one. So results that are held for long never starve
    other puts and gets.

    Parameters
    ----------
    register, unregister
        Do that with an address and a number of bytes, and with an address.
    limit
        Most bytes that stay registered.
    """

    def __init__(self, register: Register, unregister: Unregister, limit: int) -> None:
        self._register = register
        self._unregister = unregister
        self._limit = limit
        self._lock = threading.Lock()
        self._free: list[Region] = []  # the longest unused first
        self._registered = 0
        self._doubtful: set[int] = set()
        self._retired: list[Region] = []  # as long as the pool, and with it Mooncake's client, is there
        self._lost: deque[int] = deque()  # bytes of regions that a signal handler's exception made unreachable
        # Finalizers may run at any moment, also within the lock; so they only append, which needs none.
        self._returned: deque[Region] = deque()

    @property
    def free_nbytes(self) -> int:
        """Bytes of free regions."""
        with self._lock:
            self._collect()
            return sum(region.nbytes for region in self._free)

    def acquire(self, nbytes: int) -> Region:
        """Give a registered region of at least so many bytes, whose content is undefined."""
        size = rounded(nbytes)
        with self._lock:
            self._collect()
            fitting = [region for region in self._free if size <= region.nbytes <= 2 * size]
            if fitting:
                region = min(fitting, key=lambda region: region.nbytes)
                self._free.remove(region)
                return region
        region = Region(size)
        with self._lock:
            self._registered += size
            region.registration = weakref.finalize(region, self._lose, region.address, size)
            region.registration.atexit = False
        try:
            self._register(region.address, region.nbytes)
        except EngineError:
            with self._lock:
                self._forget(region)
            raise
        return region

    def release(self, region: Region) -> None:
        """Take a region back. May be called by a finalizer."""
        self._returned.append(region)

    def retire(self, addresses: Iterable[int]) -> None:
        """Neither use nor free again the regions of these addresses, as something may still write to them."""
        with self._lock:
            self._doubtful.update(addresses)

    def lease(self, region: Region, start: int, nbytes: int) -> Bytes:
        """Give memory of a region; it goes back to the pool when the last view of it dies."""
        with self._lock:
            self._collect()
            if self._registered > self._limit:
                self._drop(region)
        if not nbytes:
            self.release(region)
            return region.memory[:0]
        return lend(region.memory, start, nbytes, partial(self.release, region))

    def close(self) -> None:
        """Unregister what is free. What is lent stays valid memory."""
        with self._lock:
            self._limit = 0
            self._collect()

    def _collect(self) -> None:
        while self._returned:
            region = self._returned.popleft()
            if region.registration is None:
                continue
            if any(0 <= address - region.address < region.nbytes for address in self._doubtful):
                self._retired.append(region)
                self._forget(region)  # it stays registered, but the limit is for what is of use
            else:
                self._free.append(region)
        while self._lost:
            self._registered -= self._lost.popleft()
        while self._free and (self._registered > self._limit or not self._limit):
            self._drop(self._free.pop(0))

    def _drop(self, region: Region) -> None:
        if region.registration is not None:
            self._unregister(region.address)
            self._forget(region)

    def _forget(self, region: Region) -> None:
        if region.registration is not None:
            region.registration.detach()
            region.registration = None
            self._registered -= region.nbytes

    def _lose(self, address: int, nbytes: int) -> None:
        self._unregister(address)
        self._lost.append(nbytes)


class Borrowed:
    """Memory of batches, registered for the time of a put, so that it is sent from where it lies.

    Parameters
    ----------
    register, unregister
        Do that with an address and a number of bytes, and with an address.
    """

    def __init__(self, register: Register, unregister: Unregister) -> None:
        self._register = register
        self._unregister = unregister
        self._lock = threading.Lock()
        self._taken: dict[int, Bytes] = {}  # by address
        self._doubtful: set[int] = set()
        self._retired: list[Bytes] = []

    def take(self, memory: Bytes) -> bool:
        """Register memory; False where that can't be, and it is to be copied: another put has part of it, for example."""
        address, nbytes = memory.ctypes.data, len(memory)
        with self._lock:
            if any(address < other + len(taken) and other < address + nbytes for other, taken in self._taken.items()):
                return False
            self._taken[address] = memory
            try:
                self._register(address, nbytes)
            except EngineError:
                del self._taken[address]
                return False
            return True

    def retire(self, addresses: Iterable[int]) -> None:
        """Keep the memory of these addresses for ever, as something may still read it."""
        with self._lock:
            self._doubtful.update(addresses)

    def give_back(self, memory: Bytes) -> None:
        """Unregister it, if it was taken."""
        address, nbytes = memory.ctypes.data, len(memory)
        with self._lock:
            if self._taken.get(address) is not memory:
                return
            if any(0 <= doubtful - address < nbytes for doubtful in self._doubtful):
                self._retired.append(memory)
                return
            del self._taken[address]
            self._unregister(address)
