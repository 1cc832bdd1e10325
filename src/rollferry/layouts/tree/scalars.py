"""Columns of numpy scalars."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from rollferry.layouts.base import Spec, Taken
from rollferry.layouts.dtypes import (
    NumpyDType,
    dtype_from_text,
    dtype_of,
    dtype_to_text,
    encode_dtype,
    is_kept,
    zero_width,
)
from rollferry.layouts.rows import Rows
from rollferry.layouts.tree.registered import BY_NAME, Codec, Registered, register_builtin
from rollferry.layouts.tree.union import Union

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["Scalars"]


class Scalars(Spec, frozen=True, tag="scalars"):
    """numpy scalars of one dtype.

    Parameters
    ----------
    dtype
        Their dtype.
    data
        Member with their values.
    """

    layout: ClassVar[str] = "tree"
    why: ClassVar[str] = "numpy scalars of one dtype"

    dtype: NumpyDType
    data: int

    def members(self) -> Iterable[int]:
        return (self.data,)

    @classmethod
    def encode(cls, values: list[Any], encoder: "Encoder") -> Spec:
        """Encode scalars of one exact class."""
        dtype = values[0].dtype
        code = encode_dtype(dtype)
        if any(value.dtype is not dtype and encode_dtype(value.dtype) != code for value in values):
            return Union.by_key(
                values, lambda value: dtype_to_text(value.dtype), encoder, lambda group: cls.encode(group, encoder)
            )
        is_kept(dtype, values[0])
        if dtype.itemsize == 0:
            return Registered.encode_as("numpy.zero_width_scalar", [dtype_to_text(dtype)] * len(values), encoder)
        data = np.frombuffer(b"".join([value.tobytes() for value in values]), np.uint8)
        return cls(rows=len(values), dtype=code, data=encoder.array_member(data))

    def select(self, rows: Rows, taken: Taken) -> "Scalars":
        taken.keep(self.data, dtype_of(self.dtype).itemsize, rows)
        return msgspec.structs.replace(self, rows=rows.count)

    def decode(self, source: "Decoder") -> list[Any]:
        array = source.array(self.data, dtype_of(self.dtype), self.rows)
        return [array[i] for i in range(len(array))]

    def dtype_name(self) -> str:
        return str(dtype_of(self.dtype))


# As text and ints, since arrays would cut the trailing zeros of text, and give these ints the type np.int64.
register_builtin(np.str_, "numpy.str_", lambda value: str.__getitem__(value, slice(None)), np.str_, str)
register_builtin(np.bytes_, "numpy.bytes_", lambda value: bytes.__getitem__(value, slice(None)), np.bytes_, bytes)
for twin in (np.longlong, np.ulonglong):
    if np.dtype(np.dtype(twin).str).type is not twin:
        register_builtin(twin, f"numpy.{twin.__name__}", int, twin, int)
BY_NAME["numpy.zero_width_scalar"] = Codec(
    "numpy.zero_width_scalar", str, lambda text: zero_width(dtype_from_text(text), ())[()], str
)
