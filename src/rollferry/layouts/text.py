"""text: strings and bytes, as their bytes one after the other, and offsets."""

import builtins
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import numpy as np

from rollferry import _native
from rollferry.layouts.base import Int64Array, Spec, Taken
from rollferry.layouts.rows import Rows
from rollferry.memory.plan import SpanSource

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["Text"]


class Text(Spec, frozen=True, tag="text"):
    """Values of one type out of str, bytes and bytearray.

    Parameters
    ----------
    type
        Name of that type.
    offsets
        int64 member, `rows` + 1 byte offsets into `data`.
    data
        Member with the bytes; str as UTF-8, where lone surrogates are three bytes each.
    """

    layout: ClassVar[str] = "text"
    why: ClassVar[str] = "strings or bytes"

    type: Literal["str", "bytes", "bytearray"]
    offsets: int
    data: int

    def members(self) -> Iterable[int]:
        return (self.offsets, self.data)

    @classmethod
    def encode(cls, values: list[Any], encoder: "Encoder") -> "Text":
        """Encode values of one exact type."""
        spans, offsets = _native.text_scan(values)
        return cls(
            rows=len(values),
            type=type(values[0]).__name__,  # type: ignore[arg-type]
            offsets=encoder.array_member(offsets),
            data=encoder.member(SpanSource(spans)),
        )

    def select(self, rows: Rows, taken: Taken) -> "Text":
        taken.keep(self.data, 1, taken.offsets(self.offsets, rows))
        return msgspec.structs.replace(self, rows=rows.count)

    def decode(self, source: "Decoder") -> list[Any]:
        return _native.text_list(source.bytes(self.data), self._offsets(source), self.type)

    def decode_rows(self, source: "Decoder", offsets: Int64Array, row_type: builtins.type[Any]) -> list[Any]:
        return _native.text_rows(source.bytes(self.data), self._offsets(source), offsets, self.type, row_type)

    def row_layout_name(self, specs: Sequence[Spec]) -> str:
        return self.layout

    def dtype_name(self) -> str:
        return self.type

    def _offsets(self, source: "Decoder") -> Int64Array:
        return source.places(self.offsets, np.dtype(np.int64), self.rows + 1)
