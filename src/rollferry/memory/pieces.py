"""Ranges of a payload that are fetched by themselves, and where they lie in memory that holds only them."""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from rollferry.memory.leases import Bytes
from rollferry.memory.plan import ALIGNMENT

__all__ = ["Pieces", "merged"]

Int64Array = npt.NDArray[np.int64]


class Pieces:
    """Disjoint pieces of a payload, placed one after the other, each aligned as in the payload. Immutable.

    Parameters
    ----------
    starts, stops
        int64 arrays of one length, rising: piece i has the bytes from starts[i] up to stops[i], at least one.

    Attributes
    ----------
    nbytes
        Bytes of memory that they take.
    """

    def __init__(self, starts: Int64Array, stops: Int64Array) -> None:
        self._starts = starts
        self._stops = stops
        first = starts & -ALIGNMENT
        taken = ((stops + (ALIGNMENT - 1)) & -ALIGNMENT) - first
        ends = np.cumsum(taken)
        self._places = ends - taken + (starts - first)
        self.nbytes = int(ends[-1]) if len(ends) else 0

    @classmethod
    def of(cls, ranges: Sequence[tuple[int, int]], near: int) -> Self:
        """Give the pieces that cover (offset, nbytes) ranges, joined where so many bytes or fewer are between them."""
        table = np.array(ranges, np.int64).reshape(-1, 2)
        table = table[table[:, 1] > 0]
        return cls(*merged(table[:, 0], table[:, 0] + table[:, 1], near))

    @classmethod
    def whole(cls, nbytes: int) -> Self:
        """Give a payload as one piece, which lies in memory as it is."""
        return cls(np.array([0], np.int64), np.array([nbytes], np.int64))

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Give start, stop and place of each piece."""
        return zip(self._starts.tolist(), self._stops.tolist(), self._places.tolist(), strict=True)

    def cut(self, size: int) -> Iterator[tuple[int, int, int, int]]:
        """Give the parts that lie in chunks of one size, in order: number of the chunk, offset in it, bytes, place."""
        for start, stop, place in self:
            position = start
            while position < stop:
                number, offset = divmod(position, size)
                nbytes = min(stop - position, size - offset)
                yield number, offset, nbytes, place + position - start
                position += nbytes

    def views(self, memory: Bytes, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        """Give (offset, nbytes) ranges, all of which the pieces cover, from the memory that holds the pieces."""
        if not self.nbytes:
            return [memory[:0] for _ in ranges]
        offsets = np.array([offset for offset, _ in ranges], np.int64)
        pieces = np.maximum(np.searchsorted(self._starts, offsets, side="right") - 1, 0)
        places: list[int] = np.maximum(self._places[pieces] + offsets - self._starts[pieces], 0).tolist()
        return [memory[place : place + nbytes] for place, (_, nbytes) in zip(places, ranges, strict=True)]


def merged(starts: Int64Array, stops: Int64Array, near: int) -> tuple[Int64Array, Int64Array]:
    """Give rising ranges that cover all that are given, those joined that have so many bytes or fewer between them."""
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    first: npt.NDArray[Any] = np.r_[True, starts[1:] > stops[:-1] + near] if len(starts) else np.empty(0, bool)
    return starts[first], stops[np.r_[first[1:], True]] if len(starts) else stops
