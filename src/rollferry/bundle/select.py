"""Selection: the parts of one bundle that some fields and rows need, fetched and put together."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rollferry import _native
from rollferry.bundle.manifest import Field
from rollferry.bundle.stages import Stage
from rollferry.engines.base import Bytes
from rollferry.errors import BundleError, EngineError
from rollferry.layouts.base import Int64Array, Spec
from rollferry.layouts.decoder import Decoder
from rollferry.layouts.indexed import first_axis
from rollferry.layouts.rows import Rows, offsets_of
from rollferry.layouts.tree.shared import Shared
from rollferry.memory.leases import allocate, gather
from rollferry.memory.pieces import merged

__all__ = ["Options", "Selection"]

PAIR_NBYTES = 16
EMPTY_ROWS = 1 << 20  # rows that may take no bytes at all, as those of arrays with an empty axis do
NEAR = 128  # bytes between two ranges that are fetched along over a network, for one request less


class Options(NamedTuple):
    """How values are rebuilt.

    Parameters
    ----------
    allow_pickle
        Whether pickled values may be read.
    readonly
        Whether arrays come back read-only.
    networked
        Whether a request costs more than a few bytes.
    """

    allow_pickle: bool = False
    readonly: bool = False
    networked: bool = False


class Selection:
    """The parts of one bundle that are asked for; see `Taken` for what its columns call.

    First everything is asked for, by `whole`, `rows` and `inner`. Then `decoder` fetches it and gives a Decoder, for which the
    columns asked for have their numbers and only the rows asked for.

    Parameters
    ----------
    stage
        The bundle, open.
    options
        How values are rebuilt.

    Attributes
    ----------
    specs
        Those of the manifest, and in place of those asked for the ones of their rows.
    fetched_nbytes
        Bytes fetched so far, those fetched only to verify others too.
    """

    def __init__(self, stage: Stage, options: Options) -> None:
        self._near = NEAR if options.networked else 0
        self._stage = stage
        self._manifest = manifest = stage.manifest
        self._options = options
        self._count = len(manifest.columns)
        self._shared = {number for spec in manifest.columns for number in spec.references()}
        # Twice: a column that others refer to, and whose owner wants other rows of it than they do, needs two numbers.
        self.specs: list[Spec] = [*manifest.columns, *manifest.columns]
        self._wanted: dict[int, Rows] = {}
        self._inner: dict[int, Rows] = {}
        self._whole: set[int] = set()
        self._pairs: dict[int, Int64Array] = {}
        self._referred: dict[int, list[Int64Array]] = {}
        self._homes: dict[int, tuple[int, Int64Array | None]] = {}
        self._kept: dict[int, tuple[int, Rows]] = {}
        self._members: dict[int, Bytes] = {}
        self._values: dict[int, list[Any]] = {}
        self._new_members = len(manifest.members)
        self.fetched_nbytes = 0

    @property
    def payload_nbytes(self) -> int:
        """Bytes of the payload."""
        return self._manifest.payload_nbytes

    def whole(self, column: int) -> None:
        """Ask for a column as it is."""
        self._whole.add(column)

    def rows(self, column: int, rows: Rows) -> None:
        """Ask for rows of a column."""
        self._wanted[column] = rows

    def inner(self, column: int, rows: Rows) -> Int64Array | None:
        """Ask for rows along the first axis of the only value of a column; give those to take once it is rebuilt."""
        # One that others refer to as a whole has to stay whole.
        if self._manifest.columns[column].is_rebuilt_first() or column in self._shared:
            self.whole(column)
            return rows.indices()
        self._inner[column] = rows
        return None

    def row_count(self, field: Field) -> int | None:
        """Give the number of rows of a field; None where it doesn't hold a value per sample.

        Raises BundleError where there are more than the bundle can have: naming each of them would take memory.
        """
        count = self._stated_rows(field)
        if count is not None and count > 8 * self._manifest.payload_nbytes + EMPTY_ROWS:
            raise BundleError(f"field {field.key!r} says that it has {count:,} rows, which is more than there are bits")
        return count

    def _stated_rows(self, field: Field) -> int | None:
        spec = self._manifest.columns[field.column]
        if not field.row_aligned:
            return None
        if field.form != "value":
            return spec.rows
        if spec.rows != 1:
            return None
        return first_axis(self.values(field.column)[0]) if spec.is_rebuilt_first() else spec.inner_rows(self)

    def decoder(self, *, writable: bool) -> Decoder:
        """Fetch what was asked for."""
        # Columns come before those that ask for them, so all that is asked of one is known when its turn comes.
        for number in range(self._count - 1, -1, -1):
            self._resolve(number)
        self._place_references()
        self._fetch(writable=writable)
        return Decoder(
            self.specs,
            self._members.__getitem__,
            allow_pickle=self._options.allow_pickle,
            readonly=self._options.readonly,
        )

    def read(self, member: int, dtype: "np.dtype[Any]", rows: Rows) -> npt.NDArray[Any]:
        spans = rows.scaled(dtype.itemsize).joined()
        place = self._checked(member, dtype.itemsize, rows)
        (data,) = self._fetched([Rows(spans.starts + place, spans.stops + place)], writable=False)
        return data.view(dtype.base).reshape(-1, *dtype.shape).copy()  # as in Decoder.places

    def keep(self, member: int, nbytes: int, rows: Rows) -> None:
        self._checked(member, nbytes, rows)
        self._kept[member] = (nbytes, rows)

    def store(self, member: int, values: npt.NDArray[Any]) -> None:
        self._kept.pop(member, None)
        self._members[member] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)

    def new_member(self, values: npt.NDArray[Any]) -> int:
        number = self._new_members
        self._new_members += 1
        self.store(number, values)
        return number

    def offsets(self, member: int, rows: Rows) -> Rows:
        spans = rows.joined()
        dtype = np.dtype(np.int64)
        # One more for each span: where its last row ends.
        found = self.read(member, dtype, Rows(spans.starts, spans.stops + 1))
        firsts = np.cumsum(spans.stops - spans.starts + 1) - (spans.stops - spans.starts + 1)
        items = Rows(found[firsts], found[firsts + spans.stops - spans.starts])
        lengths = np.delete(np.diff(found), firsts[1:] - 1) if len(found) else found
        if len(found) and (lengths.min() < 0 or found.min() < 0 or overlap(spans, items)):
            raise BundleError("offsets fall")
        self.store(member, offsets_of(lengths))
        return items.joined()

    def column(self, number: int, rows: Rows) -> None:
        if not rows.fit(self._manifest.columns[number].rows):
            raise BundleError(f"column {number} does not have the rows that are referred to")
        self._wanted[number] = rows

    def refer(self, member: int, pairs: Int64Array, columns: list[int]) -> None:
        self._pairs[member] = pairs
        for number in columns:
            self._referred.setdefault(number, []).append(pairs[pairs[:, 0] == number, 1])

    def values(self, number: int) -> list[Any]:
        if number not in self._values:
            self._values[number] = self._values_of(number)
        return self._values[number]

    def _values_of(self, number: int) -> list[Any]:
        selection = Selection(self._stage, self._options)
        selection.whole(number)
        # Jagged tensors write to their memory, and it must not be that of a stored bundle.
        writable = any(spec.needs_writable() for spec in self._manifest.columns)
        values = selection.decoder(writable=writable).column(number)
        self.fetched_nbytes += selection.fetched_nbytes
        return values

    def _resolve(self, number: int) -> None:
        """Have a column take what was asked of it."""
        spec = self._manifest.columns[number]
        if number in self._whole:
            for member in spec.members():
                self._kept[member] = (1, Rows.span(0, self._manifest.members[member].nbytes))
            self._whole.update(spec.children())
            if isinstance(spec, Shared) and spec.foreign is not None:
                spec.refer(spec.foreign, Rows.span(0, self._manifest.members[spec.foreign].nbytes // PAIR_NBYTES), self)
            return
        referred = self._referred.get(number)
        if referred is None:
            if number in self._inner:
                self.specs[number] = spec.select_inner(self._inner[number], self)
            elif number in self._wanted:
                self.specs[number] = spec.select(self._wanted[number], self)
            return
        wanted = self._wanted.get(number)
        positions = np.unique(np.concatenate([*referred, *([] if wanted is None else [wanted.indices()])]))
        rows = Rows.at(positions)
        if not rows.fit(spec.rows):
            raise BundleError(f"column {number} does not have the rows that are referred to")
        home = number if wanted is None else number + self._count
        self.specs[home] = spec.select(rows, self)
        self._homes[number] = (home, positions)
        if wanted is not None:
            # The owner shares the objects with the others.
            chosen = wanted.indices()
            pairs = np.stack([np.full(len(chosen), home), np.searchsorted(positions, chosen)], axis=1)
            self.specs[number] = Shared(
                rows=len(chosen),
                index=self.new_member(-1 - np.arange(len(chosen))),
                foreign=self.new_member(pairs),
                sources=[home],
            )

    def _place_references(self) -> None:
        """Say where the columns that others refer to are now."""
        for number, spec in enumerate(self.specs):
            if not isinstance(spec, Shared) or spec.foreign not in self._pairs:
                continue
            pairs = self._pairs[spec.foreign].copy()
            for source in spec.sources:
                home, positions = self._homes.get(source, (source, None))
                of_source = self._pairs[spec.foreign][:, 0] == source
                pairs[of_source, 0] = home
                if positions is not None:
                    pairs[of_source, 1] = np.searchsorted(positions, pairs[of_source, 1])
            self.store(spec.foreign, pairs)
            homes = sorted(self._homes.get(source, (source, None))[0] for source in spec.sources)
            self.specs[number] = msgspec.structs.replace(spec, sources=homes)

    def _fetch(self, *, writable: bool) -> None:
        """Fetch all that members are to hold, in one go."""
        spans = []
        for member, (nbytes, rows) in self._kept.items():
            place = self._manifest.members[member].offset
            of_member = rows.scaled(nbytes).joined()
            spans.append(Rows(of_member.starts + place, of_member.stops + place))
        self._members.update(zip(self._kept, self._fetched(spans, writable=writable), strict=True))

    def _fetched(self, spans: Sequence[Rows], *, writable: bool) -> list[Bytes]:
        """Fetch spans of bytes, none of them empty, and verify them; give those of each item one after the other."""
        if not spans:
            return []
        verification = self._stage.verification
        starts, stops = np.concatenate([s.starts for s in spans]), np.concatenate([s.stops for s in spans])
        ranges = Rows(*merged(starts, stops, self._near))
        if verification is not None:
            wide = verification.widened(ranges)
            ranges = Rows(*merged(wide.starts, wide.stops, self._near))
        self.fetched_nbytes += ranges.count
        sizes = ranges.stops - ranges.starts
        fetched = self._stage.reader.fetch(
            list(zip(ranges.starts.tolist(), sizes.tolist(), strict=True)), writable=writable
        )
        if [len(piece) for piece in fetched] != sizes.tolist():
            raise EngineError("the engine gave other ranges than it was asked for")
        if verification is not None:
            verification.check(ranges, fetched)
        addresses = np.array([piece.ctypes.data for piece in fetched], np.int64) - ranges.starts
        return [self._put_together(of_item, ranges, fetched, addresses) for of_item in spans]

    def _put_together(self, spans: Rows, ranges: Rows, fetched: Sequence[Bytes], addresses: Int64Array) -> Bytes:
        if not spans.count:
            return np.empty(0, np.uint8)
        places = np.searchsorted(ranges.starts, spans.starts, side="right") - 1
        if len(places) == 1:
            start = int(spans.starts[0] - ranges.starts[places[0]])
            data: Bytes = fetched[places[0]][start : start + spans.count]
            return data
        pieces = _native.spans_of_addresses(
            [fetched[place] for place in places.tolist()],
            (addresses[places] + spans.starts).tolist(),
            (spans.stops - spans.starts).tolist(),
        )
        memory = allocate(spans.count)
        gather(pieces, memory, 0)
        return memory

    def _checked(self, member: int, nbytes: int, rows: Rows) -> int:
        """Give the place of a member. Raises BundleError unless it has so many items of that size."""
        offset, size = self._manifest.members[member].offset, self._manifest.members[member].nbytes
        if nbytes > 0 and not rows.fit(size // nbytes):
            raise BundleError(f"member {member} does not have the items that are referred to")
        return offset


def overlap(spans: Rows, items: Rows) -> bool:
    """Whether items of different rows overlap, so that a few bytes would come back as many."""
    order = np.argsort(spans.starts, kind="stable")
    later = spans.starts[order][1:] >= np.maximum.accumulate(spans.stops[order])[:-1]
    return bool((items.starts[order][1:] < np.maximum.accumulate(items.stops[order])[:-1])[later].any())
