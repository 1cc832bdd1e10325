"""numpy dtypes in a manifest."""

import re
from typing import Any

import msgspec
import numpy as np

from rollferry.errors import UnsupportedValueError

__all__ = ["NumpyDType", "dtype_of", "encode_dtype", "is_kept"]

# Only kinds whose items are plain bytes: no text that numpy would parse further, above all no objects.
PLAIN = re.compile(r"[<>|][biufcmMSUV][0-9]{1,10}(\[[0-9]{0,10}[A-Za-zμ]{1,7}\])?")
MAX_DEPTH = 16


class FieldDType(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One field of a structured dtype."""

    name: str
    dtype: "str | StructDType"
    offset: int
    shape: list[int] = []
    title: str | None = None


class StructDType(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A structured dtype, with its padding."""

    itemsize: int
    aligned: bool
    fields: list[FieldDType]


NumpyDType = str | StructDType


def is_kept(dtype: "np.dtype[Any]", value: object) -> None:
    """Raise UnsupportedValueError, naming `value`, unless items of the dtype are bytes that can be kept exactly."""
    if dtype.itemsize == 0:
        raise UnsupportedValueError(f"items of dtype {dtype} have no bytes", value)
    if dtype.names is not None:
        for name in dtype.names:
            field = dtype.fields[name]  # type: ignore[index]
            if len(field) > 2 and not isinstance(field[2], str):
                raise UnsupportedValueError(f"the title of its field {name!r} is no string", value)
            is_kept(field[0].base, value)
        return
    if PLAIN.fullmatch(dtype.str) is None or dtype.isbuiltin == 2 or np.dtype(dtype.str) != dtype:
        raise UnsupportedValueError(f"arrays of dtype {dtype} can't be kept exactly; convert it first", value)


def encode_dtype(dtype: "np.dtype[Any]") -> NumpyDType:
    """Describe a dtype that `is_kept` took."""
    if dtype.names is None:
        return dtype.str
    fields = []
    for name in dtype.names:
        base, offset, *title = dtype.fields[name]  # type: ignore[index]
        fields.append(FieldDType(name, encode_dtype(base.base), offset, list(base.shape), title[0] if title else None))
    return StructDType(dtype.itemsize, dtype.isalignedstruct, fields)


def dtype_of(code: NumpyDType, depth: int = 0) -> "np.dtype[Any]":
    """Rebuild a dtype. Raises ValueError for anything `encode_dtype` would not give."""
    if isinstance(code, str):
        if PLAIN.fullmatch(code) is None:
            raise ValueError(f"{code!r:.40} is no dtype of a bundle")
        dtype = np.dtype(code)
        if dtype.hasobject or dtype.itemsize == 0:
            raise ValueError(f"{code!r:.40} is no dtype of a bundle")
        return dtype
    if depth > MAX_DEPTH:
        raise ValueError("a dtype is nested too deeply")
    formats = [(dtype_of(field.dtype, depth + 1), tuple(field.shape)) for field in code.fields]
    description: dict[str, Any] = {
        "names": [field.name for field in code.fields],
        "formats": [base if not shape else (base, shape) for base, shape in formats],
        "offsets": [field.offset for field in code.fields],
        "itemsize": code.itemsize,
    }
    if any(field.title is not None for field in code.fields):
        description["titles"] = [field.title for field in code.fields]
    return np.dtype(description, align=code.aligned)
