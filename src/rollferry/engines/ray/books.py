"""The accounts of a registry: bytes by namespace, live and about to be, and what is kept for whom."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from rollferry.engines.accounts import namespace_of, unspent
from rollferry.errors import EngineFullError

__all__ = ["Books", "Held"]

WAITING_SECONDS = 5  # that a place in the queue is kept for a producer that doesn't try again
CLAIM_SECONDS = 600  # that bytes stay set aside for a producer that lives but never says what came of them
LOOK_SECONDS = 0.5  # between two looks at who is dead


class Claim(NamedTuple):
    """Bytes that are set aside.

    Parameters
    ----------
    nbytes, namespace
        How many, and whose.
    holder
        The process that asked for them, as `Books` was told to recognize it.
    until
        When they are free in any case, by time.monotonic().
    """

    nbytes: int
    namespace: str
    holder: bytes
    until: float


class Held(NamedTuple):
    """What there is.

    Parameters
    ----------
    sizes
        Bytes of each bundle, by key.
    peaks, guaranteed
        By namespace.
    free
        Bytes of the object stores that neither bundles nor those being put take.
    """

    sizes: dict[str, int]
    peaks: dict[str, int]
    guaranteed: dict[str, int]
    free: int


class Books:
    """Which bundle, and who, has how many bytes. Not thread-safe: a registry serves one call at a time.

    Parameters
    ----------
    capacity
        Gives the bytes that all bundles may take together.
    dead
        Says whether a holder is.
    """

    def __init__(self, capacity: Callable[[], int], dead: Callable[[bytes], bool]) -> None:
        self._capacity = capacity
        self._dead = dead
        self._looked = 0.0
        self._sizes: dict[str, int] = {}
        self._live: dict[str, int] = {}
        self._peaks: dict[str, int] = {}
        self._begun: dict[str, Claim] = {}  # by key: bundles being put, while anything is guaranteed to anybody
        self._reserved: dict[str, Claim] = {}  # by key: parts of quotas
        self._guarantees: dict[str, Claim] = {}
        self._waiting: dict[str, float] = {}  # keys in the order of their coming, and when they are given up

    # ---- bundles ----------------------------------------------------------------------------------------------------

    def begin(self, key: str, nbytes: int, holder: bytes) -> None:
        """Set the bytes of a bundle aside. Raises EngineFullError where they are guaranteed to others."""
        self._admit(key, nbytes)
        if self._guarantees:
            self._begun[key] = Claim(nbytes, namespace_of(key), holder, time.monotonic() + CLAIM_SECONDS)

    def end(self, key: str) -> None:
        """Give back what was set aside for a bundle."""
        self._begun.pop(key, None)

    def publish(self, key: str, nbytes: int) -> None:
        """Enter a bundle. Raises EngineFullError as `begin` does, for one that was not begun, or for fewer bytes."""
        begun = self._begun.get(key)
        if begun is None or begun.nbytes < nbytes:
            self._admit(key, nbytes)
        self._begun.pop(key, None)
        self._reserved.pop(key, None)
        namespace = namespace_of(key)
        self._sizes[key] = nbytes
        live = self._live[namespace] = self._live.get(namespace, 0) + nbytes
        self._peaks[namespace] = max(self._peaks.get(namespace, 0), live)

    def remove(self, key: str) -> None:
        """Strike a bundle out."""
        self._live[namespace_of(key)] -= self._sizes.pop(key)

    def sizes(self) -> dict[str, int]:
        """Give the bytes of each bundle."""
        return self._sizes

    def _admit(self, key: str, nbytes: int) -> None:
        free = self._free(nbytes, lambda: self._free_to(key))
        if nbytes > free:
            raise EngineFullError(
                f"the bundle {key} needs {nbytes:,} bytes; what is guaranteed to other namespaces leaves {max(free, 0):,} "
                "in Ray's object stores. Remove bundles that were read",
                needed=nbytes,
                free=max(free, 0),
            )

    def _free_to(self, key: str) -> int:
        """Give the bytes that a bundle may take; as many as it likes while nothing is guaranteed: Ray has a disk."""
        if not self._guarantees:
            return sys.maxsize
        used = self._used(key)
        return self._capacity() - sum(used.values()) - unspent(self._guaranteed(), used, namespace_of(key))

    def _used(self, but: str = "") -> Counter[str]:
        """Give the bytes that bundles take or are about to, by namespace; one of those that were begun is left out."""
        used = Counter(self._live)
        for key, claim in self._begun.items():
            used[claim.namespace] += claim.nbytes if key != but else 0
        return used

    # ---- quotas -----------------------------------------------------------------------------------------------------

    def reserve(self, key: str, nbytes: int, quota: int, holder: bytes, *, queue: bool) -> bool:
        """Set a part of a namespace's quota aside; see `Engine.reserve`."""
        reserved = self._reserve(key, nbytes, quota, holder, queue=queue)
        return reserved or (self._bury() and self._reserve(key, nbytes, quota, holder, queue=queue))

    def _reserve(self, key: str, nbytes: int, quota: int, holder: bytes, *, queue: bool) -> bool:
        now, namespace = time.monotonic(), namespace_of(key)
        self._waiting = {name: until for name, until in self._waiting.items() if until > now or name == key}
        if queue:
            self._waiting[key] = now + WAITING_SECONDS  # one that waits already keeps its place
        first = next((name for name in self._waiting if namespace_of(name) == namespace), key)
        taken = sum(
            claim.nbytes for name, claim in self._reserved.items() if claim.namespace == namespace and name != key
        )
        if first != key or self._live.get(namespace, 0) + taken + nbytes > quota:
            return False
        self._waiting.pop(key, None)
        self._reserved[key] = Claim(nbytes, namespace, holder, now + CLAIM_SECONDS)
        return True

    def unreserve(self, key: str) -> None:
        """End what was set aside, and the waiting for it."""
        self._reserved.pop(key, None)
        self._waiting.pop(key, None)

    # ---- guarantees -------------------------------------------------------------------------------------------------

    def guarantee(self, name: str, namespace: str, nbytes: int, holder: bytes) -> None:
        """Keep bytes for a namespace, under a name; see `Engine.guarantee`."""
        free = self._free(nbytes, lambda: self._free_for(namespace))
        if nbytes > free:
            raise EngineFullError(
                f"{nbytes:,} bytes can't be guaranteed to the namespace {namespace!r}, as {max(free, 0):,} are left of Ray's "
                "object stores. Remove bundles, guarantee less, or give Ray more (object_store_memory)",
                needed=nbytes,
                free=max(free, 0),
            )
        self._guarantees[name] = Claim(nbytes, namespace, holder, float("inf"))

    def release(self, name: str) -> None:
        """End a guarantee."""
        self._guarantees.pop(name, None)

    def _free_for(self, namespace: str) -> int:
        """Give the bytes that can be kept for a namespace, those that it has among them."""
        used = self._used()
        others = sum(used.values()) - used.get(namespace, 0)
        return self._capacity() - others - unspent(self._guaranteed(), used, namespace)

    def _guaranteed(self) -> dict[str, int]:
        """Give what is guaranteed to each namespace: the largest holds."""
        rising = sorted(self._guarantees.values(), key=lambda claim: claim.nbytes)
        return {claim.namespace: claim.nbytes for claim in rising}

    # ---- all of it --------------------------------------------------------------------------------------------------

    def held(self) -> Held:
        """Say what there is."""
        self._bury()
        free = self._capacity() - sum(self._used().values())
        return Held(self._sizes, self._peaks, self._guaranteed(), max(0, free))

    def _free(self, nbytes: int, count: Callable[[], int]) -> int:
        """Give what is counted as free; counted again without the dead where it is less than what is needed."""
        free = count()
        return count() if nbytes > free and self._bury() else free

    def _bury(self) -> bool:
        """End the claims whose holders are dead, or whose time is over; say whether there were any."""
        now = time.monotonic()
        if now < self._looked + LOOK_SECONDS:
            return False
        books = (self._begun, self._reserved, self._guarantees)
        holders = {claim.holder for book in books for claim in book.values()}
        dead = {holder for holder in holders if self._dead(holder)}
        ended = [
            (book, key) for book in books for key, claim in book.items() if claim.until < now or claim.holder in dead
        ]
        for book, key in ended:
            del book[key]
        self._looked = time.monotonic()
        return bool(ended)
