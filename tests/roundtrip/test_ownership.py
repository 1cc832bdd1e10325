"""Who may write what, and how long results live: mutability, isolation, lifetime, aliasing, sizes."""

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rollferry
from rollferry.testing import assert_same

from .cases import CASES
from .cases_arrays import objects
from .cases_images import image
from .cases_rows import rollout
from .probe import bundles, files, leaves, scribble
from .reader import TESTS, Reader


@pytest.fixture(params=["shm", "inproc"])
def url(request: pytest.FixtureRequest, shm_directory: Path) -> str:
    return f"shm://{shm_directory}" if request.param == "shm" else "inproc://"


@pytest.fixture
def ferry(url: str) -> Iterator[Any]:
    with rollferry.connect(url, checksum=True) as ferry:
        yield ferry


def carried(ferry: Any, batch: dict[Any, Any], **options: Any) -> Any:
    ref = ferry.put(batch)
    result = ferry.get(ref, **options)
    ferry.remove(ref)
    return result


def numbers() -> dict[str, Any]:
    return {"tokens": [np.arange(3), np.arange(2)], "scores": np.ones(4), "t": torch.ones(2), "b": bytearray(b"ab")}


# ---- mutability and isolation -------------------------------------------------------------------------------------


def test_results_are_writable_ray_369(ferry: Any) -> None:
    result = carried(ferry, numbers())
    result["tokens"][0][0] += 1
    result["scores"] *= 2
    result["t"] += 1
    result["b"][0] = 120
    result["new"] = 1
    del result["tokens"][1]
    expected = {"tokens": [np.array([1, 1, 2])], "scores": np.full(4, 2.0), "t": torch.full((2,), 2.0)}
    assert_same(result, {**expected, "b": bytearray(b"xb"), "new": 1})


def test_readers_do_not_see_each_other(ferry: Any) -> None:
    ref = ferry.put(numbers())
    first, second = ferry.get(ref), ferry.get(ref)
    scribble(first)
    first["tokens"].clear()
    assert_same(second, numbers())
    assert_same(ferry.get(ref), numbers())


def test_reused_memory_never_shows_what_a_reader_wrote(ferry: Any) -> None:
    """A private mapping that was written to is not used for the next bundle."""
    for i in range(20):
        batch = {"a": np.full(50_000, i), "rows": [np.full(100, i, "i2")] * 3}
        ref = ferry.put(batch)
        result = ferry.get(ref)
        assert_same(result, batch)
        scribble(result)
        if i % 2:
            ferry.remove(ref)
            del result
        else:
            del result
            ferry.remove(ref)


def test_the_producer_may_reuse_its_arrays_at_once(ferry: Any) -> None:
    batch = rollout(20)
    ref = ferry.put(batch)
    scribble(batch)
    batch["metadata"] = 1
    assert_same(ferry.get(ref), rollout(20))


def test_read_only_results_refuse_writes(ferry: Any) -> None:
    ref = ferry.put({"dense": np.arange(4), "rows": [np.arange(3), np.zeros(0, "f4")]})
    result = ferry.get(ref, readonly=True)
    assert_same(result, {"dense": np.arange(4), "rows": [np.arange(3), np.zeros(0, "f4")]})
    for _, leaf in leaves(result):
        assert not leaf.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        result["rows"][0][0] = 1
    assert_same(ferry.get(ref)["rows"][0], np.arange(3))


# ---- lifetime -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["dense", "rows", "t", "meta"])
def test_one_view_outlives_everything_numpy_18294(url: str, keep: str) -> None:
    def batch() -> dict[str, Any]:
        big = np.arange(300_000, dtype="f8")
        rows = [np.arange(100_000, dtype="i4") + i for i in range(5)]
        return {"dense": big, "rows": rows, "t": torch.arange(100_000), "meta": [{"a": np.arange(70_000)}]}

    with rollferry.connect(url) as ferry:
        ref = ferry.put(batch())
        result = ferry.get(ref)
        path, view = list(leaves(result[keep]))[-1]
        ferry.release(result)
        assert result == {}
        ferry.remove(ref)
    del result, ferry
    gc.collect()
    expected = list(leaves(batch()[keep]))[-1]
    with rollferry.connect(url) as again:  # later bundles do not land in memory that is still seen
        for i in range(5):
            again.remove(again.put({"a": np.full(400_000, i)}))
    assert_same((path, view), expected)
    view[-1] = 7
    assert int(view[-1]) == 7


def test_views_of_views_keep_the_memory(url: str) -> None:
    with rollferry.connect(url) as ferry:
        ref = ferry.put({"a": np.arange(100_000), "rows": [np.arange(1000)]})
        result = ferry.get(ref)
        part, matrix = result["a"][10:20][::-1], torch.from_numpy(result["a"])[5:9]
        memory = memoryview(result["rows"][0])[3:5]
        del result
        ferry.remove(ref)
        gc.collect()
        for i in range(5):
            ferry.remove(ferry.put({"a": np.full(100_000, i), "rows": [np.full(1000, i)]}))
    assert part.tolist() == list(range(19, 9, -1))
    assert matrix.tolist() == [5, 6, 7, 8]
    assert memory.tolist() == [3, 4]


def test_removal_leaves_results_alone_verl_7414(ferry: Any) -> None:
    ref = ferry.put(numbers())
    result = ferry.get(ref)
    assert ferry.remove(ref) is True
    assert ferry.remove(ref) is False
    assert_same(result, numbers())
    with pytest.raises(rollferry.BundleNotFoundError):
        ferry.get(ref)
    ferry.release(result)
    assert result == {}


def test_get_does_not_consume_sglang_23022(ferry: Any) -> None:
    ref = ferry.put(numbers())
    for _ in range(5):
        assert_same(ferry.get(ref), numbers())


def test_borrowed_batches(ferry: Any) -> None:
    ref = ferry.put(numbers())
    with ferry.borrow(ref) as batch:
        assert_same(batch, numbers())
    assert_same(ferry.get(ref), numbers())


def test_memory_goes_back_with_the_last_view(shm_directory: Path) -> None:
    """The directory does not grow when results are dropped, and none of their mappings stay behind."""

    def mappings() -> int:
        return sum(str(shm_directory) in line for line in Path("/proc/self/maps").read_text().splitlines())

    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        seen = []
        for _ in range(30):
            ref = ferry.put({"a": np.zeros(1 << 18)})
            result = ferry.get(ref)
            ferry.remove(ref)
            del result
            seen.append((len(files(shm_directory)), mappings()))
    assert max(seen[2:]) <= max(seen[:5])
    assert bundles(shm_directory) == []
    gc.collect()
    assert mappings() == 0


def test_the_engine_lets_go_of_the_producers_arrays(ferry: Any) -> None:
    array = np.zeros(10_000)
    watch = weakref.ref(array)
    ref = ferry.put({"a": array, "rows": [array, array], "meta": [{"a": array}]})
    del array
    gc.collect()
    assert watch() is None
    assert ferry.get(ref)["rows"][0].shape == (10_000,)


PRODUCER = """
import sys, numpy as np, rollferry
ferry = rollferry.connect(sys.argv[1])
print(ferry.put({"rows": [np.arange(5), None], "name": "left"}).to_json())
"""


def test_a_bundle_outlives_its_producer_openrlhf_318(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRODUCER, url], capture_output=True, text=True, cwd=TESTS
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with rollferry.connect(url) as ferry:
        assert_same(ferry.get(done.stdout.strip()), {"rows": [np.arange(5), None], "name": "left"})
        assert ferry.remove(done.stdout.strip()) is True
    assert bundles(shm_directory) == []


def test_several_processes_read_one_bundle(shm_directory: Path) -> None:
    url, case = f"shm://{shm_directory}", "rollout shard"
    readers = [Reader(), Reader()]
    with rollferry.connect(url) as ferry:
        ref = ferry.put(CASES[case]()).to_json()
        assert [reader.problems(url, ref, case) for reader in readers * 2] == [[]] * 4
        ferry.remove(ref)
    for reader in readers:
        reader.close()


@pytest.mark.parametrize("case", ["TransferQueue#106: pixel values of megabytes", "metadata as a dict by id"])
def test_parallel_gets(ferry: Any, case: str) -> None:
    ref = ferry.put(CASES[case]())
    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda _: ferry.get(ref), range(64)):
            assert_same(result, CASES[case]())


def test_parallel_puts(ferry: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        refs = list(pool.map(lambda i: ferry.put({"i": i, "a": np.full(5000, i), "r": [np.full(i, i)]}), range(64)))
        results = list(pool.map(ferry.get, refs))
        assert all(pool.map(ferry.remove, refs))
    for i, result in enumerate(results):
        assert_same(result, {"i": i, "a": np.full(5000, i), "r": [np.full(i, i)]})


# ---- aliasing -----------------------------------------------------------------------------------------------------


SHARED = {
    "array": lambda: np.arange(10_000, dtype="f8"),
    "tensor": lambda: torch.arange(10_000),
    "bytes": lambda: bytes(range(256)) * 300,
    "image": lambda: image("RGB", 200, 150),
    "bf16 tensor": lambda: torch.ones(100, 300).bfloat16(),
}


@pytest.mark.parametrize("kind", SHARED)
def test_one_object_referenced_often_is_stored_once(ferry: Any, kind: str) -> None:
    value = SHARED[kind]()
    alone = ferry.put({"a": value}).nbytes
    batch = {"rows": [value] * 8, "again": value, "meta": [{"deep": (value, [value])}]}
    ref = ferry.put(batch)
    assert alone <= ref.nbytes < alone + 4096
    result = ferry.get(ref)
    assert_same(result, batch)
    first = result["again"]
    assert all(row is first for row in result["rows"])
    assert result["meta"][0]["deep"][0] is first
    assert result["meta"][0]["deep"][1][0] is first


def test_equal_arrays_stay_separate(ferry: Any) -> None:
    result = carried(ferry, {"a": [np.zeros(100) for _ in range(4)], "b": np.zeros(100)})
    arrays = [*result["a"], result["b"]]
    for i, array in enumerate(arrays):
        array[:] = i + 1
    assert [array[0] for array in arrays] == [1, 2, 3, 4, 5]


def test_overlapping_views_stay_separate(ferry: Any) -> None:
    base = np.arange(6.0)
    result = carried(ferry, {"whole": base, "parts": [base[:4], base[2:]], "t": torch.from_numpy(base)})
    scribble(result["whole"])
    assert_same(result["parts"], [np.arange(4.0), np.arange(2.0, 6.0)])
    assert_same(result["t"], torch.arange(6, dtype=torch.float64))


def test_shared_containers_come_back_separate(ferry: Any) -> None:
    part = {"k": [1, 2]}
    result = carried(ferry, {"a": [part, part], "b": part})
    assert_same(result, {"a": [{"k": [1, 2]}] * 2, "b": {"k": [1, 2]}})
    result["b"]["k"].append(3)
    assert result["a"] == [{"k": [1, 2]}] * 2
    assert result["a"][0] is not result["a"][1]


def test_nested_tensors_that_share_offsets_still_add(ferry: Any) -> None:
    offsets = torch.tensor([0, 2, 5])
    make = torch.nested.nested_tensor_from_jagged
    result = carried(ferry, {"a": make(torch.ones(5), offsets), "b": make(torch.ones(5), offsets)})
    total = result["a"] + result["b"]
    assert_same(total.values(), torch.full((5,), 2.0))


def test_object_arrays_of_ragged_and_equal_rows_concatenate_verl_2741(ferry: Any) -> None:
    ragged, equal = objects(np.arange(2), np.arange(3)), objects(np.arange(2), np.arange(2))
    result = carried(ferry, {"ragged": ragged, "equal": equal})
    assert np.concatenate([result["ragged"], result["equal"]]).shape == (4,)


# ---- sizes --------------------------------------------------------------------------------------------------------


def rows_39221() -> dict[str, Any]:
    return {"tokens": [np.full(i % 50, i, np.int32) for i in range(39_221)]}


@pytest.mark.parametrize(
    ("make", "payload", "overhead"),
    [
        (lambda: {"a": torch.ones(1000, 1000).bfloat16()}, 2_000_000, 4096),
        (lambda: {"a": torch.arange(1_000_000)[10:13]}, 24, 4096),
        (lambda: {"a": np.broadcast_to(np.float64(1), (1000,))}, 8000, 4096),
        (lambda: {"a": [0.1 * i for i in range(100_000)]}, 800_000, 4096),
        (lambda: {"a": list(range(100_000))}, 400_000, 500_000),
        (lambda: {"a": [[i, i + 1] for i in range(50_000)]}, 400_000, 1_300_000),
        (lambda: {"a": ["text"] * 50_000}, 200_000, 500_000),
        (rows_39221, sum(4 * (i % 50) for i in range(39_221)), 39_221 * 16 + 4096),
        (lambda: {"a": [torch.ones(4, 1176)] * 2}, 4 * 1176 * 4, 4096),
        (lambda: {"p": [np.zeros((64, 1176), "f4") for _ in range(9)]}, 64 * 1176 * 4 * 9, 8192),
    ],
)
def test_payload_bytes(ferry: Any, make: Any, payload: int, overhead: int) -> None:
    """Typed bytes, no opaque objects, no copies of what is seen twice."""
    ref = ferry.put(make())
    assert ref.nbytes <= payload + overhead
    assert len(ref.to_json()) < 1024
    assert_same(ferry.get(ref), make())


# ---- references and options ---------------------------------------------------------------------------------------


def test_references_as_dict_and_text(ferry: Any) -> None:
    metadata = {"step": 3, "name": "é", "list": [1, None]}
    ref = ferry.put(numbers(), metadata=metadata)
    assert ref.metadata == metadata
    for form in (ref, ref.to_dict(), ref.to_json(), rollferry.TransferRef.from_json(ref.to_json())):
        assert_same(ferry.get(form), numbers())
    assert rollferry.TransferRef.from_dict(ref.to_dict()) == ref
    assert ferry.remove(ref.to_dict()) is True


@pytest.mark.parametrize("verify", ["auto", "manifest", "full"])
def test_verify_does_not_change_results(ferry: Any, verify: str) -> None:
    assert_same(carried(ferry, rollout(10), verify=verify), rollout(10))


def test_lazy_results_hold_the_same(ferry: Any) -> None:
    ref = ferry.put(rollout(10))
    lazy = ferry.get(ref, lazy=True)
    assert list(lazy) == list(rollout(10))
    assert type(lazy["tokens"]) is not list
    ferry.remove(ref)
    assert_same({key: list(rows) for key, rows in lazy.items()}, rollout(10))


def test_async_twins(ferry: Any) -> None:
    async def go() -> None:
        refs = await asyncio.gather(*(ferry.aput({"i": i, "a": np.full(1000, i)}) for i in range(8)))
        results = await asyncio.gather(*(ferry.aget(ref) for ref in refs))
        assert await asyncio.gather(*(ferry.aremove(ref) for ref in refs)) == [True] * 8
        assert_same(results, [{"i": i, "a": np.full(1000, i)} for i in range(8)])

    asyncio.run(go())


def shared_objects() -> dict[str, Any]:
    """Batches that hold one object at two places of different depth or kind, as (batch, both places)."""
    rows, text, data = [np.arange(1000), np.arange(9)], "x" * 100, bytearray(b"y" * 100)
    return {
        "same list": ({"a": rows, "b": rows}, lambda r: (r["a"][0], r["b"][0])),
        "list in a list": ({"a": rows, "b": [rows]}, lambda r: (r["a"][0], r["b"][0][0])),
        "list in dicts": ({"a": [{"x": rows, "y": rows}]}, lambda r: (r["a"][0]["x"][0], r["a"][0]["y"][0])),
        "text in rows": ({"a": [[text]], "b": [text]}, lambda r: (r["a"][0][0], r["b"][0])),
        "bytearray in rows": ({"a": [[data]], "b": [data]}, lambda r: (r["a"][0][0], r["b"][0])),
    }


@pytest.mark.parametrize("name", shared_objects())
def test_an_object_comes_back_as_one(ferry: Any, name: str) -> None:
    batch, places = shared_objects()[name]
    first, second = places(carried(ferry, batch))
    assert first is second
    assert_same(carried(ferry, batch), batch)
