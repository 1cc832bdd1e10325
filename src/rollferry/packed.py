"""Rows as training code takes them: packed one after the other, padded, or nested."""

from typing import Any, Literal, NamedTuple

import numpy as np

from rollferry.errors import SelectionError
from rollferry.layouts.arrays import library_named
from rollferry.layouts.lazy import LazyRows

__all__ = ["Library", "Packed", "Side", "nested", "packed", "padded"]

Library = Literal["numpy", "torch"]
Side = Literal["left", "right"]


class Packed(NamedTuple):
    """Rows without padding, as variable-length attention kernels take them.

    Parameters
    ----------
    values
        All rows, one after the other along the first axis: shape (total, ...), memory of the bundle where that is possible.
    cu_seqlens
        int32, shape (rows + 1,): row i is ``values[cu_seqlens[i]:cu_seqlens[i + 1]]``.
    max_seqlen
        Length of the longest row, 0 where there is none.
    """

    values: Any
    cu_seqlens: Any
    max_seqlen: int


def packed(rows: LazyRows, library: Library) -> Packed:
    """Give rows packed."""
    values = as_library(rows.values, library)
    if rows.offsets[-1] > np.iinfo(np.int32).max:
        raise SelectionError(f"{rows.offsets[-1]:,} values don't fit the int32 of cu_seqlens; read fewer rows at once")
    offsets = rows.offsets.astype(np.int32)
    longest = int(np.diff(rows.offsets).max(initial=0))
    return Packed(values, as_library(offsets, library), longest)


def padded(rows: LazyRows, library: Library, *, value: Any, side: Side, to_multiple_of: int) -> Any:
    """Give rows in one array of shape (rows, longest, ...), filled up with `value`."""
    values = as_library(rows.values, library)
    check_filling(values, value)
    lengths = np.diff(rows.offsets)
    longest = -(-int(lengths.max(initial=0)) // to_multiple_of) * to_multiple_of
    places = np.arange(longest)
    taken = places < lengths[:, None] if side == "right" else places >= longest - lengths[:, None]
    shape = (len(lengths), longest, *values.shape[1:])
    if library == "torch":
        import torch  # heavy, and only this needs it

        result: Any = torch.full(shape, value, dtype=values.dtype)
        result[torch.from_numpy(taken)] = values
        return result
    result = np.full(shape, value, values.dtype)
    result[taken] = values
    return result


def check_filling(values: Any, value: Any) -> None:
    """Raise SelectionError unless the dtype of values keeps what rows are to be filled up with; floats may be rounded."""
    name = str(values.dtype).removeprefix("torch.")
    try:
        if name.startswith(("int", "uint")):
            limits = np.iinfo(name)
            same = value == int(value) and limits.min <= value <= limits.max
        elif name == "bool":
            same = value in (0, 1)
        else:
            complex(value)
            same = True
    except (TypeError, ValueError, OverflowError):  # no number, NaN, infinity
        same = False
    if not same:
        raise SelectionError(f"rows of dtype {name} can't be filled up with {value!r:.60}")


def nested(rows: LazyRows) -> Any:
    """Give rows as a jagged nested tensor over the same values."""
    import torch  # likewise

    values = as_library(rows.values, "torch")
    lengths = np.diff(rows.offsets)
    bounds = {"min_seqlen": int(lengths.min()), "max_seqlen": int(lengths.max())} if len(lengths) else {}
    return torch.nested.nested_tensor_from_jagged(values, torch.from_numpy(rows.offsets.copy()), **bounds)


def as_library(values: Any, library: Library) -> Any:
    """Give an array as one of a library, over the same memory. Raises SelectionError where that has no such dtype."""
    try:
        if library == "torch" and isinstance(values, np.ndarray):
            return (
                library_named("torch")
                .load(values.reshape(-1).view(np.uint8), torch_name(values.dtype))
                .reshape(values.shape)
            )
        return values if library == "torch" or isinstance(values, np.ndarray) else values.numpy()
    except (TypeError, ValueError) as error:
        raise SelectionError(f"values of dtype {values.dtype} can't be given as {library}: {error}") from None


def torch_name(dtype: "np.dtype[Any]") -> str:
    """Name a numpy dtype as torch does. Raises ValueError where it has none such."""
    if not dtype.isnative or dtype.kind not in "biufc":
        raise ValueError("torch has no such dtype")
    return dtype.name
