"""The contract of a layout."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.lazy import LazyRows
    from rollferry.layouts.rows import Rows

__all__ = ["MAX_DEPTH", "MAX_NDIM", "MAX_SIDE", "Count", "Int64Array", "Spec", "Taken"]

MAX_NDIM = 64  # dimensions of an array, numpy's limit
MAX_SIDE = 1 << 50  # of dimensions of arrays without elements; others are bounded by memory
MAX_DEPTH = 100  # levels of nesting in a batch; each takes a few Python frames on both sides

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Int64Array = npt.NDArray[np.int64]


class Taken(Protocol):
    """What is taken of a bundle, so that some rows can be rebuilt from it as if it were all that there is.

    A column that was asked for is told by its `Spec.select`, and tells in turn what it needs. Members keep their numbers, and
    hold only what was taken. All methods raise BundleError for what is not there.
    """

    def read(self, member: int, dtype: "np.dtype[Any]", rows: "Rows") -> npt.NDArray[Any]:
        """Give a copy of items of a member now, one after the other; they are not kept."""

    def keep(self, member: int, nbytes: int, rows: "Rows") -> None:
        """Have a member hold items of `nbytes` bytes each."""

    def store(self, member: int, values: npt.NDArray[Any]) -> None:
        """Have a member hold these values."""

    def new_member(self, values: npt.NDArray[Any]) -> int:
        """Add a member with these values; give its number."""

    def offsets(self, member: int, rows: "Rows") -> "Rows":
        """Have a member of offsets hold those of the rows, from 0 on; give the spans that they had."""

    def column(self, number: int, rows: "Rows") -> None:
        """Ask for rows of a child column."""

    def inner(self, column: int, rows: "Rows") -> Int64Array | None:
        """Ask for rows along the first axis of the only value of a child column; give those to take once it is rebuilt."""

    def refer(self, member: int, pairs: Int64Array, columns: list[int]) -> None:
        """Ask for single rows, as (column, position) pairs, of columns that others own; the member will say where they are."""

    def values(self, number: int) -> list[Any]:
        """Rebuild a whole child column now."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True, forbid_unknown_fields=True):
    """Data-free description of one encoded column.

    A subclass is one kind of column. It is written into the manifest, names its members and child columns by their
    numbers there, and knows how to decode itself; children come before their parents. Its class method ``encode``
    takes the values and an Encoder.

    Parameters
    ----------
    rows
        Number of values.
    version
        Version of this kind's format.
    """

    layout: ClassVar[str]  #: name of the layout that the kind belongs to
    why: ClassVar[str]  #: which values the kind is for
    current_version: ClassVar[int] = 1

    rows: Count
    version: int = 1

    def children(self) -> Iterable[int]:
        """Give the numbers of the child columns that this column owns."""
        return ()

    def references(self) -> Iterable[int]:
        """Give the numbers of earlier columns whose objects it refers to without owning them."""
        return ()

    def members(self) -> Iterable[int]:
        """Give the numbers of its payload members."""
        return ()

    def decode(self, source: "Decoder") -> list[Any]:
        """Rebuild the values, `rows` of them."""
        raise NotImplementedError

    def select(self, rows: "Rows", taken: Taken) -> "Spec":
        """Take what is needed to rebuild some rows, and give the spec that does so. `rows` fit."""
        raise NotImplementedError

    def may_have_axis(self) -> bool:
        """Whether the only value may be an array or the like with a first axis, as far as the spec tells."""
        return self.is_rebuilt_first()

    def is_rebuilt_first(self) -> bool:
        """Whether rows along the first axis are taken once the only value is rebuilt, and not by `select_inner`."""
        return False

    def inner_rows(self, taken: Taken) -> int | None:
        """Give the length of the first axis of the only value; None where it has none, or is rebuilt first."""
        return None

    def select_inner(self, rows: "Rows", taken: Taken) -> "Spec":
        """Do as `select` for rows along the first axis of the only value, where `inner_rows` gives a length."""
        raise NotImplementedError

    def lazy(self, source: "Decoder") -> "LazyRows | None":
        """Give the values as uncut rows, where values and offsets are all there is to them."""
        return None

    def packed(self, source: "Decoder") -> "LazyRows | None":
        """Give rows of numbers or arrays as typed values and offsets; None where they are something else."""
        return self.lazy(source)

    def decode_rows(self, source: "Decoder", offsets: Int64Array, row_type: type) -> list[Any] | None:
        """Rebuild the values grouped into lists or tuples by offsets; None where that is no faster than grouping them."""
        return None

    def layout_name(self, specs: Sequence["Spec"]) -> str:
        """Name the layout as a user sees it: that of what the column consists of, besides None and repetition."""
        return self.layout

    def row_layout_name(self, specs: Sequence["Spec"]) -> str:
        """Name the layout of lists whose items the column holds."""
        return "tree"

    def is_array_form(self, specs: Sequence["Spec"]) -> bool:
        """Whether the values are arrays, None, or lists of numbers, so that they can come back as arrays."""
        return False

    def needs_writable(self) -> bool:
        """Whether the values are tensors, which can't be read-only, so that their memory has to be writable."""
        return False

    def dtype_name(self) -> str:
        """Give the dtype of the stored numbers as text, empty where there is none."""
        return ""
