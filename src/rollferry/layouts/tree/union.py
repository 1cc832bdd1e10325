"""Columns of several kinds of values, None among them too."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from rollferry.errors import BundleError, UnsupportedValueError
from rollferry.layouts.base import Spec, Taken
from rollferry.layouts.rows import Rows
from rollferry.layouts.tree.null import Null

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["Union"]


class Union(Spec, frozen=True, tag="union"):
    """One child column for each kind, and a tag for each value that says which child has it.

    Parameters
    ----------
    tags
        Member of `rows` uint8 tags, uint16 where there are more than 256 children.
    columns
        Child columns, each with its values in order.
    """

    layout: ClassVar[str] = "tree"
    why: ClassVar[str] = "values of several kinds; a typed column for each"

    tags: int
    columns: list[int]

    def children(self) -> Iterable[int]:
        return self.columns

    def layout_name(self, specs: Sequence[Spec]) -> str:
        names = {specs[number].layout_name(specs) for number in self.columns if not isinstance(specs[number], Null)}
        return names.pop() if len(names) == 1 else self.layout

    def is_array_form(self, specs: Sequence[Spec]) -> bool:
        return all(specs[number].is_array_form(specs) for number in self.columns)

    def members(self) -> Iterable[int]:
        return (self.tags,)

    @classmethod
    def encode(
        cls,
        values: list[Any],
        tags: npt.NDArray[np.uint16],
        encoder: "Encoder",
        encode: Callable[[list[Any]], int],
    ) -> "Union":
        """Encode values by their tags; `encode` gives the column number of one child."""
        count = int(tags.max()) + 1
        groups: list[list[Any]] = [[] for _ in range(count)]
        for value, tag in zip(values, tags.tolist(), strict=True):
            groups[tag].append(value)
        columns = [encode(group) for group in groups]
        narrow = tags.astype(np.uint8) if count <= 256 else tags
        return cls(rows=len(values), tags=encoder.array_member(narrow), columns=columns)

    @classmethod
    def by_key(
        cls,
        values: list[Any],
        key: Callable[[Any], Hashable],
        encoder: "Encoder",
        encode: Callable[[list[Any]], Spec],
    ) -> "Union":
        """Encode values of one type that differ in `key`, such as the dtype."""
        numbers: dict[Hashable, int] = {}
        tags = np.array([numbers.setdefault(key(value), len(numbers)) for value in values])
        if len(numbers) > 65535:
            raise UnsupportedValueError("more than 65,535 kinds of values in one column", values[0])
        return cls.encode(values, tags.astype(np.uint16), encoder, lambda group: encoder.add(encode(group)))

    def select(self, rows: Rows, taken: Taken) -> "Union":
        tags = taken.read(self.tags, self._tags_dtype(), rows.up_to_last())
        for tag, number in enumerate(self.columns):
            taken.column(number, rows.among(tags == tag))
        taken.store(self.tags, tags[rows.indices()])
        return msgspec.structs.replace(self, rows=rows.count)

    def decode(self, source: "Decoder") -> list[Any]:
        tags = source.places(self.tags, self._tags_dtype(), self.rows)
        children = [source.column(number) for number in self.columns]
        counts = np.bincount(tags, minlength=len(children)).tolist()
        if counts != [len(child) for child in children]:
            raise BundleError("the tags of a mixed column don't fit its children")
        following = [iter(child).__next__ for child in children]
        return [following[tag]() for tag in tags.tolist()]

    def _tags_dtype(self) -> "np.dtype[Any]":
        return np.dtype(np.uint8 if len(self.columns) <= 256 else np.uint16)
