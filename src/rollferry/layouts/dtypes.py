"""numpy dtypes in a manifest."""

import re
from typing import Any

import msgspec
import numpy as np

from rollferry.errors import UnsupportedValueError

__all__ = ["NumpyDType", "dtype_from_text", "dtype_of", "dtype_to_text", "encode_dtype", "is_kept", "zero_width"]

# Only kinds whose items are plain bytes: no text that numpy would parse further, above all no objects.
PLAIN = re.compile(r"[<>|][biufcmMSUV][0-9]{1,10}(\[([1-9][0-9]{0,9})?[A-Za-zμ]{1,7}\])?")
MAX_DEPTH = 16


class FieldDType(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One field of a structured dtype. Names are UTF-8, where lone surrogates are three bytes each."""

    name: bytes
    dtype: "str | StructDType"
    offset: int
    shape: list[int] = []
    title: bytes | None = None


class StructDType(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A structured dtype, with its padding."""

    itemsize: int
    aligned: bool
    record: bool
    fields: list[FieldDType]


NumpyDType = str | StructDType


def is_kept(dtype: "np.dtype[Any]", value: object, depth: int = 0) -> None:
    """Raise UnsupportedValueError, naming `value`, unless items of the dtype are bytes that can be kept exactly."""
    if depth > MAX_DEPTH:
        raise UnsupportedValueError(f"a dtype nested more than {MAX_DEPTH} levels deep", value)
    if dtype.kind == "V" and dtype.type is not np.void and not (dtype.type is np.record and dtype.names is not None):
        raise UnsupportedValueError(f"a dtype of class {dtype.type.__qualname__}", value)
    if dtype.names is not None:
        fields: Any = dtype.fields
        for name in dtype.names:
            field = fields[name]
            if len(field) > 2 and not isinstance(field[2], str):
                raise UnsupportedValueError(f"the title of its field {name!r} is no string", value)
            is_kept(field[0].base, value, depth + 1)
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
        named = to_wire(name), encode_dtype(base.base), offset, list(base.shape), to_wire(title[0]) if title else None
        fields.append(FieldDType(*named))
    return StructDType(dtype.itemsize, dtype.isalignedstruct, dtype.type is np.record, fields)


def dtype_of(code: NumpyDType, depth: int = 0) -> "np.dtype[Any]":
    """Rebuild a dtype. Raises ValueError for anything `encode_dtype` would not give."""
    if isinstance(code, str):
        if PLAIN.fullmatch(code) is None:
            raise ValueError(f"{code!r:.40} is no dtype of a bundle")
        dtype = np.dtype(code)
        if dtype.hasobject:
            raise ValueError(f"{code!r:.40} is no dtype of a bundle")
        return dtype
    if depth > MAX_DEPTH:
        raise ValueError("a dtype is nested too deeply")
    formats = [(dtype_of(field.dtype, depth + 1), tuple(field.shape)) for field in code.fields]
    description: Any = {
        "names": [from_wire(field.name) for field in code.fields],
        "formats": [base if not shape else (base, shape) for base, shape in formats],
        "offsets": [field.offset for field in code.fields],
        "itemsize": code.itemsize,
    }
    if any(field.title is not None for field in code.fields):
        description["titles"] = [None if field.title is None else from_wire(field.title) for field in code.fields]
    dtype = np.dtype(description, align=code.aligned)
    return np.dtype((np.record, dtype)) if code.record else dtype


def dtype_to_text(dtype: "np.dtype[Any]") -> str:
    """Describe a dtype that `is_kept` took, as text."""
    return msgspec.json.encode(encode_dtype(dtype)).decode()


def dtype_from_text(text: str) -> "np.dtype[Any]":
    """Rebuild a dtype from its text."""
    return dtype_of(msgspec.json.decode(text, type=NumpyDType))


def zero_width(dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> Any:
    """Give an array whose items have no bytes. Raises ValueError where they have some."""
    if dtype.itemsize:
        raise ValueError(f"items of dtype {dtype} have bytes")
    # By itself text without width would get the width 1.
    return np.zeros(shape, [("item", dtype)])["item"]


def to_wire(name: str) -> bytes:
    """Give a name as a manifest holds it."""
    return name.encode("utf-8", "surrogatepass")


def from_wire(name: bytes) -> str:
    """Give a name back."""
    return name.decode("utf-8", "surrogatepass")
