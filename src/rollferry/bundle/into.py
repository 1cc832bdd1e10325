"""Filling buffers of the caller's with the values of fields."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rollferry.bundle.rebuild import Found, rebuild_field
from rollferry.errors import SelectionError
from rollferry.layouts.arrays import library_named
from rollferry.layouts.numbers import Numbers
from rollferry.layouts.tree.sequence import Sequence
from rollferry.memory.leases import copy_bytes

__all__ = ["Filling", "filling"]


class Filling(NamedTuple):
    """A buffer that fits, not yet filled.

    Parameters
    ----------
    fill
        Fills it.
    result
        Gives the value of the field over it.
    """

    fill: Callable[[], None]
    result: Callable[[], Any]


def filling(found: Found, buffer: Any) -> Filling:
    """Check a buffer for a field. Raises SelectionError where it doesn't fit, or the field is none of arrays."""
    (_, key), field, decoder, _ = found
    spec = decoder.specs[field.column]
    numbers = isinstance(spec, Numbers | Sequence)
    values: Any
    if isinstance(spec, Numbers):
        values, offsets = spec.array(decoder), None
    elif field.form == "value":
        values, offsets = rebuild_field(found), None
    else:
        rows = spec.packed(decoder)
        values, offsets = (None, None) if rows is None else (rows.values, rows.offsets.copy())
    if not (isinstance(values, np.ndarray) or is_tensor(values)):
        raise SelectionError(f"field {key!r} can't be read into a buffer: it consists of no arrays of one dtype")
    check(key, values, buffer, any_wider=numbers)
    library = library_named("torch" if is_tensor(buffer) else "numpy")

    def result() -> Any:
        if offsets is None:
            return buffer
        found = library.split_rows(buffer, offsets)
        return tuple(found) if field.form == "tuple" else found

    return Filling(lambda: copy(values, buffer), result)


def check(key: object, values: Any, buffer: Any, *, any_wider: bool) -> None:
    """Raise SelectionError unless a buffer has shape and dtype of the values; Python numbers also go into wider ones."""
    if not (type(buffer) is np.ndarray or is_tensor(buffer)):
        raise SelectionError(f"the buffer for field {key!r} must be an ndarray or tensor, not {type(buffer).__name__}")
    if type(buffer) is np.ndarray and not buffer.flags.writeable:
        raise SelectionError(f"the buffer for field {key!r} is read-only")
    if tuple(buffer.shape) != tuple(values.shape):
        raise SelectionError(
            f"the buffer for field {key!r} has shape {tuple(buffer.shape)}, the values have {tuple(values.shape)}"
        )
    stored, wanted = dtype_name(values), dtype_name(buffer)
    if stored != wanted and not (any_wider and is_wider(stored, wanted)):
        raise SelectionError(f"the buffer for field {key!r} has dtype {wanted}, the values have {stored}")


def is_wider(stored: str, wanted: str) -> bool:
    """Whether a dtype keeps all numbers of another."""
    try:
        return np.can_cast(np.dtype(stored), np.dtype(wanted), "safe")
    except TypeError:  # one of torch only
        return False


def copy(values: Any, buffer: Any) -> None:
    """Copy values to a buffer of their shape."""
    if is_tensor(buffer):
        torch = sys.modules["torch"]
        buffer.copy_(values if is_tensor(values) else torch.from_numpy(values))
    elif is_tensor(values):
        np.copyto(buffer, values.numpy())
    elif buffer.dtype == values.dtype and buffer.flags.c_contiguous and values.flags.c_contiguous:
        copy_bytes(values.reshape(-1).view(np.uint8), buffer.reshape(-1).view(np.uint8))
    else:
        np.copyto(buffer, values)


def dtype_name(values: Any) -> str:
    """Name a dtype; those of torch as numpy calls them."""
    return str(values.dtype).removeprefix("torch.")


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
