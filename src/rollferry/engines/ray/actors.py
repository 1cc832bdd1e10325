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
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rollferry.memory.leases import Bytes

__all__ = ["PIECE", "SMALL", "Found", "Keeper", "Registry", "Staged"]

# Ray carries bytes of less than 100 KiB as part of a call or its answer, which saves the ways to the object store and back.
PIECE = 96 << 10
PIECES = 6
SMALL = PIECE * PIECES
WAITING_SECONDS = 5  # that a place in the queue is kept for a producer that doesn't try again
RESERVED_SECONDS = 600  # that bytes stay set aside for a producer that never comes back
HELD = 256 << 20  # more than that the registry gives to the object store, which can spill


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


class Registry:
    """Which bundles there are."""

    def __init__(self) -> None:
        self._bundles: dict[str, tuple[Found, Any]] = {}
        self._held = 0  # bytes of the pieces
        self._keepers: dict[str, tuple[str, Any]] = {}
        self._given_up: set[str] = set()
        self._notes: dict[str, list[str]] = {}
        self._reserved: dict[str, tuple[int, float]] = {}  # bytes, and when they are free again
        self._waiting: dict[str, float] = {}  # in the order of their coming, and when they are given up

    def keeper(self, node: str, dead: str) -> tuple[str, Any]:
        """Give the name and the handle of the keeper of a node; a new one if the present one is `dead`."""
        if node not in self._keepers or self._keepers[node][0] == dead:
            place = NodeAffinitySchedulingStrategy(node, soft=False)
            options = {"num_cpus": 0, "max_concurrency": 8, "scheduling_strategy": place}
            keeper = ray.remote(Keeper).options(**options).remote(ray.get_runtime_context().current_actor)
            self._keepers[node] = (secrets.token_hex(8), keeper)
        return self._keepers[node]

    def add(self, key: str, manifest: bytes, *pieces: bytes) -> bool:
        """Publish a small bundle; False if its writer has given up."""
        if key in self._given_up:
            return False
        nbytes = sum(map(len, pieces))
        chunk_nbytes, chunks = PIECE, list[Any](pieces)
        if self._held + nbytes <= HELD:
            self._held += nbytes
        else:
            chunk_nbytes, chunks = nbytes, [ray.put(np.frombuffer(b"".join(pieces), np.uint8))]
        self._bundles[key] = (Found(manifest, nbytes, chunk_nbytes, chunks), None)
        return True

    def register(self, key: str, found: Found, keeper: Any) -> bool:
        """Publish a bundle that a keeper owns; False if its writer has given up."""
        if key in self._given_up:
            return False
        self._bundles[key] = (found, keeper)
        return True

    @ray.method(num_returns=1 + PIECES)  # type: ignore[untyped-decorator]  # mypy does not look into Ray
    def find(self, key: str) -> tuple[Any, ...]:
        """Give a bundle, or None; of one that is held, the manifest and the pieces, as results of their own."""
        found, _ = self._bundles.get(key, (None, None))
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

    def reserve(self, namespace: str, key: str, nbytes: int, quota: int, queue: bool) -> bool:
        """Set bytes aside for a bundle if its namespace then stays within its quota."""
        now = time.monotonic()
        start = f"{namespace}."
        self._reserved = {name: held for name, held in self._reserved.items() if held[1] > now}
        self._waiting = {name: until for name, until in self._waiting.items() if until > now or name == key}
        if queue:
            self._waiting[key] = now + WAITING_SECONDS  # one that waits already keeps its place
        first = next((name for name in self._waiting if name.startswith(start)), key)
        taken = {name: held[0] for name, held in self._reserved.items()} | self.sizes()
        if first != key or sum(size for name, size in taken.items() if name.startswith(start)) + nbytes > quota:
            return False
        self._waiting.pop(key, None)
        self._reserved[key] = nbytes, now + RESERVED_SECONDS
        return True

    def unreserve(self, key: str) -> None:
        """End what was set aside, and the waiting for it."""
        self._reserved.pop(key, None)
        self._waiting.pop(key, None)

    def remove(self, key: str) -> bool:
        """Forget a bundle, and have it freed; False if it isn't there."""
        self._notes.pop(key, None)
        entry = self._bundles.pop(key, None)
        if entry is None:
            return False
        found, keeper = entry
        if keeper is not None:
            keeper.drop.remote(key)
        elif held(found):
            self._held -= found.payload_nbytes
        return True

    def give_up(self, key: str) -> None:
        """Remove a bundle, also if it is registered only later."""
        self._given_up.add(key)
        self.remove(key)

    def sizes(self) -> dict[str, int]:
        """Give all keys, and the bytes of each."""
        return {key: len(found.manifest) + found.payload_nbytes for key, (found, _) in self._bundles.items()}


class Keeper:
    """Owns the chunks of the bundles that were put on its node.

    It keeps the references itself: those that a producer passes on die with the producer.
    """

    def __init__(self, registry: Any) -> None:
        self._registry = registry
        self._own = ray.get_runtime_context().current_actor
        self._chunks: dict[str, list[Any]] = {}

    def store(self, key: str, manifest: bytes, staged: Staged, chunk: int, timeout: float) -> bool | None:
        """Copy a staged payload into the object store, and publish it; None if the staged memory can't be reached."""
        memory = reach(staged)
        if memory is None:
            return None
        pieces = (memory[start : start + chunk] for start in range(0, len(memory), chunk))
        return self._publish(key, manifest, pieces, timeout)

    def adopt(self, key: str, manifest: bytes, chunks: list[Any], timeout: float) -> bool:
        """Copy chunks that a producer has put in the object store, and publish them."""
        return self._publish(key, manifest, (ray.get(chunk, timeout=timeout) for chunk in chunks), timeout)

    def drop(self, key: str) -> None:
        """Free a bundle."""
        self._chunks.pop(key, None)

    def _publish(self, key: str, manifest: bytes, chunks: Iterable[Bytes], timeout: float) -> bool:
        held = self._chunks[key] = []
        done = False
        try:
            sizes = []
            for chunk in chunks:
                held.append(ray.put(chunk))
                sizes.append(len(chunk))
            found = Found(manifest, sum(sizes), sizes[0], held)
            done = bool(ray.get(self._registry.register.remote(key, found, self._own), timeout=timeout))
            return done
        finally:
            if not done:
                self._registry.give_up.remote(key)
                self.drop(key)


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
