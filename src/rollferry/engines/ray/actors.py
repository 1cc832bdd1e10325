"""The actors that own and know the bundles.

One named, detached `Registry` says which bundles there are. One `Keeper` on each node that puts owns their memory, so that
a payload stays on the node where it was made, and outlives its producer. Keepers belong to the registry: Ray ends them with
it, and frees what they own.
"""

import mmap
import os
import secrets
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rollferry.engines.ray.books import Books, Held
from rollferry.memory.leases import Bytes

__all__ = ["PIECE", "SMALL", "Found", "Keeper", "Registry", "Staged"]

# Ray carries bytes of less than 100 KiB as part of a call or its answer, which saves the ways to the object store and back.
PIECE = 96 << 10
PIECES = 6
SMALL = PIECE * PIECES
HELD = 256 << 20  # more than that the registry gives to the object store, which can spill
COUNT_SECONDS = 5  # between two looks at the size of the object stores
ANSWER_SECONDS = 0.05  # that a process, or Ray for it, may take to say that it lives


class Found(NamedTuple):
    """A published bundle: its manifest, and its chunks in order: references, or the pieces of a small one that is held.

    Each chunk but the last has `chunk_nbytes` bytes.
    """

    manifest: bytes
    payload_nbytes: int
    chunk_nbytes: int
    chunks: list[Any]


class Staged(NamedTuple):
    """Where a producer has staged a payload: an anonymous file that only its process has open."""

    pid: int
    fd: int
    identity: tuple[int, int]
    nbytes: int


class Entry(NamedTuple):
    """What the registry knows of a bundle: `keeper` owns it, or None; `trial` put it."""

    found: Found
    keeper: Any
    trial: str


class Registry:
    """Which bundles there are.

    A put that fails may be tried again under the same key; each trial has a name, so that what comes late of an earlier one is
    told apart.
    """

    def __init__(self) -> None:
        self._books = Books(Capacity().nbytes, dead)
        self._bundles: dict[str, Entry] = {}
        self._held = 0  # bytes of the pieces
        self._keepers: dict[str, tuple[str, Any]] = {}
        self._given_up: set[str] = set()
        self._notes: dict[str, list[str]] = {}

    def keeper(self, node: str, dead: str) -> tuple[str, Any]:
        """Give the name and the handle of the keeper of a node; a new one if the present one is `dead`."""
        if node not in self._keepers or self._keepers[node][0] == dead:
            place = NodeAffinitySchedulingStrategy(node, soft=False)
            options = {"num_cpus": 0, "max_concurrency": 8, "scheduling_strategy": place}
            keeper = ray.remote(Keeper).options(**options).remote(ray.get_runtime_context().current_actor)
            self._keepers[node] = (secrets.token_hex(8), keeper)
        return self._keepers[node]

    def begin(self, key: str, nbytes: int, holder: bytes) -> None:
        """Set the bytes of a bundle aside; see `Books.begin`."""
        self._books.begin(key, nbytes, holder)

    def end(self, key: str) -> None:
        """Give back what was set aside for a bundle."""
        self._books.end(key)

    def add(self, key: str, trial: str, manifest: bytes, *pieces: bytes) -> bool:
        """Publish a small bundle; False if its writer has given up. Raises EngineFullError."""
        if trial in self._given_up:
            return False
        nbytes = sum(map(len, pieces))
        self._books.publish(key, len(manifest) + nbytes)
        chunk_nbytes, chunks = PIECE, list[Any](pieces)
        if self._held + nbytes <= HELD:
            self._held += nbytes
        else:
            chunk_nbytes, chunks = nbytes, [ray.put(np.frombuffer(b"".join(pieces), np.uint8))]
        self._bundles[key] = Entry(Found(manifest, nbytes, chunk_nbytes, chunks), None, trial)
        return True

    def register(self, key: str, trial: str, found: Found, keeper: Any) -> bool:
        """Publish a bundle that a keeper owns; False if its writer has given up. Raises EngineFullError."""
        if trial in self._given_up:
            return False
        self._books.publish(key, len(found.manifest) + found.payload_nbytes)
        self._bundles[key] = Entry(found, keeper, trial)
        return True

    @ray.method(num_returns=1 + PIECES)  # type: ignore[untyped-decorator]  # mypy does not look into Ray
    def find(self, key: str) -> tuple[Any, ...]:
        """Give a bundle, or None; of one that is held, the manifest and the pieces, as results of their own."""
        found = self._bundles[key].found if key in self._bundles else None
        if found is None or not held(found):
            return (found, *[b""] * PIECES)
        return (found.manifest, *found.chunks, *[b""] * (PIECES - len(found.chunks)))

    def note(self, key: str, text: str) -> bool:
        """Write something down beside a bundle; False if it isn't there."""
        if key not in self._bundles:
            return False
        self._notes.setdefault(key, []).append(text)
        return True

    def notes(self, key: str) -> set[str]:
        """Give what was written down."""
        return set(self._notes.get(key, ()))

    def reserve(self, key: str, nbytes: int, quota: int, holder: bytes, queue: bool) -> bool:
        """Set bytes aside for a bundle if its namespace then stays within its quota; see `Books.reserve`."""
        return self._books.reserve(key, nbytes, quota, holder, queue=queue)

    def unreserve(self, key: str) -> None:
        """End what was set aside, and the waiting for it."""
        self._books.unreserve(key)

    def guarantee(self, name: str, namespace: str, nbytes: int, holder: bytes) -> None:
        """Keep bytes for a namespace, under a name; see `Books.guarantee`."""
        self._books.guarantee(name, namespace, nbytes, holder)

    def release(self, name: str) -> None:
        """End a guarantee."""
        self._books.release(name)

    def remove(self, key: str) -> bool:
        """Forget a bundle, and have it freed; False if it isn't there."""
        self._notes.pop(key, None)
        entry = self._bundles.pop(key, None)
        if entry is None:
            return False
        self._books.remove(key)
        if entry.keeper is not None:
            entry.keeper.drop.remote(key, entry.trial)
        elif held(entry.found):
            self._held -= entry.found.payload_nbytes
        return True

    def give_up(self, key: str, trial: str) -> None:
        """Remove what a trial has put, also if that comes only later."""
        self._given_up.add(trial)
        self._books.end(key)
        if key in self._bundles and self._bundles[key].trial == trial:
            self.remove(key)

    def sizes(self) -> dict[str, int]:
        """Give all keys, and the bytes of each."""
        return self._books.sizes()

    def usage(self) -> Held:
        """Say what there is."""
        return self._books.held()


class Keeper:
    """Owns the chunks of the bundles that were put on its node.

    It keeps the references itself: those that a producer passes on die with the producer.
    """

    def __init__(self, registry: Any) -> None:
        self._registry = registry
        self._own = ray.get_runtime_context().current_actor
        self._chunks: dict[tuple[str, str], list[Any]] = {}

    def store(self, key: str, trial: str, manifest: bytes, staged: Staged, chunk: int, timeout: float) -> bool | None:
        """Copy a staged payload into the object store, and publish it; None if the staged memory can't be reached."""
        memory = reach(staged)
        if memory is None:
            return None
        pieces = (memory[start : start + chunk] for start in range(0, len(memory), chunk))
        return self._publish(key, trial, manifest, pieces, timeout)

    def adopt(self, key: str, trial: str, manifest: bytes, chunks: list[Any], timeout: float) -> bool:
        """Copy chunks that a producer has put in the object store, and publish them."""
        return self._publish(key, trial, manifest, (ray.get(chunk, timeout=timeout) for chunk in chunks), timeout)

    def drop(self, key: str, trial: str) -> None:
        """Free what a trial has put."""
        self._chunks.pop((key, trial), None)

    def _publish(self, key: str, trial: str, manifest: bytes, chunks: Iterable[Bytes], timeout: float) -> bool:
        held = self._chunks[key, trial] = []
        done = False
        try:
            sizes = []
            for chunk in chunks:
                held.append(ray.put(chunk))
                sizes.append(len(chunk))
            found = Found(manifest, sum(sizes), sizes[0], held)
            done = bool(ray.get(self._registry.register.remote(key, trial, found, self._own), timeout=timeout))
            return done
        finally:
            if not done:
                self._registry.give_up.remote(key, trial)
                self.drop(key, trial)


class Capacity:
    """The object stores of the cluster."""

    def __init__(self) -> None:
        self._counted: tuple[float, int] | None = None  # when, and what

    def nbytes(self) -> int:
        """Give the bytes of all of them, as of a few seconds ago at most."""
        now = time.monotonic()
        if self._counted is None or now > self._counted[0] + COUNT_SECONDS:
            self._counted = now, int(ray.cluster_resources().get("object_store_memory", 0))
        return self._counted[1]


def dead(holder: bytes) -> bool:
    """Say whether a process is dead: then an object that it owns is lost; see `Session.holder`."""
    try:
        ray.get(ray.cloudpickle.loads(holder), timeout=ANSWER_SECONDS)
    except exceptions.ObjectLostError:
        return True
    except exceptions.GetTimeoutError:
        pass  # slow, or Ray isn't sure yet
    return False


def held(found: Found) -> bool:
    """Say whether the registry itself holds the payload."""
    return all(isinstance(chunk, bytes) for chunk in found.chunks)


def reach(staged: Staged) -> Bytes | None:
    """Map what another process of this node has staged."""
    if staged.nbytes == 0:
        return np.empty(0, np.uint8)
    try:
        fd = os.open(f"/proc/{staged.pid}/fd/{staged.fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None  # another container, or user
    try:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != staged.identity or status.st_size < staged.nbytes:
            return None
        # Page faults are cheaper than MAP_POPULATE: Ray copies on several threads, and a fault maps the pages around it too.
        return np.frombuffer(mmap.mmap(fd, staged.nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(fd)
