"""Rows: which rows of a column are wanted, as spans."""

from collections.abc import Iterable, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from rollferry.layouts.base import Int64Array

__all__ = ["Rows", "offsets_of"]


class Rows:
    """Spans of rows, in the order in which they are wanted; a row may occur several times. Immutable.

    Parameters
    ----------
    starts, stops
        int64 arrays of one length: span i has the rows from starts[i] up to stops[i]. Spans may be empty.
    """

    __slots__ = ("count", "starts", "stops")

    def __init__(self, starts: Int64Array, stops: Int64Array) -> None:
        self.starts = starts
        self.stops = stops
        self.count = int((stops - starts).sum())

    @classmethod
    def span(cls, start: int, stop: int) -> Self:
        """Give the rows from one up to another."""
        return cls(np.array([start], np.int64), np.array([stop], np.int64))

    @classmethod
    def at(cls, indices: Iterable[int] | Int64Array) -> Self:
        """Give rows by their numbers."""
        numbers = np.asarray(indices, np.int64)
        return cls(numbers, numbers + 1).joined()

    def joined(self) -> Self:
        """Give the same rows in the fewest spans, none of them empty."""
        filled = self.starts < self.stops
        starts, stops = self.starts[filled], self.stops[filled]
        if len(starts) < 2:
            return type(self)(starts, stops)
        gaps = starts[1:] != stops[:-1]
        return type(self)(starts[np.r_[True, gaps]], stops[np.r_[gaps, True]])

    def indices(self) -> Int64Array:
        """Give the number of each row."""
        if len(self.starts) == 1:
            return np.arange(self.starts[0], self.stops[0])
        lengths = self.stops - self.starts
        shifts = self.starts - np.cumsum(lengths) + lengths
        return np.repeat(shifts, lengths) + np.arange(self.count)

    def fit(self, rows: int) -> bool:
        """Whether all spans rise and lie within so many rows."""
        if not len(self.starts):
            return True
        return bool(self.starts.min() >= 0 and self.stops.max() <= rows and (self.starts <= self.stops).all())

    def scaled(self, factor: int) -> "Rows":
        """Give the items of rows of `factor` items each."""
        return Rows(self.starts * factor, self.stops * factor)

    def up_to_last(self) -> "Rows":
        """Give all rows up to the last of these."""
        return Rows.span(0, int(self.stops.max(initial=0)))

    def among(self, has: npt.NDArray[np.bool_]) -> "Rows":
        """Give those of the rows that `has` is true for, numbered among all such rows; it has a bool for each up to the last."""
        chosen = self.indices()
        return Rows.at((np.cumsum(has) - 1)[chosen[has[chosen]]])


def offsets_of(lengths: Sequence[int] | Int64Array) -> Int64Array:
    """Give where rows of these lengths begin, one after the other from 0 on, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    return offsets
