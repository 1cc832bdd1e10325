"""Encoder: turns the columns of one batch into specs and sources."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rollferry import _native
from rollferry.errors import UnsupportedValueError
from rollferry.layouts.base import MAX_DEPTH, Spec
from rollferry.layouts.choose import Handler, handler_for
from rollferry.layouts.contents import contains_itself
from rollferry.layouts.numbers import Numbers
from rollferry.layouts.tree.shared import Shared
from rollferry.layouts.tree.union import Union
from rollferry.memory.plan import Source, SpanSource
from rollferry.schema import FieldSchema

__all__ = ["Encoder", "Form"]

Form = Literal["value", "list", "tuple", "array"]
FORMS: dict[type, Form] = {list: "list", tuple: "tuple"}

KEPT_NUMBERS = (
    8 << 20
)  # bytes of a put's numbers to keep between choosing and packing, for want of a second look at each
MIN_SHARED_TEXT = 64  # a str or bytes object of fewer items is cheaper stored again than referred to


class Encoder:
    """State of one put. Not thread-safe.

    Parameters
    ----------
    allow_pickle
        Whether values of unknown classes may be pickled.

    Attributes
    ----------
    specs
        Columns so far, children before parents.
    sources
        Members so far.
    hint
        Schema of the field being encoded.
    """

    def __init__(self, *, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle
        self.specs: list[Spec] = []
        self.sources: list[Source] = []
        self.hint: FieldSchema | None = None
        self._memo = _native.Memo()
        self._memo_columns: list[int | None] = []
        self._parents: list[list[Any]] = []
        self._thorough = False
        self._room = KEPT_NUMBERS

    def column(self, values: list[Any]) -> int:
        """Encode a list that nobody else changes; give its column number."""
        types, tags = _native.type_groups(values)
        if tags is not None:
            return self.add(Union.encode(values, tags, self, self.column))
        handler = handler_for(types[0] if types else type(None), values, self.allow_pickle)
        if not handler.nests:
            return self._encode(values, handler)
        if len(self._parents) >= MAX_DEPTH:
            raise UnsupportedValueError(f"nested more than {MAX_DEPTH} levels deep", values[0])
        thorough = self._thorough
        if _native.are_referenced_elsewhere(values):
            self._check_cycles(values)
            # What lies in a container that can be reached twice can be so too, whatever its own reference count.
            self._thorough = True
        self._parents.append(values)
        number = self._encode(values, handler)
        self._thorough = thorough
        self._parents.pop()
        return number

    def field(self, value: Any, batch: object, *, repeated: bool = False) -> tuple[Form, int]:
        """Encode one field of a batch: a list or tuple row by row, anything else as one value.

        `repeated` tells whether something else refers to the object, which then may be in the batch again.
        """
        self._parents = [[batch, value]]
        self._thorough = repeated
        form = FORMS.get(type(value))
        if form == "list" and value and type(value[0]) in (int, float, bool):
            # From the list itself: a snapshot would take more memory than the numbers, which are checked when written.
            numbers = self.scan_numbers(value)
            if numbers is not None:
                return form, self.add(Numbers.of(numbers, self))
        return (form, self.column(list(value))) if form else ("value", self.column([value]))

    def scan_numbers(self, values: list[Any]) -> _native.NumberColumn | None:
        """Look at a list of numbers, or of rows of them; None where it is no such list."""
        column = _native.number_scan(values, self._room)
        self._room -= 0 if column is None else column.kept_nbytes
        return column

    def add(self, spec: Spec) -> int:
        """Append a finished column; give its number."""
        self.specs.append(spec)
        return len(self.specs) - 1

    def member(self, source: Source) -> int:
        """Append a member; give its number."""
        self.sources.append(source)
        return len(self.sources) - 1

    def array_member(self, array: npt.NDArray[Any]) -> int:
        """Append a member that holds an array which nobody else changes."""
        return self.member(SpanSource(_native.spans_of_buffers([np.ascontiguousarray(array)])))

    def _encode(self, values: list[Any], handler: Handler) -> int:
        """Encode values of one type, those that are shared once only, also where an earlier column has them."""
        if not handler.shares:
            return self.add(handler.encode(values, self))
        token = len(self._memo_columns)
        self._memo_columns.append(None)
        found = self._memo.unique(values, token, MIN_SHARED_TEXT, self._thorough)
        index, uniques, pairs = found if found is not None else (None, values, [])
        own = None
        if uniques:
            own = self.add(handler.encode(uniques, self))
            self._memo_columns[token] = own
        if index is None and own is not None:
            return own
        foreign = []
        for other, position in zip(pairs[::2], pairs[1::2], strict=True):
            column = self._memo_columns[other]
            if column is None:
                raise UnsupportedValueError("contains itself", values[0])
            foreign.append((column, position))
        return self.add(
            Shared(
                rows=len(values),
                index=self.array_member(np.asarray(index, np.int64)),
                own=own,
                foreign=self.array_member(np.array(foreign, np.int64)) if foreign else None,
                sources=sorted({column for column, _ in foreign}),
            )
        )

    def _check_cycles(self, values: list[Any]) -> None:
        """Refuse containers that contain themselves, before their number explodes."""
        if len(self._parents) < 2:
            return
        ids = set(map(id, values))
        for parents in self._parents:
            for parent in parents:
                # A column above also has containers beside those that lead here, so meeting one again proves nothing.
                if id(parent) in ids and contains_itself(parent):
                    raise UnsupportedValueError("contains itself", parent)
