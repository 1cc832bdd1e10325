"""pickled: values of unknown classes, only where both sides allow it."""

import pickle
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rollferry.errors import UnsupportedValueError
from rollferry.layouts.base import Spec, Taken
from rollferry.layouts.rows import Rows

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["Pickled"]


class Pickled(Spec, frozen=True, tag="pickled"):
    """Values pickled one by one.

    Parameters
    ----------
    column
        Child column of their pickles, as bytes.
    """

    layout: ClassVar[str] = "pickled"
    why: ClassVar[str] = "a class that no layout knows, pickled because allow_pickle=True"

    column: int

    def children(self) -> Iterable[int]:
        return (self.column,)

    @classmethod
    def encode(cls, values: list[Any], encoder: "Encoder") -> "Pickled":
        """Pickle values. Raises UnsupportedValueError where one can't be pickled, or pickling isn't allowed."""
        if not encoder.allow_pickle:
            raise UnsupportedValueError("pickling needs allow_pickle=True on both sides", values[0] if values else None)
        pickles = []
        for value in values:
            try:
                pickles.append(pickle.dumps(value, protocol=5))
            except Exception as error:
                raise UnsupportedValueError(f"can't be pickled: {error}", value) from error
        return cls(rows=len(values), column=encoder.column(pickles))

    def select(self, rows: Rows, taken: Taken) -> "Pickled":
        taken.column(self.column, rows)
        return msgspec.structs.replace(self, rows=rows.count)

    def decode(self, source: "Decoder") -> list[Any]:
        if not source.allow_pickle:
            raise UnsupportedValueError("the bundle has pickled values; read it with allow_pickle=True if you trust it")
        return [pickle.loads(data) for data in source.column(self.column)]  # noqa: S301  # allowed on both sides
