"""Columns of numpy object arrays."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from rollferry import _native
from rollferry.layouts.base import MAX_NDIM, Spec

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["Objects"]


class Objects(Spec, frozen=True, tag="objects"):
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
    def encode(cls, values: list[Any], encoder: "Encoder") -> "Objects":
        """Encode arrays of dtype object."""
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
            if len(shape) > MAX_NDIM:
                raise ValueError(f"an object array of {len(shape)} dimensions")
            stop = start + math.prod(shape)
            array = _native.object_array(items[start:stop], tuple(shape))
            array.flags.writeable = not source.readonly
            arrays.append(array)
            start = stop
        if start != len(items):
            raise ValueError("the shapes of object arrays don't fit their elements")
        return arrays
