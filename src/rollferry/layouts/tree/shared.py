"""Values that occur more than once in a batch, stored once."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from rollferry.errors import BundleError
from rollferry.layouts.arrays import ArraySpec
from rollferry.layouts.base import Spec, Taken
from rollferry.layouts.lazy import LazyRows
from rollferry.layouts.rows import Rows, offsets_of

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder

__all__ = ["Shared"]


class Shared(Spec, frozen=True, tag="shared"):
    """Values referred to by number, so that one object comes back as one object wherever it was.

    Parameters
    ----------
    index
        int64 member: value i is number index[i] of `own`, or where negative number -1 - index[i] of `foreign`.
    own
        Column of the objects seen here first.
    foreign
        int64 member of (column, position) pairs: objects of earlier columns.
    sources
        The columns that `foreign` names, rising.
    """

    layout: ClassVar[str] = "tree"
    why: ClassVar[str] = "the same objects occur several times; each is stored once"

    index: int
    own: int | None = None
    foreign: int | None = None
    sources: list[int] = []  # noqa: RUF012  # msgspec copies it

    def children(self) -> Iterable[int]:
        return () if self.own is None else (self.own,)

    def references(self) -> Iterable[int]:
        return self.sources

    def layout_name(self, specs: Sequence[Spec]) -> str:
        return specs[self.sources[0] if self.own is None else self.own].layout_name(specs)

    def row_layout_name(self, specs: Sequence[Spec]) -> str:
        return specs[self.sources[0] if self.own is None else self.own].row_layout_name(specs)

    def is_array_form(self, specs: Sequence[Spec]) -> bool:
        return all(specs[number].is_array_form(specs) for number in (*self.children(), *self.sources))

    def members(self) -> Iterable[int]:
        return (self.index,) if self.foreign is None else (self.index, self.foreign)

    def lazy(self, source: "Decoder") -> LazyRows | None:
        spec = source.specs[self.sources[0] if self.own is None else self.own]
        if not isinstance(spec, ArraySpec):
            return None
        # Rows that are stored once have to be repeated, so this takes a copy: the type must not depend on repetitions.
        rows = self.decode(source)
        if not rows:
            other = spec.lazy(source)  # of the same form, though it may have rows that only other columns refer to
            return None if other is None else LazyRows(other.values[:0], np.zeros(1, np.int64))
        values = spec.target().join(rows)
        if values is None:
            return None
        return LazyRows(values, offsets_of([len(row) for row in rows]))

    def select(self, rows: Rows, taken: Taken) -> "Shared":
        index = taken.read(self.index, np.dtype(np.int64), rows).copy()
        own, own_index = np.unique(index[index >= 0], return_inverse=True)
        foreign, foreign_index = np.unique(-1 - index[index < 0], return_inverse=True)
        if (len(own) and self.own is None) or (len(foreign) and self.foreign is None):
            raise BundleError("a shared value refers to nothing")
        if self.own is not None:
            taken.column(self.own, Rows.at(own))
        if self.foreign is not None:
            self.refer(self.foreign, Rows.at(foreign), taken)
        index[index >= 0], index[index < 0] = own_index, -1 - foreign_index
        taken.store(self.index, index)
        return msgspec.structs.replace(self, rows=rows.count)

    def is_rebuilt_first(self) -> bool:
        return True

    def refer(self, foreign: int, rows: Rows, taken: Taken) -> None:
        """Ask for what some of the pairs refer to."""
        pairs = taken.read(foreign, np.dtype((np.int64, 2)), rows)
        if not set(pairs[:, 0].tolist()) <= set(self.sources):
            raise BundleError("a shared value refers to nothing")
        taken.refer(foreign, pairs, self.sources)

    def decode(self, source: "Decoder") -> list[Any]:
        index = source.array(self.index, np.dtype(np.int64), self.rows)
        objects = [] if self.own is None else source.column(self.own)
        own = len(objects)
        if self.foreign is not None:
            pairs = source.array(self.foreign, np.dtype(np.int64)).reshape(-1, 2)
            columns = {number: source.column(number) for number in self.sources}
            objects = objects + [pick(columns, column, position) for column, position in pairs.tolist()]
        where = np.where(index >= 0, index, own - 1 - index)
        if self.rows and (where.min() < 0 or where.max() >= len(objects) or index.max() >= own):
            raise BundleError("a shared value refers to nothing")
        return [objects[i] for i in where.tolist()]


def pick(columns: dict[int, list[Any]], column: int, position: int) -> Any:
    """Give one object of a column; BundleError where it isn't there."""
    if column not in columns or not 0 <= position < len(columns[column]):
        raise BundleError("a shared value refers to nothing")
    return columns[column][position]
