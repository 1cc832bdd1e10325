"""Ferry: connecting, what put, get and remove mean, results, checksums, threads and coroutines."""

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rollferry
from rollferry import BundleError, BundleNotFoundError, EngineError, FerryClosedError, UnsupportedValueError
from rollferry.engines.shm.segment import HEADER_NBYTES
from rollferry.memory.plan import SpanSource
from rollferry.testing import assert_same


def batch(seed: int = 0, rows: int = 20) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "tokens": [rng.integers(0, 1000, n) for n in rng.integers(0, 50, rows)],
        "tensors": [torch.arange(int(n)) for n in rng.integers(0, 50, rows)],
        "rewards": rng.random(rows).tolist(),
        "dense": rng.random((rows, 4)),
        "meta": [{"id": i, "tags": ["x"] * (i % 3)} for i in range(rows)],
        "nothing": None,
    }


# ---- connecting ---------------------------------------------------------------------------------------------------


def test_the_url_comes_from_the_call_or_the_environment(shm_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLFERRY_URL", f"shm://{shm_directory}/environment")
    with rollferry.connect() as ferry, rollferry.connect(f"shm://{shm_directory}/call") as other:
        ref = ferry.put({"a": 1})
        assert [entry.name for entry in os.scandir(shm_directory / "environment/live")] == [ref.key]
        with pytest.raises(BundleNotFoundError):
            other.get(ref)
    monkeypatch.setenv("ROLLFERRY_URL", "inproc://environment")
    assert "inproc" in repr(rollferry.connect())


def test_without_a_url_each_user_has_a_directory(shm_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLFERRY_URL", raising=False)
    monkeypatch.setattr("rollferry.engines.shm.directory.DEFAULT_ROOT", str(shm_directory))
    with rollferry.connect() as ferry:
        ferry.put({"a": 1})
    assert [entry.name for entry in os.scandir(shm_directory)] == [f"rollferry-{os.geteuid()}"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "shm",
        "/dev/shm",
        "redis://x",
        "SHM2://",
        "shm:///x?pool",
        "shm:///x?pool=1&pool=2",
        "shm://relative/path",
        "shm:/",
        "shm:///x#fragment",
        "inproc://?chunk=0",
        "inproc://?chunk=x",
        "inproc://?x=1",
    ],
)
def test_urls_that_name_no_engine(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLFERRY_URL", "nothing://")
    with pytest.raises(EngineError):
        rollferry.connect(url)


def test_namespaces_are_apart(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    with rollferry.connect(url, namespace="a") as a, rollferry.connect(url, namespace="b-2_X") as b:
        ref = a.put({"x": 1})
        assert (a.list(), b.list()) == ([ref.id], [])
        assert b.get(ref) == {"x": 1}  # a reference says where it belongs
        assert {name: held.bundles for name, held in b.usage().namespaces.items()} == {"a": 1}
        assert (a.usage().bundles, a.usage().live_nbytes) == (1, b.usage().live_nbytes)
        assert (b.remove(ref), a.list()) == (True, [])


def test_a_closed_ferry(shm_directory: Path) -> None:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        ref = ferry.put(batch())
        result = ferry.get(ref)
    assert "closed" in repr(ferry)
    ferry.close()
    for use in (lambda: ferry.put({}), lambda: ferry.get(ref), lambda: ferry.remove(ref), ferry.list, ferry.usage):
        with pytest.raises(FerryClosedError):
            use()
    with pytest.raises(FerryClosedError), ferry.borrow(ref):
        pass
    assert_same(result, batch())
    with pytest.raises(RuntimeError), rollferry.connect(f"shm://{shm_directory}") as again:
        assert_same(again.get(ref), batch())
        raise RuntimeError  # noqa: TRY301
    with pytest.raises(FerryClosedError):
        again.list()


# ---- put, get, remove ---------------------------------------------------------------------------------------------


def test_every_form_of_a_reference(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(batch(), metadata={"step": 3})
    assert ref.metadata == {"step": 3}
    assert (ref.rows, ref.engine, ref.namespace) == (20, "shm", "default")
    for form in (ref, ref.to_dict(), ref.to_json(), ref.to_json().encode()):
        assert_same(ferry.get(form), batch())
    assert (ferry.remove(ref.to_json()), ferry.remove(ref.to_dict()), ferry.remove(ref)) == (True, False, False)


def test_rows_are_those_of_all_aligned_fields(ferry: rollferry.Ferry) -> None:
    assert ferry.put({"a": [1, 2], "b": ["x", "y"], "c": np.ones((2, 3)), "d": 5, "e": {"f": [1]}}).rows == 2
    assert ferry.put({"a": [1, 2], "b": [1]}).rows is None
    assert ferry.put({"a": 1}).rows is None
    assert ferry.put({"a": []}).rows == 0


def test_removed_bundles_are_gone_but_results_stay(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(batch())
    results = [ferry.get(ref), ferry.get(ref)]
    assert (ferry.remove(ref), ferry.remove(ref), ferry.list()) == (True, False, [])
    with pytest.raises(BundleNotFoundError, match=ref.id):
        ferry.get(ref)
    for seed in range(1, 4):  # the memory is not theirs to reuse
        ferry.remove(ferry.put(batch(seed)))
    results[0]["dense"][:] = 0
    assert_same(results[1], batch())


@pytest.mark.parametrize("wrong", [None, [], {1}, [("a", 1)], np.zeros(2)])
def test_only_dicts_are_batches(wrong: Any, ferry: rollferry.Ferry) -> None:
    with pytest.raises(UnsupportedValueError, match="dict"):
        ferry.put(wrong)


def test_options_that_do_not_exist(ferry: rollferry.Ferry) -> None:
    ref = ferry.put({})
    for use in (
        lambda: ferry.put({}, type="list"),
        lambda: ferry.get(ref, type="list"),
        lambda: ferry.get(ref, verify="x"),
    ):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must be one of"):
            use()
    assert ferry.get(ref, type="dict") == {}


def test_keys_of_any_kind(ferry: rollferry.Ferry) -> None:
    for keys in ([0, 1, -5, 1 << 62], ["a", "", "ü", 3], [1 << 70, True, 2.5, None, (1, "x"), b"k", "\ud800"]):
        value = {key: [i, i] for i, key in enumerate(keys)}
        result = ferry.get(ferry.put(value))
        assert_same(result, value)
        assert [type(key) for key in result] == [type(key) for key in keys]


def test_borrow_and_release(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(batch())
    with ferry.borrow(ref, readonly=True) as borrowed:
        kept = borrowed["dense"]
        assert not kept.flags.writeable
        assert_same(borrowed["tokens"], batch()["tokens"])
    assert borrowed == {}
    with pytest.raises(KeyError), ferry.borrow(ref) as borrowed:
        raise KeyError  # released all the same
    assert borrowed == {}
    result = ferry.get(ref)
    ferry.release(result)
    ferry.release(result)
    assert result == {}
    ferry.remove(ref)
    assert_same(kept, batch()["dense"])


# ---- verification -------------------------------------------------------------------------------------------------


@pytest.fixture
def checked(shm_directory: Path) -> Iterator[rollferry.Ferry]:
    with rollferry.connect(f"shm://{shm_directory}", checksum=True) as ferry:
        yield ferry


def flip(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("name", ["tokens", "tensors", "rewards", "dense"])
def test_a_flipped_bit_is_found(name: str, checked: rollferry.Ferry, shm_directory: Path) -> None:
    value = {name: batch()[name], "text": ["abc"]}
    ref = checked.put(value)
    for verify in ("auto", "manifest", "full"):
        assert_same(checked.get(ref, verify=verify), value)
    for position in (HEADER_NBYTES + 1, HEADER_NBYTES + ref.nbytes + 40):  # payload, manifest
        flip(shm_directory / "live" / ref.key, position)
        with pytest.raises(BundleError, match="corrupt"):
            checked.get(ref, verify="full")
        flip(shm_directory / "live" / ref.key, position)
    assert_same(checked.get(ref, verify="full"), value)


def test_full_verification_needs_checksums(ferry: rollferry.Ferry, checked: rollferry.Ferry) -> None:
    ref = ferry.put(batch())
    with pytest.raises(BundleError, match="checksum=True"):
        ferry.get(ref, verify="full")
    assert_same(ferry.get(checked.put(batch()), verify="full"), batch())  # the reader needs no option


# ---- threads and coroutines ---------------------------------------------------------------------------------------


def test_eight_threads_on_one_ferry(ferry: rollferry.Ferry) -> None:
    start = threading.Barrier(8)
    shared = ferry.put(batch(99))

    def work(number: int) -> None:
        start.wait()
        for seed in range(number * 100, number * 100 + 12):
            value = batch(seed, rows=1 + seed % 40)
            ref = ferry.put(value)
            result = ferry.get(ref, readonly=bool(seed % 2))
            assert ferry.remove(ref)
            assert_same(result, value)
            assert_same(ferry.get(shared), batch(99))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert ferry.list() == [shared.id]


def test_one_of_many_threads_removes(ferry: rollferry.Ferry) -> None:
    with ThreadPoolExecutor(8) as threads:
        for seed in range(20):
            ref = ferry.put({"a": seed})
            assert sorted(threads.map(ferry.remove, [ref] * 8)) == [False] * 7 + [True]


def test_coroutines_keep_the_loop_running(ferry: rollferry.Ferry) -> None:
    async def both() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticker = asyncio.create_task(tick())
        ref = await ferry.aput({"a": np.zeros(100 << 20, np.uint8)}, metadata={"x": 1})
        during_put, ticks = ticks, 0
        result = await ferry.aget(ref.to_json(), readonly=True)
        assert ref.metadata == {"x": 1}
        assert result["a"].nbytes == 100 << 20
        assert not result["a"].flags.writeable
        assert (await ferry.aremove(ref), await ferry.aremove(ref)) == (True, False)
        with pytest.raises(BundleNotFoundError):
            await ferry.aget(ref)
        assert_same(
            await asyncio.gather(*[ferry.aget(await ferry.aput(batch(i))) for i in range(4)]),
            [batch(i) for i in range(4)],
        )
        ticker.cancel()
        return during_put

    assert asyncio.run(both()) > 1


@pytest.mark.parametrize("value", [np.ones(100 << 20, np.uint8), [np.ones(1 << 16, np.uint8) for _ in range(1600)]])
def test_copying_leaves_the_gil_to_others(value: Any, ferry: rollferry.Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, counts, stop = [0], [], threading.Event()
    fill = SpanSource.fill

    def watched(self: SpanSource, dest: Any) -> None:
        before = ticks[0]
        fill(self, dest)
        if self.nbytes >= 100 << 20:
            counts.append(ticks[0] - before)

    def tick() -> None:
        while not stop.is_set():
            ticks[0] += 1

    monkeypatch.setattr(SpanSource, "fill", watched)
    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        for _ in range(3):
            ferry.remove(ferry.put({"a": value}))
    finally:
        stop.set()
        ticker.join()
    assert len(counts) == 3
    assert max(counts) > 20


def test_what_list_gives_can_be_removed(ferry: rollferry.Ferry) -> None:
    ferry.put({"a": 1})
    (name,) = ferry.list()
    assert ferry.remove(name)
    assert not ferry.remove(name)
    assert ferry.list() == []
