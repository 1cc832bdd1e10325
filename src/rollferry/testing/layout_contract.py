"""What every kind of column must do, as a pytest class to inherit from; `contracts` has it too."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest

from rollferry.bundle.manifest import Field, Manifest, dump, load
from rollferry.bundle.select import Options, Selection
from rollferry.bundle.stages import Stage
from rollferry.engines.base import Bytes
from rollferry.layouts.base import Spec
from rollferry.layouts.decoder import Decoder
from rollferry.layouts.encoder import Encoder
from rollferry.layouts.rows import Rows
from rollferry.memory.plan import CopyPlan, Member
from rollferry.testing.equality import assert_same

__all__ = ["LayoutContract"]

MANY = 100  # columns, for all of which every damaged member would be read again


class Encoded:
    """A column, encoded alone and packed."""

    def __init__(self, values: list[Any], *, allow_pickle: bool, chunk: int = 1 << 40) -> None:
        encoder = Encoder(allow_pickle=allow_pickle)
        self.root = encoder.column(list(values))
        self.specs = encoder.specs
        self.plan = CopyPlan(encoder.sources)
        self.payload = np.zeros(self.plan.nbytes, np.uint8)
        for _ in self.plan.packed(self.payload[start : start + chunk] for start in range(0, self.plan.nbytes, chunk)):
            pass
        self.allow_pickle = allow_pickle

    def member(self, number: int) -> Bytes:
        """Give the bytes of a member, in memory of their own."""
        offset, nbytes = self.plan.members[number].offset, self.plan.members[number].nbytes
        return self.payload[offset : offset + nbytes].copy()

    def decode(self, members: list[Bytes] | None = None, *, readonly: bool = False) -> list[Any]:
        """Rebuild the column, from other members where they are given."""
        found = [self.member(number) for number in range(len(self.plan.members))] if members is None else members
        decoder = Decoder(self.specs, found.__getitem__, allow_pickle=self.allow_pickle, readonly=readonly)
        for number, spec in enumerate(self.specs):
            assert len(decoder.column(number)) == spec.rows
        return decoder.column(self.root)

    def rows(self, rows: Rows, members: list[Bytes] | None = None) -> list[Any]:
        """Rebuild some rows of the column, from other members where they are given."""
        found = [self.member(number) for number in range(len(self.plan.members))] if members is None else members
        selection = Selection(Stage(self.manifest, MemoryReader(self.plan.members, found)), Options(self.allow_pickle))
        selection.rows(self.root, rows)
        return selection.decoder(writable=True).column(self.root)

    @property
    def manifest(self) -> Manifest:
        """A manifest with the column as its only field."""
        return Manifest(
            id="0" * 32,
            type="dict",
            fields=[Field(key="field", form="list", column=self.root)],
            columns=self.specs,  # type: ignore[arg-type]  # list is invariant
            members=self.plan.members,
            payload_nbytes=self.plan.nbytes,
        )


class MemoryReader:
    """Members in memory, as an engine's reader gives them. What a damaged one lacks reads as zeros."""

    def __init__(self, places: Sequence[Member], members: Sequence[Bytes]) -> None:
        self.manifest = b""
        self.payload_nbytes = max([place.offset + place.nbytes for place in places], default=0)
        self._payload = np.zeros(self.payload_nbytes, np.uint8)
        for place, member in zip(places, members, strict=True):
            kept = member[: place.nbytes]
            self._payload[place.offset : place.offset + len(kept)] = kept

    def fetch(self, ranges: Sequence[tuple[int, int]], *, writable: bool = True) -> list[Bytes]:  # noqa: ARG002
        """Give copies of ranges."""
        return [self._payload[offset : offset + nbytes].copy() for offset, nbytes in ranges]

    def close(self) -> None:
        """Do nothing."""


class LayoutContract:
    """What a kind of column must do. A subclass gives `kind` and `columns`.

    Attributes
    ----------
    kind
        The kind of column.
    allow_pickle
        Whether pickles are written and read. They are not damaged.
    """

    kind: ClassVar[type[Spec]]
    allow_pickle: ClassVar[bool] = False

    @staticmethod
    def columns() -> list[list[Any]]:
        """Give columns that have this kind somewhere."""
        raise NotImplementedError

    @pytest.fixture
    def encoded(self) -> list[Encoded]:
        """Encode the columns."""
        return [Encoded(values, allow_pickle=self.allow_pickle) for values in self.columns()]

    def test_has_the_kind(self, encoded: list[Encoded]) -> None:
        """Each column is encoded as this kind, at its root or below."""
        for column in encoded:
            assert any(type(spec) is self.kind for spec in column.specs)

    def test_comes_back(self, encoded: list[Encoded]) -> None:
        """Decoded columns are the same as those that were encoded, also read-only ones."""
        for column, values in zip(encoded, self.columns(), strict=True):
            assert column.specs[column.root].rows == len(values)
            assert_same(column.decode(), values)
            assert_same(column.decode(readonly=True), values)

    def test_some_rows_come_back(self, encoded: list[Encoded]) -> None:
        """Rows that are selected, in any order and more than once, are the same as those of the whole."""
        for column, values in zip(encoded, self.columns(), strict=True):
            rng = Random(len(values))  # noqa: S311  # the same rows each time
            several = [rng.randrange(len(values)) for _ in range(7 if values else 0)]
            for chosen in ([], range(len(values)), range(len(values) // 2), range(len(values))[::-2], several):
                assert_same(column.rows(Rows.at(list(chosen))), [values[number] for number in chosen])

    def test_chunks_do_not_matter(self, encoded: list[Encoded]) -> None:
        """The payload is the same wherever it is cut."""
        for chunk in (1, 7, 64, 1000):
            for column, values in zip(encoded, self.columns(), strict=True):
                cut = Encoded(values, allow_pickle=self.allow_pickle, chunk=chunk)
                assert cut.payload.tobytes() == column.payload.tobytes()

    def test_manifest_holds_it(self, encoded: list[Encoded]) -> None:
        """Members and child columns are used once, children first, and specs survive the manifest."""
        for column in encoded:
            used = sorted(number for spec in column.specs for number in spec.members())
            assert used == list(range(len(column.plan.members)))
            owned = sorted(number for spec in column.specs for number in spec.children())
            assert sorted([*owned, column.root]) == list(range(len(column.specs)))
            manifest = column.manifest
            assert load(dump(manifest)[0], column.plan.nbytes)[0] == manifest

    def test_damaged_members_are_refused_or_read(self, encoded: list[Encoded]) -> None:
        """Members that are cut, longer, or overwritten raise an ordinary exception, or give as many values as before."""
        rng = Random(0)  # noqa: S311  # the same damage each time
        for column in encoded:
            intact = [column.member(number) for number in range(len(column.plan.members))]
            for number, member in enumerate(intact):
                for damaged in damages(member, rng):
                    members = [*intact[:number], damaged, *intact[number + 1 :]]
                    if not self.allow_pickle:
                        self.check_damaged(column, members)

    @staticmethod
    def check_damaged(column: Encoded, members: list[Bytes]) -> None:
        """Decode damaged members."""
        rows = column.specs[column.root].rows
        check_length(lambda: column.decode(members), rows)
        if len(column.specs) < MANY:
            check_length(lambda: column.rows(Rows.span(0, rows // 2), members), rows // 2)


def check_length(rebuild: Callable[[], list[Any]], rows: int) -> None:
    """Rebuild damaged members: an ordinary exception, or as many values as before."""
    try:
        values = rebuild()
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  # `read` makes a BundleError of any
        return
    assert len(values) == rows


def damages(member: Bytes, rng: Random) -> Iterator[Bytes]:
    """Give damaged copies of a member."""
    yield member[:-1].copy()
    yield member[:0].copy()
    yield np.concatenate([member, np.zeros(8, np.uint8)])
    for value in (0, 1, 127, 255):
        yield np.full(len(member), value, np.uint8)
    for _ in range(20 if len(member) else 0):
        damaged = member.copy()
        damaged[rng.randrange(len(member))] ^= 1 << rng.randrange(8)
        yield damaged
