"""Rows that are cut only when they are asked for."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

from rollferry.layouts.base import Int64Array

__all__ = ["LazyRows"]


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
        position = range(len(self))[index]
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
