"""Read-only results and lazy rows."""

import gc
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rollferry
from rollferry import LazyList, LazyRows, UnsupportedValueError
from rollferry.testing import assert_same

ROWS = [np.arange(5), np.arange(0), np.arange(7, 10), np.arange(2)]
KINDS: dict[str, Any] = {
    "arrays": ROWS,
    "tuple": tuple(ROWS),
    "tensors": [torch.arange(5), torch.arange(0), torch.arange(7, 10)],
    "matrices": [np.ones((2, 3)), np.zeros((0, 3)), np.full((4, 3), 7.0)],
    "one": [np.arange(4)],
    "one matrix": [torch.ones(2, 3)],
    "empty rows": [np.zeros(0), np.zeros(0)],
    "structured": [np.zeros(2, [("a", "<i4"), ("b", "<f8")]), np.ones(1, [("a", "<i4"), ("b", "<f8")])],
}
OTHERS: dict[str, Any] = {
    "dtypes": [np.arange(2), np.arange(2.0)],
    "dims": [np.arange(2), np.ones((1, 1))],
    "inner": [np.ones((2, 3)), np.ones((2, 4))],
    "scalars": [np.array(1), np.array(2)],
    "with None": [np.arange(2), None],
    "numbers": [1, 2],
    "lists": [[1, 2], [3]],
    "dense": np.ones((3, 2)),
    "none": [],
    "object": np.array([None, 1], object),
}


@pytest.fixture(params=["shm", "inproc"])
def ferry(request: pytest.FixtureRequest, shm_directory: Path) -> Any:
    with rollferry.connect(f"shm://{shm_directory}" if request.param == "shm" else "inproc://") as ferry:
        yield ferry


def carried(ferry: rollferry.Ferry, batch: dict[Any, Any], **options: Any) -> Any:
    ref = ferry.put(batch)
    result = ferry.get(ref, **options)
    ferry.remove(ref)
    return result


# ---- readonly -----------------------------------------------------------------------------------------------------


def arrays_in(value: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, list | tuple | LazyRows | LazyList):
        return [array for item in value for array in arrays_in(item)]
    return [array for item in value.values() for array in arrays_in(item)] if isinstance(value, dict) else []


@pytest.mark.parametrize("lazy", [False, True])
def test_readonly_arrays_refuse_writing(lazy: bool, ferry: rollferry.Ferry) -> None:
    batch = {
        **KINDS,
        **OTHERS,
        "nested": {"deep": [{"a": np.arange(3)}, {"a": np.ones((2, 2))}]},
        "shapes": OTHERS["inner"],
    }
    del batch["object"]
    result = carried(ferry, batch, readonly=True, lazy=lazy)
    found = arrays_in(result)
    assert len(found) > 20
    for array in found:
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    for array in arrays_in(carried(ferry, batch, lazy=lazy)):
        assert array.flags.writeable
        array[...] = np.zeros_like(array)


def test_readonly_arrays_stay_so(ferry: rollferry.Ferry) -> None:
    for array in arrays_in(carried(ferry, {"rows": ROWS, "dense": np.ones(4)}, readonly=True)):
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)


def test_readonly_typed_results_and_tensors(ferry: rollferry.Ferry) -> None:
    schema = {
        "flat": rollferry.FieldSchema("numbers", returns="ndarray"),
        "rows": rollferry.FieldSchema("numbers", returns="ndarray"),
        "narrow": rollferry.FieldSchema("dense", dtype="int8"),
    }
    batch = {"flat": [1, 2], "rows": [[1], [2, 3]], "narrow": np.arange(4), "tensor": torch.ones(3), "list": [1, 2]}
    result = ferry.get(ferry.put(batch, schema=schema), readonly=True)
    assert not any(array.flags.writeable for array in [result["flat"], *result["rows"]])
    result["tensor"] += 1  # tensors know no such flag
    result["list"].append(3)
    assert_same(result["narrow"], np.arange(4))


def test_readonly_converted_arrays(ferry: rollferry.Ferry) -> None:
    schema = {"x": rollferry.FieldSchema("dense", dtype="int8")}
    assert not ferry.get(ferry.put({"x": np.arange(4)}, schema=schema), readonly=True)["x"].flags.writeable


READONLY_TENSORS = """
import sys, numpy as np, rollferry
ferry = rollferry.connect("inproc://")
field = rollferry.FieldSchema(sys.argv[1], returns="tensor")
value = {"flat": [1, 2], "nested": [[1], [2, 3]], "rows": [np.ones(2), np.ones(3)], "one": np.ones(2)}[sys.argv[2]]
result = ferry.get(ferry.put({"x": value}, schema={"x": field}), readonly=True)["x"]
for tensor in [result] if sys.argv[2] in ("flat", "one") else result:
    tensor += 1
"""


@pytest.mark.parametrize(
    ("layout", "name"), [("numbers", "flat"), ("numbers", "nested"), ("ragged", "rows"), ("dense", "one")]
)
def test_readonly_results_as_tensors_come_without_warnings(layout: str, name: str, python: Any) -> None:
    python(READONLY_TENSORS, layout, name)


def test_readonly_arrays_from_tensors(ferry: rollferry.Ferry) -> None:
    schema = {"x": rollferry.FieldSchema("ragged", returns="ndarray")}
    rows = ferry.get(ferry.put({"x": KINDS["tensors"]}, schema=schema), readonly=True)["x"]
    assert not any(row.flags.writeable for row in rows)


# ---- lazy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_lazy_rows_equal_eager_ones(name: str, ferry: rollferry.Ferry) -> None:
    value = KINDS[name]
    rows = carried(ferry, {"x": value}, lazy=True)["x"]
    assert type(rows) is LazyRows
    assert_same(list(rows), list(value))
    assert len(rows) == len(value)
    assert rows.offsets.dtype == np.int64
    assert np.diff(rows.offsets).tolist() == [len(row) for row in value]
    assert len(rows.values) == sum(map(len, value))
    assert str(rows.values.dtype) in repr(rows)
    assert f"{len(value)} rows" in repr(rows)
    for index in range(-len(value), len(value)):
        assert_same(rows[index], value[index])
        assert_same(rows[np.int64(index)], value[index])
    for index in (len(value), -len(value) - 1):
        with pytest.raises(IndexError):
            rows[index]
    assert_same(list(reversed(rows)), list(reversed(value)))


@pytest.mark.parametrize("name", OTHERS)
def test_other_lists_are_rebuilt_when_they_are_looked_into(name: str, ferry: rollferry.Ferry) -> None:
    value, result = OTHERS[name], carried(ferry, {"x": OTHERS[name]}, lazy=True)["x"]
    if isinstance(value, list | tuple):
        assert type(result) is LazyList
        assert len(result) == len(value)
        assert_same(list(result), list(value))
        assert_same(result.tolist(), list(value))
        assert_same(result[:1], list(value)[:1])
        assert_same(list(reversed(result)), list(value)[::-1])
        assert str(len(value)) in repr(result)
        assert type(pickle.loads(pickle.dumps(result))) is list
    else:
        assert_same(result, value)


def test_lazy_lists_share_what_eager_ones_do(ferry: rollferry.Ferry) -> None:
    """An array that occurs in two fields is one object, whichever is looked into first, by whatever thread."""
    array = np.arange(3)
    batch = {"a": [array, "x"], "b": [None, array]}
    for names in ("ab", "ba"):
        result = carried(ferry, batch, lazy=True)
        with ThreadPoolExecutor(8) as threads:
            lists = list(threads.map(lambda name, result=result: result[name].tolist(), names * 20))
        assert len({id(value) for values in lists for value in values if isinstance(value, np.ndarray)}) == 1


def test_lazy_list_says_what_is_wrong_at_each_access(ferry: rollferry.Ferry) -> None:
    with rollferry.connect("inproc://pickled", allow_pickle=True) as other:
        ref = other.put({"x": [object], "y": [1, None]})
    with rollferry.connect("inproc://pickled") as other:
        result = other.get(ref, lazy=True)
        for _ in range(2):
            with pytest.raises(UnsupportedValueError, match="allow_pickle"):
                result["x"][0]
        assert list(result["y"]) == [1, None]


@pytest.mark.parametrize(
    "cut",
    [slice(None), slice(1, 3), slice(-2, None), slice(3, 1), slice(0, 0), slice(2, 99), slice(-99, 1), slice(4, 4)],
)
def test_slices_are_lazy_rows_over_the_same_values(cut: slice, ferry: rollferry.Ferry) -> None:
    rows = carried(ferry, {"x": ROWS}, lazy=True)["x"]
    part = rows[cut]
    assert type(part) is LazyRows
    assert part.values is rows.values
    assert_same(list(part), ROWS[cut])
    assert len(part) == len(ROWS[cut])
    assert_same(list(part[0:1]), ROWS[cut][0:1])


def test_lazy_rows_are_a_read_only_sequence(ferry: rollferry.Ferry) -> None:
    rows = carried(ferry, {"x": ROWS}, lazy=True)["x"]
    assert isinstance(rows, Sequence)
    with pytest.raises(TypeError):
        rows[0] = ROWS[0]
    with pytest.raises(TypeError):
        del rows[0]
    for name in ("values", "offsets", "extra"):
        with pytest.raises(AttributeError):
            setattr(rows, name, None)
    for wrong in ("0", 0.0, None, (0,)):
        with pytest.raises(TypeError):
            rows[wrong]
    with pytest.raises(ValueError, match="step 1"):
        rows[::2]
    rows[2][:] = -1  # the rows themselves are views of the values
    assert rows.values.tolist() == [0, 1, 2, 3, 4, -1, -1, -1, 0, 1]


def test_lazy_rows_make_no_object_for_each_row(ferry: rollferry.Ferry) -> None:
    def objects(rows: int) -> int:
        ref = ferry.put(
            {"x": [np.zeros(1)] + [np.zeros(2) for _ in range(rows)], "t": [torch.ones(1) for _ in range(rows)]}
        )
        gc.collect()
        before = len(gc.get_objects())
        result = ferry.get(ref, lazy=True)
        made = len(gc.get_objects()) - before
        assert len(result["x"]) == len(result["t"]) + 1 == rows + 1
        return made

    objects(2)  # imports, caches
    assert abs(objects(20_000) - objects(20)) < 50


def test_lazy_typed_rows(ferry: rollferry.Ferry) -> None:
    schema = {"x": rollferry.FieldSchema("ragged", dtype="int32", returns="tensor")}
    rows = ferry.get(ferry.put({"x": ROWS}, schema=schema), lazy=True)["x"]
    assert type(rows) is LazyRows
    assert_same(list(rows), [torch.from_numpy(row).to(torch.int32) for row in ROWS])


def test_offsets_that_lie_do_not_reach_beyond_the_values() -> None:
    for offsets in ([0, 5], [-1, 2], [2, 1], [4, 5]):
        with pytest.raises(IndexError):
            LazyRows(np.arange(3), np.array(offsets))[0]


def test_lazy_rows_keep_their_memory(ferry: rollferry.Ferry) -> None:
    rows = carried(ferry, {"x": ROWS}, lazy=True)["x"]
    row = rows[2]
    del rows
    for seed in range(3):
        ferry.remove(ferry.put({"x": [row + seed for row in ROWS]}))
    assert_same(row, ROWS[2])


def test_lazy_rows_are_not_put_as_they_are(ferry: rollferry.Ferry) -> None:
    rows = carried(ferry, {"x": ROWS}, lazy=True)["x"]
    with pytest.raises(UnsupportedValueError, match="LazyRows"):
        ferry.put({"x": rows})
    assert_same(carried(ferry, {"x": list(rows)}), {"x": ROWS})


@pytest.mark.parametrize("name", ["ndarrays", "tensors", "other field", "other dtype"])
def test_lazy_rows_do_not_depend_on_repetitions(name: str, ferry: rollferry.Ferry) -> None:
    a, b = (np.arange(3), np.arange(5)) if name != "tensors" else (torch.arange(3), torch.arange(5))
    batch: dict[str, Any] = {"x": [a, b, a]}
    if name == "other field":
        batch["y"] = [a, b]
    if name == "other dtype":
        batch["y"] = [np.ones(2), a]
    result = carried(ferry, batch, lazy=True)
    assert type(result["x"]) is LazyRows
    assert_same(list(result["x"]), batch["x"])
    if "y" in batch:
        assert type(result["y"]) is (LazyList if name == "other dtype" else LazyRows)
        assert_same(list(result["y"]), batch["y"])
    result["x"][0][0] = 7
    assert result["x"][2][0] == 0
