"""What the array layouts need of an array library."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rollferry.errors import RollferryError
from rollferry.layouts.base import Int64Array
from rollferry.layouts.dtypes import NumpyDType
from rollferry.memory.plan import Source

__all__ = ["ArrayLibrary", "ArrayRows", "LossyCastError", "StridedSource"]


class LossyCastError(RollferryError, ValueError):
    """A value can't be stored as the schema wants; becomes a SchemaError once field and row are known."""

    def __init__(self, reason: str, value: object = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.value = value


class ArrayRows(NamedTuple):
    """Arrays of one dtype and number of dimensions.

    Parameters
    ----------
    source
        Their elements, one array after the other, each in C order.
    dtype
        As it stands in a spec.
    ndim
        Number of dimensions.
    offsets
        Sums of their lengths along the first axis, one more than arrays; None for ndim 0.
    shapes
        Their shapes, of (rows, ndim); None for ndim below 2.
    equal_inner
        Whether they agree in all axes but the first.
    """

    source: Source
    dtype: NumpyDType
    ndim: int
    offsets: Int64Array | None
    shapes: Int64Array | None
    equal_inner: bool


class ArrayLibrary(Protocol):
    """Arrays of one library; `NumpyLibrary` documents the methods."""

    name: str

    def collect(self, values: list[Any]) -> ArrayRows | None: ...
    def key(self, value: Any) -> tuple[Any, ...]: ...
    def shape(self, value: Any) -> list[int]: ...
    def nbytes(self, value: Any) -> int: ...
    def copy_into(self, value: Any, dest: npt.NDArray[np.uint8]) -> None: ...
    def cast(self, value: Any, dtype: str) -> Any: ...
    def restore(self, values: Any, dtype: NumpyDType) -> Any: ...
    def load(self, data: npt.NDArray[np.uint8], dtype: NumpyDType) -> Any: ...
    def join(self, rows: list[Any]) -> Any: ...
    def split_rows(self, values: Any, offsets: Int64Array) -> list[Any]: ...
    def split_shapes(self, values: Any, shapes: Int64Array) -> list[Any]: ...
    def counterpart(self, dtype: NumpyDType) -> NumpyDType: ...
    def dtype_name(self, dtype: NumpyDType) -> str: ...
    def itemsize(self, dtype: NumpyDType) -> int: ...


class StridedSource:
    """Arrays some of which are not contiguous; each is copied by its own library straight into the member.

    Parameters
    ----------
    values
        The arrays.
    library
        Their library.
    """

    copies = 1

    def __init__(self, values: Sequence[Any], library: ArrayLibrary) -> None:
        self._values = values
        self._library = library
        self.nbytes = sum(library.nbytes(value) for value in values)

    def fill(self, dest: npt.NDArray[np.uint8]) -> None:
        """Write all elements to `dest`."""
        start = 0
        for value in self._values:
            stop = start + self._library.nbytes(value)
            self._library.copy_into(value, dest[start:stop])
            start = stop
