"""Where the samples of partitions are: which rows of which bundles have the fields of a key."""

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

from rollferry import TransferRef
from rollferry.errors import SelectionError

__all__ = ["ActorCatalog", "Catalog", "CatalogLike"]

Refs = list[str]  # classes here have a method named list
Reads = list[dict[str, Any]]
Shares = tuple[tuple[int, tuple[str, ...]], ...]
Tags = dict[str, dict[str, dict[str, Any]]]

JSON_VERSION = 1


@dataclass
class Sample:
    """What is known of one key.

    Parameters
    ----------
    tags
        What was said about it.
    places
        Bundle and row of its fields, the newest last. Where several bundles have a field, the newest counts.
    """

    tags: dict[str, Any] = field(default_factory=dict)
    places: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class Bundle:
    """A bundle that samples are in.

    Parameters
    ----------
    ref
        Reference to it, as JSON.
    fields
        Names of its fields.
    samples
        Number of keys that need it.
    """

    ref: str
    fields: list[str]
    samples: int = 0


class CatalogLike(Protocol):
    """A `Catalog`, or something that asks one. What goes in and out is JSON-safe, if tags are."""

    def update(
        self,
        partition: str,
        keys: Sequence[str],
        *,
        tags: Sequence[Mapping[str, Any]] | None = None,
        ref: str | None = None,
        fields: Sequence[str] = (),
    ) -> dict[str, Any]:
        """See `Catalog.update`."""

    def resolve(self, partition: str, keys: Sequence[str], fields: Sequence[str] | None = None) -> Reads:
        """See `Catalog.resolve`."""

    def list(self, partition: str | None = None) -> Tags:
        """See `Catalog.list`."""

    def remove(self, partition: str, keys: Sequence[str]) -> Refs:
        """See `Catalog.remove`."""


class Catalog:
    """Index of samples by partition and key. It lives in one process, the controller's, and holds no payload.

    Thread-safe, picklable, and to be kept as JSON. It doesn't touch bundles: it tells its caller which ones nobody needs any
    more, to remove them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: dict[str, dict[str, Sample]] = {}
        self._bundles: dict[str, Bundle] = {}

    def update(
        self,
        partition: str,
        keys: Sequence[str],
        *,
        tags: Sequence[Mapping[str, Any]] | None = None,
        ref: str | None = None,
        fields: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Note what was put or said for keys, new ones or not.

        Parameters
        ----------
        partition, keys
            Where. Keys differ.
        tags
            For each key what to add to its tags.
        ref
            Reference, as JSON, to a bundle whose row i is of ``keys[i]``.
        fields
            Names of its fields. They replace those that the keys have.

        Returns
        -------
        dict
            ``tags``: all tags of each key; ``fields``: names of the fields that each key has; ``unused``: references of bundles
            that nobody needs any more.

        Raises
        ------
        ValueError
            There are no keys, or repeated ones, or not as many as tags or rows; or the bundle is there already. Nothing was
            changed.
        """
        bundle = None if ref is None else TransferRef.from_json(ref)
        if not keys or len(set(keys)) != len(keys):
            raise ValueError("there are no keys" if not keys else "a key occurs twice")
        if tags is not None and len(tags) != len(keys):
            raise ValueError(f"there are {len(tags)} tags for {len(keys)} keys")
        if bundle is not None and bundle.rows != len(keys):
            raise ValueError(f"the bundle has {bundle.rows} rows for {len(keys)} keys")
        with self._lock:
            if bundle is not None and bundle.id in self._bundles:
                raise ValueError(f"the catalog has the bundle {bundle.key} already")
            samples = self._samples.setdefault(partition, {})
            touched = [samples.setdefault(key, Sample()) for key in keys]
            for sample, tag in zip(touched, tags or (), strict=False):
                sample.tags.update(tag)
            unused = []
            if bundle is not None and ref is not None:
                self._bundles[bundle.id] = Bundle(ref, list(fields), len(keys))
                for row, sample in enumerate(touched):
                    sample.places.append((bundle.id, row))
                    unused += self._drop_replaced(sample)
            first, *others = self._fields_of_each(touched)
            common = [name for name in first if all(name in there for there in others)]
            return {"tags": [dict(sample.tags) for sample in touched], "fields": common, "unused": unused}

    def resolve(self, partition: str, keys: Sequence[str], fields: Sequence[str] | None = None) -> Reads:
        """Say where fields of keys are.

        Parameters
        ----------
        partition, keys
            Which samples; a key may be repeated.
        fields
            Names of fields; by default all that any of the keys has.

        Returns
        -------
        list of dict
            What to read: of the bundle ``ref`` the fields ``fields`` of the rows ``rows``, which are those of the keys numbered
            ``places``.

        Raises
        ------
        SelectionError
            There is no such key, or one lacks a field.
        """
        with self._lock:
            there = self._samples.get(partition, {})
            missing = [key for key in keys if key not in there]
            if missing:
                raise SelectionError(f"partition {partition!r} has no key {missing[0]!r}")
            found = [there[key] for key in keys]
            if fields is None:
                fields = list(dict.fromkeys(name for names in self._fields_of_each(found) for name in names))
            shares: dict[tuple[str, ...], Shares] = {}
            reads: dict[tuple[str, tuple[str, ...]], tuple[list[int], list[int]]] = {}
            for place, (key, sample) in enumerate(zip(keys, found, strict=True)):
                bundles = tuple(bundle for bundle, _ in sample.places)
                if bundles not in shares:
                    lacking = set(fields).difference(self._fields_of(bundles))
                    if lacking:
                        described = ", ".join(sorted(lacking))
                        raise SelectionError(f"key {key!r} of partition {partition!r} doesn't have {described} yet")
                    shares[bundles] = self._shares(bundles, fields)
                for number, share in shares[bundles]:
                    bundle, row = sample.places[number]
                    rows, places = reads.setdefault((bundle, share), ([], []))
                    rows.append(row)
                    places.append(place)
            return [
                {"ref": self._bundles[bundle].ref, "fields": list(names), "rows": rows, "places": places}
                for (bundle, names), (rows, places) in reads.items()
            ]

    def list(self, partition: str | None = None) -> Tags:
        """Give the tags of the keys of one partition, or of all: partition -> key -> tags."""
        with self._lock:
            names = list(self._samples) if partition is None else [partition]
            return {
                name: {key: dict(sample.tags) for key, sample in self._samples.get(name, {}).items()} for name in names
            }

    def remove(self, partition: str, keys: Sequence[str]) -> Refs:
        """Forget keys, those that aren't there too; give references of the bundles that nobody needs any more."""
        with self._lock:
            there = self._samples.get(partition, {})
            unused: list[str] = []
            for key in keys:
                sample = there.pop(key, None)
                for bundle, _ in () if sample is None else sample.places:
                    unused += self._release(bundle)
            if not there:
                self._samples.pop(partition, None)
            return unused

    def refs(self) -> Refs:
        """Give references of all bundles that samples are in, such as to remove them all."""
        with self._lock:
            return [bundle.ref for bundle in self._bundles.values()]

    def to_json(self) -> str:
        """Give all of it as JSON. Raises TypeError where a tag is not JSON-safe."""
        with self._lock:
            samples = {
                partition: {key: asdict(sample) for key, sample in of_partition.items()}
                for partition, of_partition in self._samples.items()
            }
            bundles = {name: asdict(bundle) for name, bundle in self._bundles.items()}
            return json.dumps({"version": JSON_VERSION, "samples": samples, "bundles": bundles})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` gave. Raises ValueError for another version."""
        read = json.loads(text)
        if read["version"] != JSON_VERSION:
            raise ValueError(f"the catalog has version {read['version']}, this rollferry reads version {JSON_VERSION}")
        catalog = cls()
        catalog._bundles = {name: Bundle(**bundle) for name, bundle in read["bundles"].items()}
        catalog._samples = {
            partition: {
                key: Sample(sample["tags"], [(bundle, row) for bundle, row in sample["places"]])
                for key, sample in samples.items()
            }
            for partition, samples in read["samples"].items()
        }
        return catalog

    def __getstate__(self) -> dict[str, Any]:
        return {"json": self.to_json()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(type(self).from_json(state["json"]).__dict__)

    def _fields_of_each(self, samples: Iterable[Sample]) -> tuple[dict[str, None], ...]:
        """Give the names of the fields that samples have, once for all that have theirs from the same bundles."""
        different = dict.fromkeys(tuple(bundle for bundle, _ in sample.places) for sample in samples)
        return tuple(self._fields_of(bundles) for bundles in different)

    def _fields_of(self, bundles: Iterable[str]) -> dict[str, None]:
        return dict.fromkeys(name for bundle in bundles for name in self._bundles[bundle].fields)

    def _shares(self, bundles: Sequence[str], wanted: Iterable[str]) -> Shares:
        """Say which fields to take from which of a sample's places."""
        newest = {name: number for number, bundle in enumerate(bundles) for name in self._bundles[bundle].fields}
        taken: dict[int, list[str]] = {}
        for name in wanted:
            taken.setdefault(newest[name], []).append(name)
        return tuple((number, tuple(names)) for number, names in taken.items())

    def _drop_replaced(self, sample: Sample) -> Refs:
        """Forget places all of whose fields have newer ones."""
        if len(sample.places) < 2:
            return []
        newer: set[str] = set()
        kept: list[tuple[str, int]] = []
        unused: list[str] = []
        for bundle, row in reversed(sample.places):
            names = self._bundles[bundle].fields
            if newer.issuperset(names):
                unused += self._release(bundle)
            else:
                kept.insert(0, (bundle, row))
                newer.update(names)
        sample.places = kept
        return unused

    def _release(self, name: str) -> Refs:
        bundle = self._bundles[name]
        bundle.samples -= 1
        return [] if bundle.samples else [self._bundles.pop(name).ref]


class ActorCatalog:
    """A `Catalog` in a Ray actor, for processes of a Ray cluster that share one. Thread-safe; goes to other processes.

    Parameters
    ----------
    actor
        Handle of an actor of the class Catalog.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    @classmethod
    def create(cls, name: str = "rollferry_catalog", namespace: str | None = None) -> Self:
        """Start the actor, in the controller; it lasts as long as the result does. Raises ValueError if there is one."""
        import ray  # heavy

        actor = ray.remote(Catalog).options(name=name, namespace=namespace, num_cpus=0).remote()
        return cls(actor)

    @classmethod
    def find(cls, name: str = "rollferry_catalog", namespace: str | None = None) -> Self:
        """Look the actor up, in any process of the cluster. Raises ValueError where there is none."""
        import ray  # likewise

        return cls(ray.get_actor(name, namespace=namespace))

    def update(self, partition: str, keys: Sequence[str], **given: Any) -> dict[str, Any]:
        """Do as `Catalog.update`."""
        found: dict[str, Any] = self._ask("update", partition, keys, **given)
        return found

    def resolve(self, partition: str, keys: Sequence[str], fields: Sequence[str] | None = None) -> Reads:
        """Do as `Catalog.resolve`."""
        found: Reads = self._ask("resolve", partition, keys, fields)
        return found

    def list(self, partition: str | None = None) -> Tags:
        """Do as `Catalog.list`."""
        found: Tags = self._ask("list", partition)
        return found

    def remove(self, partition: str, keys: Sequence[str]) -> Refs:
        """Do as `Catalog.remove`."""
        found: Refs = self._ask("remove", partition, keys)
        return found

    def refs(self) -> Refs:
        """Do as `Catalog.refs`."""
        found: Refs = self._ask("refs")
        return found

    def _ask(self, method: str, *given: Any, **named: Any) -> Any:
        import ray  # likewise

        try:
            return ray.get(getattr(self._actor, method).remote(*given, **named))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
