"""Request: what a get asks of a bundle."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args

import numpy as np

from rollferry.bundle.checksums import Verify
from rollferry.bundle.manifest import BatchType, Section
from rollferry.errors import SelectionError
from rollferry.layouts.rows import Rows

__all__ = ["FieldsLike", "Place", "Request", "RowsLike", "chosen", "resolve_rows"]

RowsLike = slice | Sequence[int] | Any  # ndarrays and tensors of ints or bools, too
FieldsLike = Iterable[Any] | Mapping[str, Iterable[Any] | None]


class Place(NamedTuple):
    """Where a field is in a batch: its section, None in a dict, and its key."""

    section: Section | None
    key: Any


class Request(NamedTuple):
    """What a get asks for; `Ferry.get` documents it."""

    type: BatchType | None  # None for either, whose fields come back as a dict
    fields: FieldsLike | None = None
    rows: RowsLike | None = None
    into: Mapping[Any, Any] | None = None
    data_cls: Any = None
    verify: Verify = "auto"
    readonly: bool = False
    lazy: bool = False
    allow_pickle: bool = False

    @property
    def is_partial(self) -> bool:
        """Whether less than everything is asked for."""
        return self.fields is not None or self.rows is not None


def chosen(fields: FieldsLike | None, there: Collection[Place]) -> list[Place]:
    """Give the fields asked for, by place. Raises SelectionError for one that isn't there, or is asked for twice."""
    if fields is None:
        return list(there)
    if isinstance(fields, Mapping):
        return of_sections(fields, there)
    if isinstance(fields, str | bytes):
        raise SelectionError(f"fields must be a list of names, such as [{fields!r:.60}]")
    try:
        wanted = list(fields)
        different = set(wanted)
    except TypeError as error:
        raise SelectionError(f"fields must be a list of names: {error}") from None
    if len(different) != len(wanted):
        raise SelectionError("a field is asked for twice")
    by_key: dict[Any, list[Place]] = {}
    for place in there:
        by_key.setdefault(place.key, []).append(place)
    for name in wanted:
        check_there(name, by_key)
    return [place for name in wanted for place in by_key[name]]


def of_sections(fields: Mapping[str, Iterable[Any] | None], there: Collection[Place]) -> list[Place]:
    """Give fields by section and name; all of a section for None."""
    for section in fields:
        if section not in get_args(Section):
            raise SelectionError(f"there is no section {section!r}; there are {', '.join(get_args(Section))}")
    return [
        place
        for section, names in fields.items()
        for place in chosen(names, [place for place in there if place.section == section])
    ]


def check_there(name: Any, by_key: Mapping[Any, Sequence[Place]]) -> None:
    """Raise SelectionError unless there is such a field."""
    if name not in by_key:
        near = get_close_matches(str(name), [str(other) for other in by_key], n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are {list(by_key)!r:.200}"
        raise SelectionError(f"there is no field {name!r}; {advice}")


def resolve_rows(rows: RowsLike, count: int, *, most: int = 1 << 62) -> Rows:
    """Give the rows that an index stands for among so many. Raises SelectionError where it is none of them.

    A slice that steps may give `most` of them: a hostile bundle can claim any number of rows.
    """
    if isinstance(rows, slice):
        return of_slice(rows, count, most)
    try:
        index = np.asarray(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SelectionError(f"rows must be a slice, or ints, or bools: {error}") from None
    if index.ndim != 1 or (index.size and index.dtype.kind not in "biu"):
        raise SelectionError(
            f"rows must be a slice, or one-dimensional ints or bools, not {type(rows).__name__} of {index.dtype}"
        )
    if index.dtype.kind == "b":
        if len(index) != count:
            raise SelectionError(f"rows has {len(index)} bools for {count} rows")
        return Rows.at(np.flatnonzero(index))
    if index.dtype.kind == "u" and index.size and index.max() > np.iinfo(np.int64).max:
        raise SelectionError(f"there is no row {index.max()}: there are {count}")
    numbers64 = index.astype(np.int64)
    wrong = (numbers64 < -count) | (numbers64 >= count)
    if wrong.any():
        raise SelectionError(f"there is no row {numbers64[wrong][0]}: there are {count}")
    return Rows.at(np.where(numbers64 < 0, numbers64 + count, numbers64))


def of_slice(rows: slice, count: int, most: int) -> Rows:
    """Give the rows that a slice stands for."""
    try:
        numbers = range(*rows.indices(count))
    except (TypeError, ValueError) as error:
        raise SelectionError(f"rows can't be {rows}: {error}") from None
    if numbers.step == 1:
        return Rows.span(numbers.start, max(numbers.start, numbers.stop)).joined()
    if len(numbers) > most:
        raise SelectionError(f"{len(numbers):,} single rows are more than the bundle can hold")
    return Rows.at(np.arange(numbers.start, numbers.stop, numbers.step))
