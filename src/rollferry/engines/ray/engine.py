"""The engine: writers that pack into staging memory, readers over Ray's object store."""

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import ray

from rollferry.engines.accounts import usage_of
from rollferry.engines.base import Bytes, Reader, Ready, Usage, Writer
from rollferry.engines.ray.actors import PIECE, SMALL, Found
from rollferry.engines.ray.books import Held
from rollferry.engines.ray.session import Session, attach
from rollferry.engines.ray.staging import Staging, StagingPool
from rollferry.errors import BundleError, BundleNotFoundError, EngineError
from rollferry.memory.leases import copy_bytes
from rollferry.memory.pieces import Pieces
from rollferry.memory.plan import ALIGNMENT
from rollferry.memory.recycled import RecycledMemory

__all__ = ["RayEngine"]


class RayWriter:
    """A bundle being written; see `Writer`."""

    def __init__(self, session: Session, pool: StagingPool, key: str, nbytes: int, chunk: int) -> None:
        self._session = session
        self._pool = pool
        self._key = key
        self._trial = secrets.token_hex(8)
        self._nbytes = nbytes
        self._chunk = chunk
        self._staging: Staging | None = pool.take(nbytes)
        memory = self._staging.memory[:nbytes]
        self.chunks: Sequence[Bytes] = [memory[start : start + chunk] for start in range(0, nbytes, chunk)]

    def publish(self, manifest: bytes) -> None:
        staging = self._staging
        if staging is None:
            raise EngineError("the bundle was published or aborted already")
        session = self._session
        what = f"publishing the bundle {self._key}"
        try:
            if small(self._nbytes, self._chunk):
                payload = staging.memory[: self._nbytes]
                pieces = [payload[start : start + PIECE].tobytes() for start in range(0, self._nbytes, PIECE)]
                call = session.registry().add.remote(self._key, self._trial, manifest, *pieces)
            else:
                place = staging.describe(self._nbytes)
                bundle = self._key, self._trial, manifest
                call = session.keeper().store.remote(*bundle, place, self._chunk, session.timeout)
            done = session.wait(call, what, self._nbytes)
            if done is None:  # no shared /proc: over the object store, at the cost of a second copy there
                with session.errors(what, 2 * self._nbytes):
                    chunks = [ray.put(chunk) for chunk in self.chunks]
                call = session.keeper().adopt.remote(*bundle, chunks, session.timeout)
                done = session.wait(call, what, self._nbytes)
            if not done:
                raise EngineError("publishing was given up")
        except BaseException:
            with suppress(EngineError):
                session.registry().give_up.remote(self._key, self._trial)
            # The keeper may still read it.
            self._end()
            staging.close()
            raise
        self._end()
        self._pool.give(staging)

    def abort(self) -> None:
        staging = self._staging
        self._end()
        if staging is not None:
            self._pool.give(staging)
            if not small(self._nbytes, self._chunk):
                end(self._session, self._key)

    def _end(self) -> None:
        self._staging = None
        self.chunks = []


class RayReader:
    """A bundle being read; see `Reader`. It holds the object store's memory until it is closed, and views hold it longer.

    Parameters
    ----------
    found
        The bundle.
    read
        Gives the memory of chunks, by their references and how many bytes they have together.
    memory
        For copies.
    """

    def __init__(
        self, found: Found, read: Callable[[Sequence[Any], int], Sequence[Bytes]], memory: RecycledMemory
    ) -> None:
        self.manifest = found.manifest
        self.payload_nbytes = found.payload_nbytes
        self._chunk = found.chunk_nbytes
        self._chunks = list(found.chunks)  # arrays, or references
        self._read = read
        self._memory = memory
        if len(self._chunks) != -(-self.payload_nbytes // self._chunk):
            raise BundleError("the number of chunks is not that of the payload")

    def fetch(self, ranges: Sequence[tuple[int, int]], *, writable: bool = True) -> list[Bytes]:
        self._need(ranges)
        if writable:
            return self._copies(ranges)
        views = [self._view(offset, nbytes) for offset, nbytes in ranges]
        # What a chunk's end cuts has to be put together.
        cut = [number for number, view in enumerate(views) if view is None]
        for number, copy in zip(cut, self._copies([ranges[number] for number in cut]), strict=True):
            views[number] = copy
        return [view for view in views if view is not None]

    def close(self) -> None:
        self._chunks = []

    def _need(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read the chunks that ranges touch, unless they are here."""
        touched: set[int] = set()
        for offset, nbytes in ranges:
            if nbytes:
                touched.update(range(offset // self._chunk, (offset + nbytes - 1) // self._chunk + 1))
        numbers = [number for number in sorted(touched) if not isinstance(self._chunks[number], np.ndarray)]
        if not numbers:
            return
        sizes = [min(self._chunk, self.payload_nbytes - number * self._chunk) for number in numbers]
        read = self._read([self._chunks[number] for number in numbers], sum(sizes))
        for number, size, chunk in zip(numbers, sizes, read, strict=True):
            if len(chunk) != size:
                raise BundleError(f"chunk {number} has {len(chunk)} bytes, not {size}")
            self._chunks[number] = chunk

    def _view(self, offset: int, nbytes: int) -> Bytes | None:
        if nbytes == 0:
            return np.empty(0, np.uint8)
        chunk, start = divmod(offset, self._chunk)
        view: Bytes = self._chunks[chunk][start : start + nbytes]
        aligned = view.ctypes.data % ALIGNMENT == offset % ALIGNMENT
        return view if len(view) == nbytes and aligned else None

    def _copies(self, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        """Copy ranges, all into one piece of memory."""
        pieces = Pieces.of(ranges, ALIGNMENT - 1)
        if not pieces.nbytes:
            return [np.empty(0, np.uint8) for _ in ranges]
        memory = self._memory.lend(pieces.nbytes)
        for number, offset, nbytes, place in pieces.cut(self._chunk):
            copy_bytes(self._chunks[number][offset : offset + nbytes], memory[place : place + nbytes])
        return pieces.views(memory, ranges)


class RayEngine:
    """Bundles in Ray's object store; see `Engine`. It can't be used in the child of a fork.

    Parameters
    ----------
    address
        Where Ray is, if this process isn't attached to it; empty for the one of this machine.
    namespace
        Ray namespace of the registry.
    chunk
        Bytes of an object at most.
    pool
        Bytes of free memory that this process keeps for its next puts, and as many for its next gets.
    timeout
        Seconds that a call may take.
    """

    scheme = "ray"
    networked = False  # Ray moves the bytes; reading them all to check them would undo its zero-copy reads

    retries = 0

    def __init__(self, *, address: str, namespace: str, chunk: int, pool: int, timeout: float) -> None:
        attach(address)
        self._session = Session(namespace, timeout)
        self._pool = StagingPool(pool)
        self._memory = RecycledMemory(pool)
        self._chunk = chunk

    def begin(self, key: str, payload_nbytes: int, manifest_nbytes: int, ready: Sequence[Ready] = ()) -> Writer:
        # Whatever fails fails before anything is packed.
        if small(payload_nbytes, self._chunk):
            self._session.registry()
            return RayWriter(self._session, self._pool, key, payload_nbytes, self._chunk)
        self._session.call("begin", key, payload_nbytes + manifest_nbytes, self._session.holder())
        try:
            return RayWriter(self._session, self._pool, key, payload_nbytes, self._chunk)
        except BaseException:
            end(self._session, key)
            raise

    def open(self, key: str) -> Reader:
        return RayReader(self._find(key), partial(self._read, key), self._memory)

    def remove(self, key: str) -> bool:
        removed: bool = self._session.call("remove", key)
        return removed

    def list(self) -> list[str]:
        return list(self.sizes())

    def sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = self._session.call("sizes")
        return sizes

    def note(self, key: str, text: str) -> None:
        if not self._session.call("note", key, text):
            raise gone(key)

    def notes(self, key: str) -> set[str]:
        return set(self._session.call("notes", key))

    def reserve(self, namespace: str, key: str, nbytes: int, quota: int, *, queue: bool) -> bool:
        reserved: bool = self._session.call("reserve", key, nbytes, quota, self._session.holder(), queue)
        return reserved

    def unreserve(self, key: str) -> None:
        self._session.call("unreserve", key)

    def guarantee(self, namespace: str, nbytes: int) -> None:
        self._session.guarantee(namespace, nbytes)

    def unfinished(self) -> dict[str, int]:
        return {}  # a bundle that a keeper began is published or given up, whatever becomes of its producer

    def usage(self) -> Usage:
        held = Held(*self._session.call("usage"))
        pooled = {"": self._pool.nbytes + self._memory.nbytes}
        return usage_of(held.sizes, pooled=pooled, peaks=held.peaks, guaranteed=held.guaranteed, free_nbytes=held.free)

    def close(self) -> None:
        self._session.release()
        self._pool.clear()
        self._memory.clear()

    def _find(self, key: str) -> Found:
        found, *pieces = self._session.call("find", key)
        if found is None:
            raise gone(key)
        if isinstance(found, bytes):
            chunks = [np.frombuffer(piece, np.uint8) for piece in pieces if piece]
            return Found(found, sum(map(len, chunks)), PIECE, chunks)
        return Found(*found)

    def _read(self, key: str, chunks: Sequence[Any], nbytes: int) -> Sequence[Bytes]:
        try:
            found: Sequence[Bytes] = self._session.wait(chunks, f"reading the bundle {key}", nbytes)
        except EngineError:
            self._find(key)  # if it was removed meanwhile, that is what to say
            raise
        return found


def small(nbytes: int, chunk: int) -> bool:
    """Say whether the registry takes a payload itself."""
    return nbytes <= min(SMALL, chunk)


def end(session: Session, key: str) -> None:
    """Give back what was set aside for a bundle."""
    with suppress(EngineError):
        session.registry().end.remote(key)


def gone(key: str) -> BundleNotFoundError:
    """Make the error of a bundle that isn't there."""
    return BundleNotFoundError(f"there is no bundle {key} in Ray: it was removed, or its registry has died")
