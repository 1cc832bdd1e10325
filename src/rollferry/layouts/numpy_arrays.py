"""numpy's arrays, as the array layouts see them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from rollferry import _native
from rollferry.errors import UnsupportedValueError
from rollferry.layouts.base import Int64Array
from rollferry.layouts.dtypes import NumpyDType, dtype_of, dtype_to_text, encode_dtype, is_kept
from rollferry.layouts.library import ArrayRows, LossyCastError, StridedSource
from rollferry.memory.plan import SpanSource

__all__ = ["NumpyLibrary"]

NUMERIC = "biufc"  # kinds of dtypes that a schema may have stored as one another


class NumpyLibrary:
    """ndarrays, of exactly that class and without objects."""

    name = "numpy"

    def collect(self, values: list[Any]) -> ArrayRows | None:
        """Describe arrays of one dtype and number of dimensions; None where they differ."""
        try:
            found = _native.collect_arrays(values)
        except OverflowError as error:
            raise UnsupportedValueError(str(error), values[0]) from None
        if found is None:
            return None
        spans, dtype, ndim, offsets, shapes, equal_inner = found
        is_kept(dtype, values[0])
        if dtype.names is not None or dtype.kind in "mM":
            # Such dtypes may be equal to numpy and yet differ, in class, alignment or unit.
            code = encode_dtype(dtype)
            if any(value.dtype is not dtype and encode_dtype(value.dtype) != code for value in values):
                return None
        source = StridedSource(values, self) if spans is None else SpanSource(spans)
        return ArrayRows(source, encode_dtype(dtype), ndim, offsets, shapes, equal_inner)

    def key(self, value: Any) -> tuple[Any, ...]:
        """Give what must be equal for arrays to lie in one column."""
        return dtype_to_text(value.dtype), value.ndim

    def shape(self, value: Any) -> list[int]:
        """Give the shape of an array."""
        return list(value.shape)

    def nbytes(self, value: Any) -> int:
        """Give the bytes of an array's elements."""
        return int(value.nbytes)

    def copy_into(self, value: Any, dest: npt.NDArray[np.uint8]) -> None:
        """Write the elements of an array of any strides to `dest`."""
        np.copyto(dest.view(value.dtype).reshape(value.shape), value)

    def cast(self, value: Any, dtype: str) -> Any:
        """Convert an array. Raises LossyCastError where a value would not survive."""
        try:
            target = np.dtype(dtype)
        except TypeError:
            raise LossyCastError(f"numpy has no dtype {dtype!r}", value) from None
        if value.dtype == target:
            return value
        if value.dtype.kind not in NUMERIC or target.kind not in NUMERIC:
            raise LossyCastError(f"dtype {value.dtype} can't be stored as {dtype}", value)
        if value.dtype.kind == "c" and target.kind != "c":
            raise LossyCastError(f"complex values can't be stored as {dtype}", value)
        with np.errstate(all="ignore"):
            cast = value.astype(target)
            back = cast.astype(value.dtype)
        if np.ascontiguousarray(back).tobytes() != np.ascontiguousarray(value).tobytes():
            raise LossyCastError(f"a value of dtype {value.dtype} does not survive {dtype}", value)
        return cast

    def restore(self, values: Any, dtype: NumpyDType) -> Any:
        """Convert back what `cast` converted."""
        target = dtype_of(dtype)
        if target.kind not in NUMERIC or values.dtype.kind not in NUMERIC:
            raise ValueError(f"values of {values.dtype} were not stored for {target}")
        converted = values.astype(target)
        converted.flags.writeable = values.flags.writeable
        return converted

    def load(self, data: npt.NDArray[np.uint8], dtype: NumpyDType) -> Any:
        """Give bytes as a one-dimensional array, read-only if they are."""
        return data.view(dtype_of(dtype))

    def join(self, rows: list[Any]) -> Any:
        """Put arrays one after the other along the first axis; None where they differ in dtype or another axis."""
        first = rows[0]
        if first.ndim == 0 or first.dtype.names is not None:
            return None
        if any(row.dtype.str != first.dtype.str or row.shape[1:] != first.shape[1:] or row.ndim == 0 for row in rows):
            return None
        values = np.concatenate(rows, dtype=first.dtype)  # by itself it would give native byte order
        values.flags.writeable = rows[0].flags.writeable
        return values

    def split_rows(self, values: Any, offsets: Int64Array) -> list[Any]:
        """Cut values along the first axis."""
        return _native.split_rows(values, offsets)

    def split_shapes(self, values: Any, shapes: Int64Array) -> list[Any]:
        """Cut flat values into arrays of the given shapes."""
        return _native.split_shapes(values, shapes)

    def counterpart(self, dtype: NumpyDType) -> NumpyDType:
        """Give the dtype that is called as another library's."""
        return np.dtype(str(dtype)).str

    def dtype_name(self, dtype: NumpyDType) -> str:
        """Name a dtype."""
        return str(dtype_of(dtype))

    def itemsize(self, dtype: NumpyDType) -> int:
        """Give the bytes of an element."""
        return dtype_of(dtype).itemsize
