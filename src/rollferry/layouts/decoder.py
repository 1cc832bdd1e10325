"""Decoder: rebuilds columns from specs and fetched members."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rollferry import _native
from rollferry.errors import BundleError
from rollferry.layouts.base import MAX_DEPTH, Int64Array, Spec
from rollferry.memory.leases import frozen

__all__ = ["Decoder"]


class Decoder:
    """State of one get. Not thread-safe; `lock` is there for those who share one.

    Parameters
    ----------
    specs
        All columns of the bundle, children before parents.
    member
        Gives the bytes of a member by number.
    allow_pickle
        Whether pickled values may be read.
    readonly
        Whether arrays come back read-only. Tensors can't be.
    """

    def __init__(
        self,
        specs: Sequence[Spec],
        member: Callable[[int], npt.NDArray[np.uint8]],
        *,
        allow_pickle: bool = False,
        readonly: bool = False,
    ) -> None:
        self.allow_pickle = allow_pickle
        self.readonly = readonly
        self.bytes = member
        self.specs = specs
        self.lock = threading.RLock()
        self._referenced = {number for spec in specs for number in spec.references()}
        self._columns: dict[int, list[Any]] = {}
        self._depth = 0

    def column(self, number: int) -> list[Any]:
        """Give the values of a column. Where others refer to it, it is kept, so that shared objects stay one."""
        if number not in self._columns:
            spec = self.specs[number]
            if self._depth > 4 * MAX_DEPTH:
                raise BundleError("columns are nested too deeply")
            self._depth += 1
            try:
                values = spec.decode(self)
            finally:
                self._depth -= 1
            if len(values) != spec.rows:
                raise BundleError(f"column {number} has {len(values)} values, not {spec.rows}")
            if number not in self._referenced:
                return values
            self._columns[number] = values
        return self._columns[number]

    def rows(self, number: int, offsets: Int64Array, row_type: type) -> list[Any]:
        """Give the values of a column, grouped by offsets."""
        spec = self.specs[number]
        # Objects that others refer to have to be theirs.
        rows = None if number in self._referenced else spec.decode_rows(self, offsets, row_type)
        return _native.group_rows(self.column(number), offsets, row_type) if rows is None else rows

    def array(self, number: int, dtype: "np.dtype[Any]", length: int | None = None) -> npt.NDArray[Any]:
        """Give a member as an array of exactly `length` items."""
        values = self.freeze(self.bytes(number)).view(dtype)
        if length is not None and len(values) != length:
            raise BundleError(f"member {number} has {len(values)} items, not {length}")
        return values

    def places(self, number: int, dtype: "np.dtype[Any]", length: int | None = None) -> npt.NDArray[Any]:
        """Do as `array` for numbers that say where other things lie, in a copy.

        The bundle may be memory that another process writes to; what was checked has to stay what is used.
        """
        return self.array(number, dtype, length).copy()

    def freeze(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Give the same bytes read-only, if arrays are to be."""
        return frozen(data) if self.readonly else data
