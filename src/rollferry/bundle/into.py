"""Filling buffers of the caller's with the values of fields."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rollferry.bundle.rebuild import Found, check_offsets, rebuild_field
from rollferry.bundle.request import Place
from rollferry.errors import SelectionError
from rollferry.layouts.arrays import library_named
from rollferry.layouts.base import Int64Array
from rollferry.layouts.indexed import is_tensor
from rollferry.layouts.lazy import LazyRows
from rollferry.layouts.numbers import Numbers
from rollferry.layouts.tree.sequence import Sequence
from rollferry.memory.leases import copy_bytes

__all__ = ["check_distinct", "filling"]


def filling(found: Found, buffer: Any) -> Callable[[], Any]:
    """Check a buffer for a field, and give what fills it and then gives the value of the field over it.

    Raises SelectionError where it doesn't fit, or the field is none of arrays.
    """
    (_, key), field, decoder, _ = found
    spec = decoder.specs[field.column]
    values: Any
    rows: LazyRows | None = None
    if field.form == "value":
        values = rebuild_field(found)
    elif isinstance(spec, Numbers):
        values = spec.wide_array(decoder)
    else:
        rows = spec.packed(decoder)
        values = None if rows is None else rows.values
    if not (isinstance(values, np.ndarray) or is_tensor(values)):
        raise SelectionError(f"field {key!r} can't be read into a buffer: it consists of no arrays of one dtype")
    check(key, values, buffer, any_ints=isinstance(spec, Numbers | Sequence))
    if rows is not None:
        check_offsets(rows, key)

    def filled() -> Any:
        copy(values, buffer)
        if rows is None:
            return buffer
        cut_rows = cut(buffer, rows.offsets)
        return tuple(cut_rows) if field.form == "tuple" else cut_rows

    return filled


def cut(buffer: Any, offsets: Int64Array) -> list[Any]:
    """Give the rows that a buffer holds."""
    if is_tensor(buffer) or buffer.flags.c_contiguous:
        return library_named("torch" if is_tensor(buffer) else "numpy").split_rows(buffer, offsets)
    return list(LazyRows(buffer, offsets))


def check(key: object, values: Any, buffer: Any, *, any_ints: bool) -> None:
    """Raise SelectionError unless a buffer has shape and dtype of the values; Python ints go into all that keep them."""
    if not (type(buffer) is np.ndarray or is_tensor(buffer)):
        raise SelectionError(f"the buffer for field {key!r} must be an ndarray or tensor, not {type(buffer).__name__}")
    wrong = why_not_tensor(buffer) if is_tensor(buffer) else None if buffer.flags.writeable else "is read-only"
    if wrong is not None:
        raise SelectionError(f"the buffer for field {key!r} {wrong}")
    if tuple(buffer.shape) != tuple(values.shape):
        raise SelectionError(
            f"the buffer for field {key!r} has shape {tuple(buffer.shape)}, the values have {tuple(values.shape)}"
        )
    stored, wanted = dtype_name(values), dtype_name(buffer)
    if stored != wanted and not (any_ints and keeps(values, wanted)):
        raise SelectionError(f"the buffer for field {key!r} has dtype {wanted}, the values have {stored}")


def why_not_tensor(buffer: Any) -> str | None:
    """Say why a tensor can't be written to; None where it can."""
    torch = sys.modules["torch"]
    if buffer.is_nested or buffer.layout != torch.strided or buffer.device.type == "meta":
        return "is no plain tensor with memory"
    if buffer.requires_grad and torch.is_grad_enabled():
        return "requires grad; pass buffer.detach()"
    if buffer.is_inference() and not torch.is_inference_mode_enabled():
        return "was made in inference mode; get it in inference mode too"
    if any(step == 0 and size > 1 for step, size in zip(buffer.stride(), buffer.shape, strict=True)):
        return "has elements that are one in memory"
    return None


def check_distinct(buffers: Mapping[Place, Any]) -> None:
    """Raise SelectionError where two fields have the same buffer, as those of one name in two sections do."""
    found: dict[int, Place] = {}
    for place, buffer in buffers.items():
        address = buffer.data_ptr() if is_tensor(buffer) else buffer.ctypes.data
        if buffer.nbytes and address in found:
            names = " and ".join(
                repr(key) if section is None else f"{section}.{key}" for section, key in (found[address], place)
            )
            raise SelectionError(f"the fields {names} have the same buffer; read them by themselves (fields=)")
        found[address] = place


def keeps(values: Any, wanted: str) -> bool:
    """Whether a dtype keeps ints."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        return False
    try:
        limits = np.iinfo(wanted)
    except (TypeError, ValueError):  # none of ints
        return False
    return not values.size or bool(values.min() >= limits.min and values.max() <= limits.max)


def copy(values: Any, buffer: Any) -> None:
    """Copy values to a buffer of their shape."""
    if is_tensor(buffer):
        torch = sys.modules["torch"]
        if not is_tensor(values):  # of read-only memory torch would warn
            values = torch.from_numpy(values if values.flags.writeable else values.copy())
        buffer.copy_(values)
    elif is_tensor(values):
        np.copyto(buffer, values.numpy())
    elif buffer.dtype == values.dtype != object and buffer.flags.c_contiguous and values.flags.c_contiguous:
        copy_bytes(values.reshape(-1).view(np.uint8), buffer.reshape(-1).view(np.uint8))
    else:
        np.copyto(buffer, values, casting="unsafe")  # checked before


def dtype_name(values: Any) -> str:
    """Name a dtype; those of torch as numpy calls them."""
    return str(values.dtype).removeprefix("torch.")
