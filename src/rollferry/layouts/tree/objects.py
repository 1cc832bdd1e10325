"""Columns of numpy object arrays."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from rollferry import _native
from rollferry.errors import BundleError
from rollferry.layouts.base import MAX_NDIM, MAX_SIDE, Spec, Taken
from rollferry.layouts.rows import Rows

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

    def select(self, rows: Rows, taken: Taken) -> "Objects":
        sizes = np.array([math.prod(shape) for shape in self._shapes(taken)], np.int64)
        stops = np.cumsum(sizes)
        chosen = rows.indices()
        taken.column(self.items, Rows(stops[chosen] - sizes[chosen], stops[chosen]).joined())
        taken.column(self.shapes, rows)
        return msgspec.structs.replace(self, rows=rows.count)

    def may_have_axis(self) -> bool:
        return True

    def inner_rows(self, taken: Taken) -> int | None:
        (shape,) = self._shapes(taken)
        return shape[0] if shape else None

    def select_inner(self, rows: Rows, taken: Taken) -> "Objects":
        (shape,) = self._shapes(taken)
        taken.column(self.items, rows.scaled(math.prod(shape[1:])).joined())
        return ObjectRows(rows=1, shapes=self.shapes, items=self.items, shape=[rows.count, *shape[1:]])

    def _shapes(self, taken: Taken) -> list[list[int]]:
        shapes = taken.values(self.shapes)
        if len(shapes) != self.rows or not all(map(is_shape, shapes)):
            raise BundleError("the shapes of object arrays are no shapes")
        return shapes

    def decode(self, source: "Decoder") -> list[Any]:
        shapes = self.decoded_shapes(source)
        items = source.column(self.items)
        arrays = []
        start = 0
        for shape in shapes:
            if not is_shape(shape):
                raise BundleError("the shapes of object arrays are no shapes")
            stop = start + math.prod(shape)
            array = _native.object_array(items[start:stop], tuple(shape))
            array.flags.writeable = not source.readonly
            arrays.append(array)
            start = stop
        if start != len(items):
            raise ValueError("the shapes of object arrays don't fit their elements")
        return arrays

    def decoded_shapes(self, source: "Decoder") -> list[Any]:
        """Give the shape of each array."""
        return source.column(self.shapes)


def is_shape(shape: object) -> bool:
    """Whether a value is a shape. Anything else might be a range of 2**40, or have a product that takes minutes."""
    return (
        type(shape) is list
        and len(shape) <= MAX_NDIM
        and all(type(size) is int and 0 <= size < MAX_SIDE for size in shape)
    )


class ObjectRows(Objects, frozen=True, tag="object_rows", kw_only=True):
    """Some rows of an object array; only made for a get, never stored.

    Parameters
    ----------
    shape
        Its shape.
    """

    shape: list[int]

    def decoded_shapes(self, source: "Decoder") -> list[Any]:
        return [self.shape]
