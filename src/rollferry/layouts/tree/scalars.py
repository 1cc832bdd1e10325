"""Columns of numpy scalars."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rollferry.layouts.base import Spec
from rollferry.layouts.dtypes import NumpyDType, dtype_of, encode_dtype, is_kept
from rollferry.layouts.tree.registered import Registered
from rollferry.layouts.tree.union import Union

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["Scalars"]


class Scalars(Spec, tag="scalars"):
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
        """Encode scalars of one exact class, str and bytes as text since arrays would cut their trailing zeros."""
        kind = type(values[0])
        if kind is np.str_:
            return Registered.encode_as("numpy.str_", [str(value) for value in values], encoder)
        if kind is np.bytes_:
            return Registered.encode_as("numpy.bytes_", [bytes(value) for value in values], encoder)
        if any(value.dtype != values[0].dtype for value in values):
            return Union.by_key(values, lambda value: value.dtype, encoder, lambda group: cls.encode(group, encoder))
        is_kept(values[0].dtype, values[0])
        data = np.frombuffer(b"".join([value.tobytes() for value in values]), np.uint8)
        return cls(rows=len(values), dtype=encode_dtype(values[0].dtype), data=encoder.array_member(data))

    def decode(self, source: "Decoder") -> list[Any]:
        array = source.array(self.data, dtype_of(self.dtype), self.rows)
        return [array[i] for i in range(len(array))]

    def dtype_name(self) -> str:
        return str(dtype_of(self.dtype))
