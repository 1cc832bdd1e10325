"""Request: what a get asks of a bundle."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

import numpy as np

from rollferry.errors import SelectionError
from rollferry.layouts.rows import Rows

__all__ = ["Request", "RowsLike", "Verify", "chosen", "resolve_rows"]

Verify = Literal["auto", "manifest", "full"]
RowsLike = slice | Sequence[int] | Any  # ndarrays and tensors of ints or bools, too


class Request(NamedTuple):
    """What a get asks for; `Ferry.get` documents it."""

    fields: Iterable[Any] | None = None
    rows: RowsLike | None = None
    into: Mapping[Any, Any] | None = None
    verify: Verify = "auto"
    readonly: bool = False
    lazy: bool = False
    allow_pickle: bool = False

    @property
    def is_partial(self) -> bool:
        """Whether less than everything is asked for."""
        return self.fields is not None or self.rows is not None


def chosen(fields: Iterable[Any] | None, names: Iterable[Hashable]) -> list[Any]:
    """Give the names asked for. Raises SelectionError for one that isn't there, or is asked for twice."""
    there = dict.fromkeys(names)
    if fields is None:
        return list(there)
    if isinstance(fields, str | bytes):
        raise SelectionError(f"fields must be a list of names, not {fields!r:.60}: [{fields!r:.60}]")
    wanted = list(fields)
    for name in wanted:
        if name not in there:
            near = get_close_matches(str(name), [str(other) for other in there], n=1)
            raise SelectionError(
                f"there is no field {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else f"; there are {list(there)}")
            )
    if len(set(wanted)) != len(wanted):
        raise SelectionError("a field is asked for twice")
    return wanted


def resolve_rows(rows: RowsLike, count: int) -> Rows:
    """Give the rows that an index stands for among so many. Raises SelectionError where it is none of them."""
    if isinstance(rows, slice):
        try:
            numbers = range(*rows.indices(count))
        except (TypeError, ValueError) as error:
            raise SelectionError(f"rows can't be {rows}: {error}") from None
        if numbers.step == 1:
            return Rows.span(numbers.start, max(numbers.start, numbers.stop)).joined()
        return Rows.at(np.arange(numbers.start, numbers.stop, numbers.step))
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
