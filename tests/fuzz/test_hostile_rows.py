"""Small bundles that ask for much once some rows of them are read; see test_amplification."""

import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest

import rollferry
from tests.fuzz.grammar import Maker
from tests.fuzz.test_amplification import HUGE, long_range, one_int, outcomes_of, run_all
from tests.fuzz.test_hostile import Seed, header_for, seal, touch

MANY, LARGE = 16_384, 1 << 19
EVERY_OTHER = slice(None, None, 2)
Case = tuple[str, int, Any]  # form and column of a field, and the rows to read
CASES: dict[str, Callable[[Maker], Case]] = {}


def case(build: Callable[[Maker], Case]) -> Callable[[Maker], Case]:
    """Note a case."""
    CASES[build.__name__] = build
    return build


def shapes(maker: Maker, sizes: list[int]) -> int:
    """Append a column of one list."""
    items = maker.add("numbers", len(sizes), type="int", dtype="<i8", data=maker.ints(sizes))
    return maker.add("sequence", 1, type="list", offsets=maker.ints([0, len(sizes)]), items=items)


def falling(maker: Maker) -> int:
    """Append offsets where every other row has everything."""
    return maker.ints([0, LARGE] * MANY)


def jagged(maker: Maker, nbytes: int, offsets: list[int], lengths: list[int]) -> int:
    """Append a jagged tensor."""
    parts = [("uint8", nbytes, maker.member(bytes(nbytes)))]
    parts += [("int64", len(numbers), maker.ints(numbers)) for numbers in (offsets, lengths)]
    columns = [
        maker.add("dense", 1, library="torch", dtype=dtype, shape=[size], values=member)
        for dtype, size, member in parts
    ]
    named = dict(zip(("values", "offsets", "lengths", "axes"), [*columns, one_int(maker, 1)], strict=True))
    return maker.add("jagged", 1, **named)


@case
def many_dimensions(maker: Maker) -> Case:
    return "value", maker.add("objects", 1, shapes=shapes(maker, [HUGE] * 300_000), items=one_int(maker, 0)), [0]


@case
def many_dimensions_of_a_row(maker: Maker) -> Case:
    return "list", maker.add("objects", 1, shapes=shapes(maker, [HUGE] * 300_000), items=one_int(maker, 0)), [0]


@case
def shape_that_is_a_range(maker: Maker) -> Case:
    return "value", maker.add("objects", 1, shapes=long_range(maker), items=one_int(maker, 0)), [0]


@case
def texts_that_overlap(maker: Maker) -> Case:
    offsets = falling(maker)
    column = maker.add("text", 2 * MANY - 1, type="bytes", offsets=offsets, data=maker.member(bytes(LARGE)))
    return "list", column, EVERY_OTHER


@case
def lists_that_overlap(maker: Maker) -> Case:
    items = maker.add("numbers", LARGE, type="int", dtype="|u1", data=maker.member(bytes(LARGE)))
    column = maker.add("sequence", 2 * MANY - 1, type="list", offsets=falling(maker), items=items)
    return "list", column, list(range(2 * MANY - 2, -1, -2))


@case
def arrays_that_overlap(maker: Maker) -> Case:
    rest = {"library": "numpy", "dtype": "|u1", "ndim": 1, "inner": []}
    values = maker.member(bytes(LARGE))
    return "list", maker.add("ragged", 2 * MANY - 1, offsets=falling(maker), values=values, **rest), EVERY_OTHER


@case
def components_that_overlap(maker: Maker) -> Case:
    return "value", jagged(maker, LARGE, [0] * MANY + [LARGE], [LARGE] * MANY), slice(None)


@case
def rows_that_are_not_there(maker: Maker) -> Case:
    return "list", maker.add("numbers", HUGE, type="int", dtype="|u1", data=maker.member(bytes(64))), EVERY_OTHER


@case
def rows_without_bytes(maker: Maker) -> Case:
    rest = {"library": "numpy", "dtype": "|u1", "shape": [1 << 33, 0]}
    return "value", maker.add("dense", 1, values=maker.member(b""), **rest), slice(None, None, -1)


@case
def keys_by_shapes(maker: Maker) -> Case:
    count = 3_000
    columns = [maker.add("null", 0) for _ in range(count)]
    rest = {"keys": [str(number) for number in range(count)], "columns": columns}
    tags = maker.member((100).to_bytes(2, "little"))
    return "list", maker.add("record", 1, shapes=[list(range(count))] * 100 + [[]], tags=tags, **rest), [0]


READ = {"keys_by_shapes"}  # nothing is wrong with it, but that it took minutes


def read(ferry: rollferry.Ferry, live: Path, seed: Seed, name: str) -> str:
    """Read one case, and say what came of it."""
    maker = Maker(Random(0), badness=0)
    form, column, rows = CASES[name](maker)
    manifest = maker.manifest([{"key": "field", "form": form, "column": column}])
    sealed, ref = seal(seed, manifest, bytes(maker.payload))
    (live / ref.key).unlink(missing_ok=True)
    (live / ref.key).write_bytes(header_for(seed, maker.payload, sealed) + maker.payload + sealed)
    try:
        batch = ferry.get(ref, rows=rows)
    except (Exception, MemoryError) as error:
        return type(error).__name__
    touch(batch)
    return "read"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return outcomes_of(__file__)


@pytest.mark.parametrize("name", sorted(CASES))
def test_costs_no_more_than_its_bytes_warrant(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name] == ("read" if name in READ else "BundleError")


if __name__ == "__main__":
    run_all(read, CASES)
