"""inproc://: bundles in the memory of this process; the simplest engine, and the model for the tests of others.

``inproc://name`` gives every Ferry of the process that names it the same bundles. The option ``chunk`` sets the size of
the chunks that are lent, so that members are cut.
"""

import threading
from collections.abc import Sequence

from rollferry.checks import Step
from rollferry.engines.base import Bytes, Reader, Ready, Usage, Writer
from rollferry.engines.registry import EngineURL, Probe, parse_size
from rollferry.errors import BundleNotFoundError, EngineError
from rollferry.memory.leases import allocate

__all__ = ["InprocessEngine", "checks", "open_engine"]

STORES: dict[str, dict[str, tuple[bytes, Bytes]]] = {}
NOTES: dict[str, dict[str, list[str]]] = {}
RESERVED: dict[str, dict[str, int]] = {}
WAITING: dict[str, dict[str, str]] = {}  # namespaces of the bundles, in the order of their coming
LOCK = threading.Lock()


class InprocessWriter:
    """A bundle being written; see `Writer`."""

    def __init__(self, store: dict[str, tuple[bytes, Bytes]], key: str, nbytes: int, chunk: int) -> None:
        self._store = store
        self._key = key
        self._ended = False
        self._payload = allocate(nbytes)
        self.chunks = [self._payload[start : start + chunk] for start in range(0, nbytes, chunk)]

    def publish(self, manifest: bytes) -> None:
        if self._ended:
            raise EngineError("the bundle was published or aborted already")
        self._store[self._key] = (manifest, self._payload)
        self.abort()

    def abort(self) -> None:
        self._ended = True
        self.chunks = []


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
    """

    scheme = "inproc"
    networked = False

    def __init__(self, name: str, chunk: int) -> None:
        self._store = STORES.setdefault(name, {})
        self._notes = NOTES.setdefault(name, {})
        self._reserved = RESERVED.setdefault(name, {})
        self._waiting = WAITING.setdefault(name, {})
        self._chunk = chunk

    def begin(self, key: str, payload_nbytes: int, manifest_nbytes: int, ready: Sequence[Ready] = ()) -> Writer:
        return InprocessWriter(self._store, key, payload_nbytes, self._chunk)

    def open(self, key: str) -> Reader:
        found = self._store.get(key)
        if found is None:
            raise BundleNotFoundError(f"there is no bundle {key}: it was removed, or put in another process")
        return InprocessReader(*found)

    def remove(self, key: str) -> bool:
        self._notes.pop(key, None)
        return self._store.pop(key, None) is not None

    def list(self) -> list[str]:
        return list(self._store)

    def sizes(self) -> dict[str, int]:
        return {key: len(manifest) + len(payload) for key, (manifest, payload) in list(self._store.items())}

    def note(self, key: str, text: str) -> None:
        self._notes.setdefault(key, []).append(text)
        if key not in self._store:
            self._notes.pop(key, None)
            raise BundleNotFoundError(f"there is no bundle {key}: it was removed, or put in another process")

    def notes(self, key: str) -> set[str]:
        return set(self._notes.get(key, ()))

    def reserve(self, namespace: str, key: str, nbytes: int, quota: int) -> bool:
        with LOCK:
            taken = {**self._reserved, **self.sizes()}
            self._waiting.setdefault(key, namespace)
            first = next(name for name, of in self._waiting.items() if of == namespace)
            used = sum(size for name, size in taken.items() if name.rpartition(".")[0] == namespace)
            if first != key or used + nbytes > quota:
                return False
            del self._waiting[key]
            self._reserved[key] = nbytes
            return True

    def unreserve(self, key: str) -> None:
        with LOCK:
            self._reserved.pop(key, None)
            self._waiting.pop(key, None)

    def usage(self) -> Usage:
        live = self.sizes()
        return Usage(bundles=len(live), live_nbytes=sum(live.values()), pooled_nbytes=0)

    def close(self) -> None:
        pass


def open_engine(url: EngineURL) -> InprocessEngine:
    """Open the engine of an ``inproc://`` URL."""
    return InprocessEngine(url.host + url.path, chunk_of(url))


def checks(url: EngineURL, probe: Probe) -> list[Step]:
    """Give the checks of an ``inproc://`` URL."""
    chunk_of(url)
    return [Step("round trip", lambda: probe(url), "report it: nothing but this process is involved")]


def chunk_of(url: EngineURL) -> int:
    """Read the one option."""
    url.check_options("chunk")
    chunk = parse_size(url.options.get("chunk", "1tb"))
    if chunk < 1:
        raise EngineError("a chunk has at least one byte")
    return chunk
