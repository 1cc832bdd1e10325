"""Columns of lists or tuples."""

from collections import abc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import numpy as np

from rollferry import _native
from rollferry.errors import BatchChangedError
from rollferry.layouts.base import Spec, Taken
from rollferry.layouts.lazy import LazyRows
from rollferry.layouts.numbers import Numbers
from rollferry.layouts.rows import Rows

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["Sequence"]

ROW_TYPES: dict[str, type] = {"list": list, "tuple": tuple}


class Sequence(Spec, frozen=True, tag="sequence"):
    """Lists, or tuples, as one child column of all their items and offsets.

    Parameters
    ----------
    type
        Name of the container type.
    offsets
        int64 member, `rows` + 1 offsets into the items.
    items
        Child column.
    """

    layout: ClassVar[str] = "tree"
    why: ClassVar[str] = "lists or tuples; a typed column of all their items"

    type: Literal["list", "tuple"]
    offsets: int
    items: int

    def children(self) -> Iterable[int]:
        return (self.items,)

    def layout_name(self, specs: abc.Sequence[Spec]) -> str:
        return specs[self.items].row_layout_name(specs)

    def is_array_form(self, specs: abc.Sequence[Spec]) -> bool:
        return isinstance(specs[self.items], Numbers)

    def members(self) -> Iterable[int]:
        return (self.offsets,)

    @classmethod
    def encode(cls, values: list[Any], encoder: "Encoder") -> "Sequence":
        """Encode lists, or tuples."""
        numbers = encoder.scan_numbers(values)
        if numbers is not None and numbers.offsets is not None:
            offsets = numbers.offsets
            items = encoder.add(Numbers.of(numbers, encoder))
        else:
            try:
                flat, offsets = _native.flatten(values)
            except RuntimeError as error:
                raise BatchChangedError(str(error)) from None
            items = encoder.column(flat)
        name: Any = type(values[0]).__name__
        return cls(rows=len(values), type=name, offsets=encoder.array_member(offsets), items=items)

    def select(self, rows: Rows, taken: Taken) -> "Sequence":
        taken.column(self.items, taken.offsets(self.offsets, rows))
        return msgspec.structs.replace(self, rows=rows.count)

    def packed(self, source: "Decoder") -> LazyRows | None:
        items = source.specs[self.items]
        if not isinstance(items, Numbers):
            return None
        return LazyRows(items.wide_array(source), source.array(self.offsets, np.dtype(np.int64), self.rows + 1))

    def decode(self, source: "Decoder") -> list[Any]:
        offsets = source.array(self.offsets, np.dtype(np.int64), self.rows + 1)
        return source.rows(self.items, offsets, ROW_TYPES[self.type])
