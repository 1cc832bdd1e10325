"""Partial reads over mooncake:// read little more than they need, and are right or fail cleanly."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry.engines.mooncake.client import Client
from rollferry.engines.mooncake.frame import chunk_key, root_key
from rollferry.errors import BundleError, BundleNotFoundError, EngineError
from rollferry.testing.equality import assert_same
from tests.contract.mooncake_master import Master
from tests.contract.test_engine_mooncake import started

N = 20_000


def batch_of() -> dict[str, Any]:
    """4.9 MB: as chunks have 256 KiB, all fields but the last take several."""
    rng = np.random.default_rng(0)
    return {
        "tokens": [rng.integers(0, 1000, 20, dtype=np.int32) for _ in range(N)],
        "ragged": [rng.random(n % 30, dtype=np.float32) for n in range(N)],
        "dense": rng.random((N, 10)),
        "texts": [f"text {n}" * (n % 5) for n in range(N)],
        "kinds": ["a"] * N,
    }


SELECTIONS = {
    "first": slice(0, 100),
    "middle": slice(9_000, 9_500),
    "last": slice(N - 10, None),
    "one": [7_777],
    "none": [],
    "strided": slice(5, None, 2_000),
    "every third": slice(None, None, 3),
    "backwards": slice(1_000, 0, -7),
    "random": np.random.default_rng(1).integers(0, N, 40),
    "mask": np.random.default_rng(2).random(N) < 0.01,
    "most": slice(100, None),
}


class Counted:
    """A store; how often and how many bytes it was asked to read."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.whole: list[int] = []  # bytes of each call that reads whole objects
        self.ranges: list[int] = []  # bytes of each call that reads ranges
        self.then: Callable[[], object] = lambda: None  # after each call

    @property
    def nbytes(self) -> int:
        return sum(self.whole) + sum(self.ranges)

    def batch_get_into(self, keys: list[str], addresses: list[int], sizes: list[int]) -> Any:
        self.whole.append(sum(sizes))
        found = self._store.batch_get_into(keys, addresses, sizes)
        self.then()
        return found

    def get_into_ranges(self, buffers: Any, keys: Any, places: Any, offsets: Any, sizes: Any) -> Any:
        self.ranges.append(sum(size for of_buffer in sizes for of_key in of_buffer for size in of_key))
        found = self._store.get_into_ranges(buffers, keys, places, offsets, sizes)
        self.then()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with Master() as master:
        yield master


@pytest.fixture(scope="module")
def shared(master: Master) -> Iterator[rollferry.Ferry]:
    with rollferry.connect(master.url(chunk="256kb", segment="128mb")) as ferry:
        yield ferry


@pytest.fixture
def ferry(shared: rollferry.Ferry) -> Iterator[rollferry.Ferry]:
    yield shared
    assert all(shared.remove(key) for key in shared.list())


@pytest.fixture
def counted(ferry: rollferry.Ferry, monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted(client_of(ferry).store)
    monkeypatch.setattr(client_of(ferry), "store", counted)
    return counted


def client_of(ferry: rollferry.Ferry) -> Client:
    client: Client = ferry._engine._client
    return client


def indexed(value: Any, rows: Any) -> Any:
    return [value[n] for n in np.arange(N)[rows].tolist()] if isinstance(value, list) else value[rows]


PUT = """
import sys, rollferry
from tests.contract.test_mooncake_ranges import batch_of
print(rollferry.connect(sys.argv[1]).put(batch_of()).to_json(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def remote() -> Iterator[tuple[rollferry.Ferry, Any]]:
    """A reader that lends no memory, and a bundle of another process."""
    with Master() as own, rollferry.connect(own.url(segment=0)) as ferry:
        with started(PUT, own.url(chunk="256kb", segment="64mb")) as producer:
            yield ferry, producer.stdout.readline()
            producer.kill()


@pytest.mark.parametrize("name", SELECTIONS)
def test_rows_are_those_of_the_batch(remote: tuple[rollferry.Ferry, Any], name: str) -> None:
    ferry, ref = remote
    rows = SELECTIONS[name]
    expected = {key: indexed(value, rows) for key, value in batch_of().items()}
    got = ferry.get(ref, rows=rows)
    assert_same(got, expected)
    for field in ("dense", "ragged"):
        for row in got[field]:
            row[:] = 0  # private
    assert_same(ferry.get(ref, rows=rows, readonly=True), expected)


def test_fields(remote: tuple[rollferry.Ferry, Any]) -> None:
    ferry, ref = remote
    batch = batch_of()
    for fields in (["kinds"], ["texts", "dense"], list(reversed(batch))):
        assert_same(ferry.get(ref, fields=fields), {name: batch[name] for name in fields})


@pytest.mark.parametrize("name", ["first", "middle", "last", "one", "strided", "random", "mask"])
def test_bytes_that_are_read(ferry: rollferry.Ferry, counted: Counted, name: str) -> None:
    ref = ferry.put({"rows": np.arange(8_000_000).reshape(N, 400), "tags": np.arange(N)})
    root = client_of(ferry).size(root_key(ref.key))
    rows = SELECTIONS[name]
    got = ferry.get(ref, rows=rows)
    assert_same(got["rows"], np.arange(8_000_000).reshape(N, 400)[rows])
    assert counted.whole == [root]
    needed = got["rows"].nbytes + got["tags"].nbytes
    assert needed <= sum(counted.ranges)
    near = 2 * len(got["tags"]) * (64 << 10)
    assert sum(counted.ranges) <= min(needed + near, ref.nbytes / 2)
    if isinstance(rows, slice) and rows.step is None:
        assert sum(counted.ranges) <= needed + (32 << 10)  # to whole blocks, for their checksums
        counted.ranges.clear()
        ferry.get(ref, rows=rows, verify="manifest")
        assert sum(counted.ranges) <= needed + 1000


def test_whole_is_read_at_once(ferry: rollferry.Ferry, counted: Counted) -> None:
    """Root, chunks, and no ranges; what fits a chunk comes in one call."""
    batch = {"x": np.arange(800_000)}
    ref = ferry.put(batch)
    root = client_of(ferry).size(root_key(ref.key))
    assert_same(ferry.get(ref), batch)
    assert (counted.whole, counted.ranges) == ([root, ref.nbytes], [])
    small = ferry.put({"x": np.arange(1000), "y": list(range(1000))})
    nbytes = client_of(ferry).size(root_key(small.key))
    counted.whole.clear()
    assert ferry.get(small, rows=slice(10, 20))["y"] == list(range(10, 20))
    assert (counted.whole, counted.ranges) == ([nbytes], [])


def test_nothing_is_read_twice(ferry: rollferry.Ferry, counted: Counted) -> None:
    """Also where the reader is asked again, as long as its memory was not given away to be changed."""
    for array in (np.arange(1000), np.arange(800_000)):
        ref = ferry.put({"x": array})
        reader = ferry._engine.open(ref.key)
        ranges = [[(0, 8 * len(array))], [(80, 8)], [(0, 16), (4000, 80)], [(0, 8 * len(array))]]
        for writable in (False, False, True):
            for wanted in ranges:
                for (start, nbytes), part in zip(wanted, reader.fetch(wanted, writable=writable), strict=True):
                    assert part.tobytes() == array.tobytes()[start : start + nbytes]
                    assert part.flags.writeable or not writable
                    if part.flags.writeable:
                        part[:] = 0
        assert counted.ranges == []
        assert sum(counted.whole) == client_of(ferry).size(root_key(ref.key)) + (ref.nbytes if len(array) > 1000 else 0)
        reader.close()
        counted.whole.clear()


@pytest.mark.parametrize("count", [1000, 800_000])
def test_what_was_given_away_is_never_given_again(ferry: rollferry.Ferry, count: int) -> None:
    array = np.arange(count)
    reader = ferry._engine.open(ferry.put({"x": array}).key)
    held: list[Any] = []
    for wanted in (
        [(0, 8 * count)],
        [(0, 80), (4000, 80)],
        [(0, 80)],
        [(0, 8 * count)],
        [(8, 8 * count - 8)],
        [(80, 8)],
    ):
        for (start, nbytes), part in zip(wanted, reader.fetch(wanted), strict=True):
            assert part.tobytes() == array.tobytes()[start : start + nbytes]
            part[:] = len(held)
            held.append(part)
    for number, part in enumerate(held):
        assert (part == number).all()


def test_memory_goes_back_when_the_last_view_dies(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(batch_of())
    pool = client_of(ferry).pool
    gc.collect()
    before = pool.free_nbytes
    reader = ferry._engine.open(ref.key)
    first, second = reader.fetch([(64, 1000), (400_000, 1000)])
    held = first[10:20], second.tobytes()
    reader.close()
    taken = pool.free_nbytes
    assert taken < before or pool._registered > before
    kept = held[0].tobytes()
    assert ferry.remove(ref)
    for _ in range(3):
        ferry.get(ferry.put(batch_of()), rows=slice(0, 1000))
    assert held[0].tobytes() == kept
    del first, second, held
    gc.collect()
    assert pool.free_nbytes == pool._registered  # nothing is lent any more


@pytest.mark.parametrize("rows", [slice(0, 100), SELECTIONS["most"]], ids=["ranges", "whole"])
def test_removed_before_and_while_it_is_read(ferry: rollferry.Ferry, counted: Counted, rows: slice) -> None:
    """After each of the calls that read something."""
    calls = 0
    while True:
        ref = ferry.put(batch_of())
        turns = iter(range(calls))
        counted.whole.clear(), counted.ranges.clear()

        def then(turns: Iterator[int] = turns, ref: Any = ref) -> None:
            if next(turns, None) is None:
                ferry.remove(ref)

        counted.then = then
        try:
            ferry.get(ref, rows=rows)
            counted.then = lambda: None
            break
        except BundleNotFoundError:
            calls += 1
        counted.then = lambda: None
        assert ferry.list() == []
    assert calls == len(counted.whole) + len(counted.ranges) >= 3  # the root, offsets, rows


def test_missing_chunk(ferry: rollferry.Ferry) -> None:
    """Those that aren't needed may be missing."""
    array = np.arange(800_000)
    ref = ferry.put({"x": array})
    client_of(ferry).discard([chunk_key(ref.key, 2)])
    assert_same(ferry.get(ref, rows=slice(0, 1000)), {"x": array[:1000]})
    for rows in (slice(66_000, 66_010), slice(None)):
        with pytest.raises(BundleError, match=rf"^bundle {ref.key}: chunk 2 of 25 is gone"):
            ferry.get(ref, rows=rows)


def test_producer_that_died() -> None:
    with Master() as own, rollferry.connect(own.url(segment=0, timeout=4)) as ferry:
        with started(PUT, own.url(chunk="256kb", segment="64mb")) as producer:
            ref = producer.stdout.readline()
            assert ferry.get(ref, fields=["kinds"], rows=[1]) == {"kinds": ["a"]}
            reader = ferry._engine.open(rollferry.TransferRef.from_json(ref).key)
            producer.kill()
        with pytest.raises((EngineError, BundleNotFoundError)):
            reader.fetch([(0, 10), (1_000_000, 10)])
