"""The actors that own and know the bundles.

One named, detached `Registry` says which bundles there are. One `Keeper` on each node that puts owns their memory, so that
a payload stays on the node where it was made, and outlives its producer. Keepers belong to the registry: Ray ends them with
it, and frees what they own.
"""

import mmap
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rollferry.memory.leases import Bytes

__all__ = ["Found", "Keeper", "Registry", "Staged"]


IN_CALLS = 64 << 10  # Ray carries up to 100 KB so


class Found(NamedTuple):
    """A published bundle: its manifest, and its chunks in order: references, or the bytes of a small one."""

    manifest: bytes
    payload_nbytes: int
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
        self._keepers: dict[str, Any] = {}
        self._given_up: set[str] = set()

    def keeper(self, node: str, dead: str) -> Any:
        """Give the keeper of a node; a new one if the id of the present one is `dead`."""
        if node not in self._keepers or self._keepers[node]._actor_id.hex() == dead:  # noqa: SLF001  # no public way
            place = NodeAffinitySchedulingStrategy(node, soft=False)
            options = {"num_cpus": 0, "max_concurrency": 8, "scheduling_strategy": place}
            self._keepers[node] = ray.remote(Keeper).options(**options).remote(ray.get_runtime_context().current_actor)
        return self._keepers[node]

    def register(self, key: str, found: Found, keeper: Any) -> bool:
        """Publish a bundle; False if its writer has given up. Without a keeper it is small, and has its bytes as chunks."""
        if key in self._given_up:
            return False
        if keeper is None:
            # The producer, whose arguments these are, may die.
            found = found._replace(chunks=[own(chunk) for chunk in found.chunks])
        self._bundles[key] = (found, keeper)
        return True

    def find(self, key: str) -> Found | None:
        """Give a bundle, or None."""
        entry = self._bundles.get(key)
        return None if entry is None else entry[0]

    def remove(self, key: str) -> bool:
        """Forget a bundle, and have it freed; False if it isn't there."""
        entry = self._bundles.pop(key, None)
        if entry is None:
            return False
        if entry[1] is not None:
            entry[1].drop.remote(key)
        return True

    def give_up(self, key: str) -> None:
        """Remove a bundle, also if it is registered only later."""
        self._given_up.add(key)
        self.remove(key)

    def list(self) -> list[str]:
        """Give all keys."""
        return list(self._bundles)

    def usage(self) -> tuple[int, int]:
        """Give the number of bundles, and their bytes."""
        sizes = [len(found.manifest) + found.payload_nbytes for found, _ in self._bundles.values()]
        return len(sizes), sum(sizes)


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
            nbytes = 0
            for chunk in chunks:
                held.append(ray.put(chunk))
                nbytes += len(chunk)
            found = Found(manifest, nbytes, held)
            done = bool(ray.get(self._registry.register.remote(key, found, self._own), timeout=timeout))
            return done
        finally:
            if not done:
                self._registry.give_up.remote(key)
                self.drop(key)


def own(chunk: Bytes) -> Any:
    """Give a copy of a chunk that the registry owns: the bytes if Ray carries them as part of a call, or a reference."""
    return chunk.copy() if len(chunk) <= IN_CALLS else ray.put(chunk)


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
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return np.frombuffer(mmap.mmap(fd, staged.nbytes, flags=flags, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(fd)
