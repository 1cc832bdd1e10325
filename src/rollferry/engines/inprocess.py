"""inproc://: bundles in the memory of this process; the simplest engine, and the model for the tests of others.

``inproc://name`` gives every Ferry of the process that names it the same bundles. The option ``chunk`` sets the size of
the chunks that are lent, so that members are cut; the option ``capacity`` bounds the bytes of all bundles of the name.
"""

import threading
from collections.abc import Sequence
from typing import NamedTuple

from rollferry.checks import Step
from rollferry.engines.accounts import namespace_of, totals, unspent, usage_of
from rollferry.engines.base import Bytes, Reader, Ready, Usage, Writer
from rollferry.engines.registry import EngineURL, Probe, parse_size
from rollferry.errors import BundleNotFoundError, EngineError, EngineFullError
from rollferry.memory.leases import allocate

__all__ = ["InprocessEngine", "checks", "open_engine"]


class Store:
    """What all engines of one name share; to be changed with the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.bundles: dict[str, tuple[bytes, Bytes]] = {}
        self.begun: dict[str, int] = {}  # bytes of bundles being written
        self.notes: dict[str, list[str]] = {}
        self.reserved: dict[str, int] = {}
        self.waiting: list[str] = []  # keys, in the order of their coming
        self.peaks: dict[str, int] = {}
        self.guarantees: list[Guarantee] = []

    def sizes(self) -> dict[str, int]:
        """Give the bytes of each bundle."""
        return {key: len(manifest) + len(payload) for key, (manifest, payload) in list(self.bundles.items())}

    def guaranteed(self) -> dict[str, int]:
        """Give the bytes that are kept for namespaces."""
        return {one.namespace: one.nbytes for one in sorted(self.guarantees, key=lambda one: one.nbytes)}

    def take(self, key: str, nbytes: int, free: int | None) -> None:
        """Count bytes as those of a bundle being written. Raises EngineFullError where others have them, or a guarantee of them."""
        used = self.begun | self.sizes()
        if free is not None:
            free -= sum(used.values()) + unspent(self.guaranteed(), totals(used), namespace_of(key))
            if nbytes > free:
                raise EngineFullError(
                    f"the bundle {key} needs {nbytes:,} bytes, {max(free, 0):,} are free; remove bundles that were read",
                    needed=nbytes,
                    free=max(free, 0),
                )
        self.begun[key] = nbytes


class Guarantee(NamedTuple):
    """Bytes that are kept for a namespace."""

    namespace: str
    nbytes: int


STORES: dict[str, Store] = {}


class InprocessWriter:
    """A bundle being written; see `Writer`."""

    def __init__(self, store: Store, key: str, nbytes: int, chunk: int) -> None:
        self._store = store
        self._key = key
        self._ended = False
        self._payload = allocate(nbytes)
        self.chunks = [self._payload[start : start + chunk] for start in range(0, nbytes, chunk)]

    def publish(self, manifest: bytes) -> None:
        if self._ended:
            raise EngineError("the bundle was published or aborted already")
        store = self._store
        with store.lock:
            store.bundles[self._key] = (manifest, self._payload)
            for namespace, nbytes in totals(store.sizes()).items():
                store.peaks[namespace] = max(store.peaks.get(namespace, 0), nbytes)
        self.abort()

    def abort(self) -> None:
        self._ended = True
        self.chunks = []
        self._store.begun.pop(self._key, None)


class InprocessReader:
    """A bundle being read; see `Reader`."""

    def __init__(self, manifest: bytes, payload: Bytes) -> None:
        self._payload = payload
        self.manifest = manifest
        self.payload_nbytes = len(payload)

    def fetch(self, ranges: Sequence[tuple[int, int]], *, writable: bool = True) -> list[Bytes]:
        # One copy, so that members keep their alignment.
        copy = allocate(self.payload_nbytes)
        for offset, nbytes in ranges:
            copy[offset : offset + nbytes] = self._payload[offset : offset + nbytes]
        return [copy[offset : offset + nbytes] for offset, nbytes in ranges]

    def close(self) -> None:
        pass


class InprocessEngine:
    """Bundles in a dict; see `Engine`.

    Parameters
    ----------
    name
        Name of the store within the process.
    chunk
        Bytes of a lent chunk.
    capacity
        Most bytes of all bundles of the name; None for any number.
    """

    scheme = "inproc"
    networked = False
    retries = 0

    def __init__(self, name: str, chunk: int, capacity: int | None) -> None:
        self._store = STORES.setdefault(name, Store())
        self._chunk = chunk
        self._capacity = capacity
        self._guarantees: list[Guarantee] = []

    def begin(self, key: str, payload_nbytes: int, manifest_nbytes: int, ready: Sequence[Ready] = ()) -> Writer:
        with self._store.lock:
            self._store.take(key, payload_nbytes + manifest_nbytes, self._capacity)
        return InprocessWriter(self._store, key, payload_nbytes, self._chunk)

    def open(self, key: str) -> Reader:
        found = self._store.bundles.get(key)
        if found is None:
            raise BundleNotFoundError(f"there is no bundle {key}: it was removed, or put in another process")
        return InprocessReader(*found)

    def remove(self, key: str) -> bool:
        self._store.notes.pop(key, None)
        return self._store.bundles.pop(key, None) is not None

    def list(self) -> list[str]:
        return list(self._store.bundles)

    def sizes(self) -> dict[str, int]:
        return self._store.sizes()

    def note(self, key: str, text: str) -> None:
        self._store.notes.setdefault(key, []).append(text)
        if key not in self._store.bundles:
            self._store.notes.pop(key, None)
            raise BundleNotFoundError(f"there is no bundle {key}: it was removed, or put in another process")

    def notes(self, key: str) -> set[str]:
        return set(self._store.notes.get(key, ()))

    def reserve(self, namespace: str, key: str, nbytes: int, quota: int, *, queue: bool) -> bool:
        store = self._store
        with store.lock:
            first = next((name for name in store.waiting if namespace_of(name) == namespace), key)
            used = totals(store.reserved | store.sizes()).get(namespace, 0)
            reserved = first == key and used + nbytes <= quota
            if reserved:
                store.reserved[key] = nbytes
            if reserved and key in store.waiting:
                store.waiting.remove(key)
            elif not reserved and queue and key not in store.waiting:
                store.waiting.append(key)
            return reserved

    def unreserve(self, key: str) -> None:
        with self._store.lock:
            self._store.reserved.pop(key, None)
            if key in self._store.waiting:
                self._store.waiting.remove(key)

    def guarantee(self, namespace: str, nbytes: int) -> None:
        if self._capacity is None:
            raise EngineError("inproc:// has no bytes to guarantee; connect with ?capacity=")
        store = self._store
        with store.lock:
            used = totals(store.begun | store.sizes())
            free = self._capacity - sum(used.values()) - unspent(store.guaranteed(), used, namespace)
            if nbytes > free + used.get(namespace, 0):
                raise EngineFullError(
                    f"{nbytes:,} bytes can't be guaranteed to the namespace {namespace!r}, as {max(free, 0):,} are left",
                    needed=nbytes,
                    free=max(free, 0),
                )
            guarantee = Guarantee(namespace, nbytes)
            store.guarantees.append(guarantee)
        self._guarantees.append(guarantee)

    def unfinished(self) -> dict[str, int]:
        return {}

    def usage(self) -> Usage:
        with self._store.lock:
            live, begun = self._store.sizes(), self._store.begun
            free = None if self._capacity is None else max(0, self._capacity - sum((begun | live).values()))
            return usage_of(
                live, pooled={}, peaks=self._store.peaks, guaranteed=self._store.guaranteed(), free_nbytes=free
            )

    def close(self) -> None:
        with self._store.lock:
            while self._guarantees:
                self._store.guarantees.remove(self._guarantees.pop())


def open_engine(url: EngineURL) -> InprocessEngine:
    """Open the engine of an ``inproc://`` URL."""
    return InprocessEngine(url.host + url.path, *options_of(url))


def checks(url: EngineURL, probe: Probe) -> list[Step]:
    """Give the checks of an ``inproc://`` URL."""
    options_of(url)
    return [Step("round trip", lambda: probe(url), "report it: nothing but this process is involved")]


def options_of(url: EngineURL) -> tuple[int, int | None]:
    """Read the options: bytes of a chunk, and of all bundles."""
    url.check_options("chunk", "capacity")
    chunk = parse_size(url.options.get("chunk", "1tb"))
    if chunk < 1:
        raise EngineError("a chunk has at least one byte")
    return chunk, parse_size(url.options["capacity"]) if "capacity" in url.options else None
