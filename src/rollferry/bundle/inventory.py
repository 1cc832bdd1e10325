"""What an engine holds: by namespace, and bundle by bundle."""

from collections.abc import Iterable

import msgspec

from rollferry.bundle.lifetime import age_of, state_of
from rollferry.bundle.manifest import BatchType, Lifetime, Manifest
from rollferry.bundle.stages import open_manifest
from rollferry.engines.accounts import namespace_of
from rollferry.engines.base import Engine, Usage
from rollferry.errors import BundleNotFoundError, RollferryError

__all__ = ["BundleInfo", "Inventory", "info_of"]


class BundleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a bundle by its manifest, and by the notes beside it.

    Parameters
    ----------
    key, namespace, id
        Its name in the engine, and what that consists of.
    nbytes
        Bytes of memory that it takes.
    type
        Kind of batch; None where the manifest can't be read.
    rows
        Rows of the batch, where its row-aligned fields agree.
    fields
        Names of the fields, with their section in a ``dataproto``; of several stages, those of this one.
    base
        Key of the next older stage.
    age
        Seconds since it was put; None where that isn't known.
    left
        Seconds until its time is over; None where it has none.
    readers
        How many readers it is for, where the producer said.
    done
        Names of the readers that are done.
    owner_alive
        Whether its producer lives; None where that can't be known from here.
    damage
        What is wrong with it, where the manifest can't be read.
    """

    key: str
    namespace: str
    id: str
    nbytes: int
    type: BatchType | None = None
    rows: int | None = None
    fields: list[str] = []
    base: str | None = None
    age: float | None = None
    left: float | None = None
    readers: int | None = None
    done: list[str] = []
    owner_alive: bool | None = None
    damage: str | None = None


class Inventory:
    """Looks at what an engine holds, and remembers what can't change. Thread-safe.

    Parameters
    ----------
    engine
        Where.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lifetimes: dict[str, Lifetime] = {}  # of the bundles last seen

    def lifetimes(self, keys: Iterable[str]) -> dict[str, Lifetime | None]:
        """Give the lifetimes of all bundles, of which these are the keys; None where one can't be read, or has none."""
        known = self._lifetimes
        found = {key: known.get(key) or self._lifetime(key) for key in keys}
        self._lifetimes = {key: lifetime for key, lifetime in found.items() if lifetime is not None}
        return found

    def usage(self, *, ages: bool) -> Usage:
        """Say what the engine holds, in all and by namespace; ages take a look into every manifest not seen before."""
        usage = self._engine.usage()
        if not ages:
            return usage
        oldest: dict[str, float] = {}
        for key, lifetime in self.lifetimes(self._engine.list()).items():
            if lifetime is not None:
                namespace = namespace_of(key)
                oldest[namespace] = max(oldest.get(namespace, 0.0), age_of(lifetime))
        namespaces = {
            name: msgspec.structs.replace(held, oldest_age=oldest.get(name)) for name, held in usage.namespaces.items()
        }
        return msgspec.structs.replace(usage, namespaces=namespaces)

    def bundles(self, namespace: str | None) -> list[BundleInfo]:
        """Describe all bundles, or those of one namespace, the newest last; one that is removed meanwhile is left out."""
        found: list[tuple[float, BundleInfo]] = []
        for key, nbytes in self._engine.sizes().items():
            if namespace not in (None, namespace_of(key)):
                continue
            created = 0.0
            try:
                manifest = open_manifest(self._engine, key)[0]
                created = 0.0 if manifest.lifetime is None else manifest.lifetime.created
                info = info_of(key, nbytes, manifest, self._engine.notes(key))
            except BundleNotFoundError:
                continue
            except RollferryError as error:
                info = damaged(key, nbytes, error)
            found.append((created, info))
        return [info for _, info in sorted(found, key=lambda one: one[0])]

    def _lifetime(self, key: str) -> Lifetime | None:
        try:
            return open_manifest(self._engine, key)[0].lifetime
        except RollferryError:  # damaged or gone: nothing says how old it is, or that its time is over
            return None


def info_of(key: str, nbytes: int, manifest: Manifest, notes: set[str]) -> BundleInfo:
    """Describe a bundle."""
    namespace, _, own = key.rpartition(".")
    lifetime = manifest.lifetime
    state = None if lifetime is None else state_of(lifetime, notes)
    return BundleInfo(
        key=key,
        namespace=namespace,
        id=own,
        nbytes=nbytes,
        type=manifest.type,
        rows=manifest.rows,
        fields=[f"{field.section}.{field.key}" if field.section else str(field.key) for field in manifest.fields],
        base=None if manifest.base is None else manifest.base.key,
        age=None if state is None else state.age,
        left=None if state is None else state.left,
        readers=None if lifetime is None else lifetime.readers,
        done=[] if state is None else sorted(state.done),
        owner_alive=None if state is None else state.owner_alive,
    )


def damaged(key: str, nbytes: int, error: RollferryError) -> BundleInfo:
    """Describe a bundle whose manifest can't be read."""
    namespace, _, own = key.rpartition(".")
    return BundleInfo(key=key, namespace=namespace, id=own, nbytes=nbytes, damage=str(error))
