"""Columns of None."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from rollferry.errors import BundleError
from rollferry.layouts.base import Spec, Taken
from rollferry.layouts.rows import Rows

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["Null"]


class Null(Spec, frozen=True, tag="null"):
    """Nothing but None, or no values at all.

    Parameters
    ----------
    bitmap
        Member of a zero bit for each value, None where there are none. It bounds `rows` by the size of the bundle, so
        that a hostile manifest can't ask for a huge list.
    """

    layout: ClassVar[str] = "tree"
    why: ClassVar[str] = "None only, or empty"

    bitmap: int | None = None

    def members(self) -> Iterable[int]:
        return () if self.bitmap is None else (self.bitmap,)

    @classmethod
    def encode(cls, values: list[Any], encoder: "Encoder") -> "Null":
        """Encode a list of None."""
        rows = len(values)
        return cls(rows=rows, bitmap=encoder.array_member(np.zeros((rows + 7) // 8, np.uint8)) if rows else None)

    def is_array_form(self, specs: Sequence[Spec]) -> bool:
        return True

    def select(self, rows: Rows, taken: Taken) -> "Null":
        if self.bitmap is None:
            if self.rows:
                raise BundleError("a column of None lacks its bitmap")
            return self
        taken.keep(self.bitmap, 1, Rows.span(0, (self.rows + 7) // 8))  # that it is there bounds the number of rows
        taken.store(self.bitmap, np.zeros((rows.count + 7) // 8, np.uint8))
        return msgspec.structs.replace(self, rows=rows.count)

    def decode(self, source: "Decoder") -> list[Any]:
        if self.bitmap is not None:
            source.array(self.bitmap, np.dtype(np.uint8), (self.rows + 7) // 8)
        elif self.rows:
            raise ValueError("a column of None lacks its bitmap")
        return [None] * self.rows
