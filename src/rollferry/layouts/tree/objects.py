"""Columns of numpy object arrays."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rollferry import _native
from rollferry.errors import UnsupportedValueError
from rollferry.layouts.arrays import encode_ndarrays
from rollferry.layouts.base import Spec
from rollferry.layouts.tree.union import Union

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["Objects"]


class Objects(Spec, tag="objects"):
    """Object arrays, as one child column of all their elements.

    Parameters
    ----------
    shapes
        Child column of their shapes, as lists.
    items
        Child column of their elements in C order.
    """

    layout: ClassVar[str] = "tree"
    why: ClassVar[str] = "object arrays; a typed column of all their elements"

    shapes: int
    items: int

    def children(self) -> Iterable[int]:
        return (self.shapes, self.items)

    @classmethod
    def encode(cls, values: list[Any], encoder: "Encoder") -> Spec:
        """Encode ndarrays, some of which hold objects."""
        if not all(value.dtype == object for value in values):
            for value in values:
                if value.dtype.hasobject and value.dtype != object:
                    raise UnsupportedValueError("a structured array with object fields", value)
            return Union.by_key(
                values,
                lambda value: value.dtype == object,
                encoder,
                lambda group: (cls.encode if group[0].dtype == object else encode_ndarrays)(group, encoder),
            )
        items: list[Any] = []
        for value in values:
            items.extend(value.reshape(-1).tolist())
        return cls(
            rows=len(values),
            shapes=encoder.column([list(value.shape) for value in values]),
            items=encoder.column(items),
        )

    def decode(self, source: "Decoder") -> list[Any]:
        shapes = source.column(self.shapes)
        items = source.column(self.items)
        arrays = []
        start = 0
        for shape in shapes:
            stop = start + int(np.prod(shape, dtype=object)) if shape else start + 1
            arrays.append(_native.object_array(items[start:stop], tuple(shape)))
            start = stop
        if start != len(items):
            raise ValueError("the shapes of object arrays don't fit their elements")
        return arrays
