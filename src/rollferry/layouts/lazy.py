"""Rows that are cut, and lists that are rebuilt, only when they are asked for."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from rollferry.layouts.base import Int64Array

__all__ = ["LazyList", "LazyRows"]


class LazyRows(Sequence[Any]):
    """Read-only sequence of rows over values and offsets, made in constant time.

    Rows are views, cut at each access; slices give a LazyRows over the same values. Thread-safe as far as its arrays
    are.

    Parameters
    ----------
    values
        All rows, one after the other along the first axis; ndarray or tensor.
    offsets
        int64 array, one item more than rows: row i is ``values[offsets[i]:offsets[i + 1]]``.
    """

    __slots__ = ("_offsets", "_values")

    def __init__(self, values: Any, offsets: Int64Array) -> None:
        self._values = values
        self._offsets = offsets

    @property
    def values(self) -> Any:
        """All rows, one after the other."""
        return self._values

    @property
    def offsets(self) -> Int64Array:
        """Where each row starts, and where the last one ends."""
        return self._offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> "LazyRows": ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("rows can only be sliced with step 1; index them one by one")
            return LazyRows(self._values, self._offsets[start : max(start, stop) + 1])
        try:
            position = range(len(self))[index]
        except IndexError:
            raise IndexError(f"there is no row {index}: there are {len(self)}") from None
        return self._row(position)

    def __iter__(self) -> Iterator[Any]:
        return map(self._row, range(len(self)))

    def __repr__(self) -> str:
        return f"LazyRows({len(self)} rows of {self._values.dtype})"

    def _row(self, position: int) -> Any:
        # A row outside the values would be clipped by the slice, not read beyond them.
        start, stop = self._offsets[position].item(), self._offsets[position + 1].item()
        if not 0 <= start <= stop <= len(self._values):
            raise IndexError(
                f"row {position} has the offsets {start} and {stop}, but there are {len(self._values)} values"
            )
        return self._values[start:stop]


class LazyList(Sequence[Any]):
    """Read-only sequence of values that are rebuilt, all of them, at the first access to one. Thread-safe.

    That access raises what `get` would have raised for the field, BundleError for example. To compare or put it, make a list
    of it; pickled, it becomes one.

    Parameters
    ----------
    length
        Number of values.
    rebuild
        Gives them.
    lock
        Held meanwhile: what belongs to one `get` is rebuilt by one thread at a time.
    """

    __slots__ = ("_length", "_lock", "_rebuild", "_values")

    def __init__(self, length: int, rebuild: Callable[[], list[Any]], lock: threading.RLock) -> None:
        self._length = length
        self._rebuild: Callable[[], list[Any]] | None = rebuild
        self._lock = lock
        self._values: list[Any] = []

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._list()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list())

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return list, (self._list(),)

    def __repr__(self) -> str:
        return f"LazyList({self._length} values)"

    def tolist(self) -> list[Any]:
        """Give the values as a list of the caller's own."""
        return list(self._list())

    def _list(self) -> list[Any]:
        if self._rebuild is not None:
            with self._lock:
                if self._rebuild is not None:
                    self._values = self._rebuild()
                    self._rebuild = None  # which also lets go of what the other fields need
        return self._values
