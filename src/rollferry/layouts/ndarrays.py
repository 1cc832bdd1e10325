"""ndarrays of any dtype: sorted out between the array layouts and the tree."""

from typing import TYPE_CHECKING, Any

from rollferry.errors import UnsupportedValueError
from rollferry.layouts.arrays import NUMPY, encode_arrays
from rollferry.layouts.base import Spec
from rollferry.layouts.dtypes import dtype_from_text, dtype_to_text, is_kept, zero_width
from rollferry.layouts.tree.objects import Objects
from rollferry.layouts.tree.registered import BY_NAME, Codec, Registered
from rollferry.layouts.tree.union import Union

if TYPE_CHECKING:
    from rollferry.layouts.encoder import Encoder

__all__ = ["encode_ndarrays"]


def encode_ndarrays(values: list[Any], encoder: "Encoder") -> Spec:
    """Encode ndarrays."""
    dtype = values[0].dtype
    if not dtype.hasobject and dtype.itemsize:
        return encode_arrays(values, NUMPY, encoder, encode_ndarrays)
    if any(value.dtype != dtype for value in values):
        return Union.by_key(
            values, lambda value: dtype_to_text(value.dtype), encoder, lambda group: encode_ndarrays(group, encoder)
        )
    if dtype == object:  # noqa: E721  # no comparison of types
        return Objects.encode(values, encoder)
    if dtype.hasobject:
        raise UnsupportedValueError("a structured array with object fields", values[0])
    is_kept(dtype, values[0])
    parts = [(dtype_to_text(dtype), list(value.shape)) for value in values]
    return Registered.encode_as("numpy.zero_width", parts, encoder)


def decode_zero_width(parts: tuple[str, list[int]]) -> Any:
    """Rebuild an array whose items have no bytes."""
    text, shape = parts
    return zero_width(dtype_from_text(text), tuple(shape))


BY_NAME["numpy.zero_width"] = Codec("numpy.zero_width", tuple, decode_zero_width, tuple)
