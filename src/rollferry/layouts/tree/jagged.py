"""Jagged nested tensors of torch: values, offsets and, where there are gaps, lengths."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from rollferry.errors import BundleError
from rollferry.layouts.base import Spec, Taken
from rollferry.layouts.optional import load
from rollferry.layouts.rows import Rows, offsets_of

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["Jagged"]


class Jagged(Spec, frozen=True, tag="jagged"):
    """Jagged nested tensors, as child columns of what they consist of. Tensors with the same offsets keep them so.

    Parameters
    ----------
    values
        Child column of all their components, joined along the ragged dimension.
    offsets
        Child column of int tensors: where each component begins, and the last one ends.
    lengths
        Child column of int tensors, or None where each component ends where the next one begins.
    axes
        Child column of their ragged dimensions, ints.
    """

    layout: ClassVar[str] = "tree"
    why: ClassVar[str] = "jagged nested tensors, as values and offsets"

    values: int
    offsets: int
    lengths: int
    axes: int

    def children(self) -> Iterable[int]:
        return (self.values, self.offsets, self.lengths, self.axes)

    @classmethod
    def encode(cls, values: list[Any], encoder: "Encoder") -> "Jagged":
        """Encode jagged nested tensors."""
        parts = [load("torch").encode_jagged(value) for value in values]
        numbers = [encoder.column([part[place] for part in parts]) for place in range(4)]
        return cls(rows=len(values), values=numbers[0], offsets=numbers[1], lengths=numbers[2], axes=numbers[3])

    def select(self, rows: Rows, taken: Taken) -> "Jagged":
        for number in self.children():
            taken.column(number, rows)
        return msgspec.structs.replace(self, rows=rows.count)

    def may_have_axis(self) -> bool:
        return True

    def inner_rows(self, taken: Taken) -> int | None:
        return len(self._spans(taken)[0])

    def select_inner(self, rows: Rows, taken: Taken) -> "JaggedRows":
        spans, axis = self._spans(taken)
        # With gaps they may, and a few bytes would come back as many.
        if (spans[1:, 0] < np.maximum.accumulate(spans[:, 1])[:-1]).any():
            raise BundleError("components of a jagged tensor overlap; get all of it")
        chosen = rows.indices()
        starts, stops = spans[chosen, 0], spans[chosen, 1]
        items = Rows(starts, stops).joined()
        if axis == 1:
            later = taken.inner(self.values, items)
        else:  # the components lie side by side, so that all of them are fetched
            taken.column(self.values, Rows.span(0, 1))
            later = items.indices()
        return JaggedRows(
            rows=1,
            values=self.values,
            offsets=self.offsets,
            lengths=self.lengths,
            axes=self.axes,
            axis=axis,
            bounds=taken.new_member(offsets_of(stops - starts)),
            later=None if later is None else taken.new_member(later),
        )

    def _spans(self, taken: Taken) -> tuple[Any, int]:
        """Give start and stop of each component of the only tensor, and its ragged dimension."""
        parts = [taken.values(number) for number in (self.offsets, self.lengths, self.axes)]
        if any(len(part) != 1 for part in parts):
            raise BundleError("a jagged tensor lacks its offsets")
        [offsets], [lengths], [axis] = parts
        spans: Any = load("torch").jagged_spans(offsets, lengths)
        if type(axis) is not int:
            raise BundleError("the ragged dimension of a jagged tensor is none of its own")
        return spans, axis

    def decode(self, source: "Decoder") -> list[Any]:
        parts = [source.column(number) for number in self.children()]
        decode = load("torch").decode_jagged
        return [decode(part) for part in zip(*parts, strict=True)]

    def dtype_name(self) -> str:
        return "torch.jagged"


class JaggedRows(Jagged, frozen=True, tag="jagged_rows", kw_only=True):
    """Some components of a jagged nested tensor; only made for a get, never stored.

    Parameters
    ----------
    axis
        Its ragged dimension.
    bounds
        Member of its offsets.
    later
        Member of the numbers of the items to take along the ragged dimension; None where no others were fetched.
    """

    axis: int
    bounds: int
    later: int | None = None

    def decode(self, source: "Decoder") -> list[Any]:
        [values] = source.column(self.values)
        torch_types = load("torch")
        bounds = source.bytes(self.bounds).view(np.int64)
        if self.later is not None:
            values = torch_types.take(values, source.bytes(self.later).view(np.int64), self.axis - 1)
        return [torch_types.jagged_of(values, bounds, self.axis)]
