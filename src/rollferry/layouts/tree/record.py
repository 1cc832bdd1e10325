"""Columns of dicts."""

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from rollferry import _native
from rollferry.errors import BatchChangedError, BundleError
from rollferry.layouts.base import Count, Spec, Taken
from rollferry.layouts.rows import Rows, offsets_of

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["Map", "Record", "encode_dicts", "is_plain_key"]

MAX_KEYS = 4096
Shape = tuple[tuple[Any, ...], tuple[type, ...]]  # keys and their types: 1, True and 1.0 are equal and hash alike


class Record(Spec, frozen=True, tag="record"):
    """Dicts of few shapes, as a child column for each key.

    Parameters
    ----------
    keys
        All keys, in order of appearance.
    columns
        Child column of each key: its values in the dicts that have it.
    shapes
        The distinct key sequences of the dicts, as numbers of keys.
    tags
        Member of a uint16 for each dict, the number of its shape; None where there is one shape that is not empty.
    """

    layout: ClassVar[str] = "tree"
    why: ClassVar[str] = "dicts of few shapes; a typed column for each key"

    keys: list[str | int]
    columns: list[int]
    shapes: list[list[Count]]
    tags: int | None = None

    def children(self) -> Iterable[int]:
        return self.columns

    def members(self) -> Iterable[int]:
        return () if self.tags is None else (self.tags,)

    @classmethod
    def encode_same(cls, keys: tuple[str | int, ...], columns: list[list[Any]], encoder: "Encoder") -> "Record":
        """Encode dicts of one shape, given the values of each key."""
        return cls(
            rows=len(columns[0]),
            keys=list(keys),
            columns=[encoder.column(column) for column in columns],
            shapes=[list(range(len(keys)))],
        )

    @classmethod
    def encode(cls, values: list[dict[Any, Any]], tags: list[int], shapes: list[Shape], encoder: "Encoder") -> "Record":
        """Encode dicts of several shapes, or empty ones; `tags` has the number of each one's shape."""
        keys = list(dict.fromkeys(chain.from_iterable(names for names, _ in shapes)))
        number = {key: i for i, key in enumerate(keys)}
        return cls(
            rows=len(values),
            keys=keys,
            columns=[encoder.column([value[key] for value in values if key in value]) for key in keys],
            shapes=[[number[name] for name in names] for names, _ in shapes],
            tags=encoder.array_member(np.array(tags, np.uint16)),
        )

    def select(self, rows: Rows, taken: Taken) -> "Record":
        if self.tags is None:
            for number in self.columns:
                taken.column(number, rows)
        else:
            tags = taken.read(self.tags, np.dtype(np.uint16), rows.up_to_last())
            if tags.max(initial=0) >= max(len(self.shapes), 1):
                raise BundleError("the tags of a record don't fit its shapes")
            shapes_with: list[list[int]] = [[] for _ in self.columns]
            for shape_number, shape in enumerate(self.shapes):
                for key in shape:
                    shapes_with[key].append(shape_number)
            for with_key, number in zip(shapes_with, self.columns, strict=True):
                has_key = np.zeros(len(self.shapes), bool)
                has_key[with_key] = True
                taken.column(number, rows.among(has_key[tags]))
            taken.store(self.tags, tags[rows.indices()])
        return msgspec.structs.replace(self, rows=rows.count)

    def decode(self, source: "Decoder") -> list[Any]:
        children = [source.column(number) for number in self.columns]
        if len(children) != len(self.keys) or len(set(self.keys)) != len(self.keys):
            raise BundleError("the columns of a record don't fit its keys")
        if self.tags is None:
            if self.shapes != [list(range(len(self.keys)))] or not children:
                raise BundleError("a record lacks its tags")
            self._check_counts(children, [self.rows] * len(children))
            return _native.dict_rows(tuple(self.keys), children)
        tags = source.array(self.tags, np.dtype(np.uint16), self.rows)
        counts = np.bincount(tags, minlength=len(self.shapes))
        if len(counts) > len(self.shapes):
            raise BundleError("the tags of a record don't fit its shapes")
        needed = [0] * len(self.keys)
        for shape, count in zip(self.shapes, counts.tolist(), strict=True):
            for number in shape:
                needed[number] += count
        self._check_counts(children, needed)
        following = [iter(child).__next__ for child in children]
        shapes = [[(self.keys[number], following[number]) for number in shape] for shape in self.shapes]
        return [{key: value() for key, value in shapes[tag]} for tag in tags.tolist()]

    def _check_counts(self, children: list[list[Any]], needed: list[int]) -> None:
        if [len(child) for child in children] != needed:
            raise BundleError("the columns of a record have other lengths than its tags say")


class Map(Spec, frozen=True, tag="map"):
    """Dicts of many shapes, or with keys of any type, as one column of all keys and one of all values.

    Parameters
    ----------
    offsets
        int64 member, `rows` + 1 offsets into keys and values.
    keys, values
        Child columns.
    """

    layout: ClassVar[str] = "tree"
    why: ClassVar[str] = "dicts of many shapes or unusual keys; a typed column of all keys and one of all values"

    offsets: int
    keys: int
    values: int

    def children(self) -> Iterable[int]:
        return (self.keys, self.values)

    def members(self) -> Iterable[int]:
        return (self.offsets,)

    @classmethod
    def encode(cls, values: list[dict[Any, Any]], encoder: "Encoder") -> "Map":
        """Encode any dicts."""
        offsets = offsets_of([len(value) for value in values])
        keys = list(chain.from_iterable(values))
        items = [item for value in values for item in value.values()]
        if not len(keys) == len(items) == offsets[-1]:
            raise BatchChangedError("a dict was changed while it was being put")
        return cls(
            rows=len(values),
            offsets=encoder.array_member(offsets),
            keys=encoder.column(keys),
            values=encoder.column(items),
        )

    def select(self, rows: Rows, taken: Taken) -> "Map":
        items = taken.offsets(self.offsets, rows)
        taken.column(self.keys, items)
        taken.column(self.values, items)
        return msgspec.structs.replace(self, rows=rows.count)

    def decode(self, source: "Decoder") -> list[Any]:
        offsets = source.array(self.offsets, np.dtype(np.int64), self.rows + 1)
        keys = _native.group_rows(source.column(self.keys), offsets, list)
        values = source.rows(self.values, offsets, list)
        dicts = [dict(zip(k, v, strict=True)) for k, v in zip(keys, values, strict=True)]
        if [len(d) for d in dicts] != [len(k) for k in keys]:
            raise BundleError("a dict has a key twice")
        return dicts


def is_plain_key(key: object) -> bool:
    """Whether a manifest can hold the key: valid text, or an int of 64 bits."""
    if type(key) is int:
        return -(1 << 63) <= key < 1 << 63
    if type(key) is not str:
        return False
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode_dicts(values: list[dict[Any, Any]], encoder: "Encoder") -> Spec:
    """Encode dicts as a record where few shapes cover them, else as a map."""
    first = tuple(values[0])
    if first and len(first) <= MAX_KEYS and all(map(is_plain_key, first)):
        columns = _native.dict_columns(values, first)
        if columns is not None:
            return Record.encode_same(first, columns, encoder)
    limit = min(8 + len(values) // 16, MAX_KEYS)
    numbers: dict[Shape, int] = {}
    tags = []
    for value in values:
        names = tuple(value)
        tags.append(numbers.setdefault((names, tuple(map(type, names))), len(numbers)))
        if len(numbers) > limit:
            return Map.encode(values, encoder)
    shapes = list(numbers)
    keys = {(name, kind) for names, kinds in shapes for name, kind in zip(names, kinds, strict=True)}
    if len(keys) > MAX_KEYS or not all(is_plain_key(name) for name, _ in keys):
        return Map.encode(values, encoder)
    return Record.encode(values, tags, shapes, encoder)
