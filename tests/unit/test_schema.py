"""Schemas: what they take, how it is stored, what comes back, and the errors."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

import rollferry
from rollferry import FieldSchema, Schema, SchemaError, UnsupportedValueError
from rollferry.testing import assert_same

Files = Callable[[str], dict[str, int]]


def arrays(*lengths: int, dtype: Any = np.int64) -> list[Any]:
    return [np.arange(length).astype(dtype) for length in lengths]


def tensors(*lengths: int, dtype: Any = torch.int64) -> list[Any]:
    return [torch.arange(length).to(dtype) for length in lengths]


def carried(ferry: rollferry.Ferry, value: Any, field: FieldSchema) -> Any:
    return ferry.get(ferry.put({"x": value}, schema={"x": field}))["x"]


def png() -> bytes:
    out = io.BytesIO()
    PIL.Image.new("L", (2, 2)).save(out, "PNG")
    return out.getvalue()


STORED_SAME = [
    (FieldSchema("dense"), np.arange(6.0).reshape(2, 3)),
    (FieldSchema("dense", dtype="int16"), np.arange(6).reshape(2, 3)),
    (FieldSchema("dense", dtype="float32"), np.array([0.0, -0.0, np.nan, np.inf, 0.5])),
    (FieldSchema("dense", dtype="int8"), np.arange(4, dtype=">i4")[::-1]),
    (FieldSchema("dense", dtype="bool"), np.array([0, 1, 1])),
    (FieldSchema("dense", dtype="int8"), np.array(5)),
    (FieldSchema("dense", dtype="int32"), torch.arange(4)),
    (FieldSchema("dense", dtype="bfloat16"), torch.tensor([0.5, -0.0, 3.0])),
    (FieldSchema("dense"), None),
    (FieldSchema("ragged"), arrays(3, 0, 2)),
    (FieldSchema("ragged", dtype="int8"), tuple(arrays(3, 0, 2))),
    (FieldSchema("ragged", dtype="int8"), arrays(3)),
    (FieldSchema("ragged", dtype="int8"), [*arrays(3, 2), None]),
    (FieldSchema("ragged", dtype="int8"), [arrays(3)[0]] * 3),
    (FieldSchema("ragged", dtype="float32"), [np.ones((2, 3)), np.ones((1, 4))]),
    (FieldSchema("ragged", dtype="uint8"), tensors(3, 0, 2)),
    (FieldSchema("ragged", dtype="int32"), [[1, 2], [], [3]]),
    (FieldSchema("ragged", dtype="int32"), ([1, 2], (), None)),
    (FieldSchema("ragged"), []),
    (FieldSchema("numbers"), [1, 2, 3]),
    (FieldSchema("numbers", dtype="int64"), [1, 2, 3]),
    (FieldSchema("numbers", dtype="float32"), [0.5, -0.0, float("nan"), float("inf")]),
    (FieldSchema("numbers", dtype="float64"), [[0.1], [], [0.2, 0.3]]),
    (FieldSchema("numbers", dtype="bool"), (True, False)),
    (FieldSchema("numbers", dtype="uint8"), [255, None, 0]),
    (FieldSchema("numbers", dtype="uint64"), (1 << 64) - 1),
    (FieldSchema("numbers"), [1, 2.5, True, None]),
    (FieldSchema("numbers"), [1 << 80, -1]),
    (FieldSchema("text"), ["a", "ü", "", None]),
    (FieldSchema("text"), [b"a", bytearray(b"b")]),
    (FieldSchema("text"), [["a", "b"], []]),
    (FieldSchema("text"), "whole"),
    (FieldSchema("media"), [PIL.Image.new("RGB", (3, 2), (1, 2, 3)), None, png()]),
    (FieldSchema("media"), PIL.Image.new("L", (3, 2))),
    (FieldSchema("tree"), [{"a": [1]}, None, "x", np.arange(2)]),
    (FieldSchema("tree"), {"a": {"b": ()}}),
    (FieldSchema(), [1, "x", None]),
    (FieldSchema(row_aligned=False), np.arange(3)),
    (FieldSchema(nullable=False, row_aligned=False), [{"a": 1}, 2]),
    (FieldSchema("ragged", dtype="int8", row_aligned=False), arrays(3, 0)),
    (FieldSchema("dense", row_aligned=False), torch.arange(4)),
]


@pytest.mark.parametrize(("field", "value"), STORED_SAME)
def test_what_was_put_comes_back_however_it_is_stored(field: FieldSchema, value: Any, ferry: rollferry.Ferry) -> None:
    assert_same(carried(ferry, value, field), value)


def test_a_dtype_decides_what_is_stored(ferry: rollferry.Ferry) -> None:
    batch = {"a": arrays(40, 60), "n": list(range(100)), "d": np.arange(100), "t": torch.arange(100)}
    names = {"a": ("ragged", 1), "n": ("numbers", 2), "d": ("dense", 1), "t": ("dense", 1)}
    schema = {key: FieldSchema(layout, dtype=f"int{8 * size}") for key, (layout, size) in names.items()}
    report = ferry.explain(batch, schema=schema)
    for key, (layout, size) in names.items():
        offsets = 24 if key == "a" else 0
        assert (report[key].layout, report[key].dtype, report[key].nbytes) == (
            layout,
            f"int{8 * size}",
            100 * size + offsets,
        )
    assert_same(ferry.get(ferry.put(batch, schema=schema)), batch)


def test_pickled_needs_both_sides(shm_directory: Path) -> None:
    schema = {"x": FieldSchema("pickled")}
    with rollferry.connect(f"shm://{shm_directory}", allow_pickle=True) as ferry:
        for value in ([{"a": 1}, None, 2], (), [], {"a": {1}}, None):
            ref = ferry.put({"x": value}, schema=schema)
            assert_same(ferry.get(ref), {"x": value})
            assert ferry.explain({"x": value}, schema=schema)["x"].layout == "pickled"
    with rollferry.connect(f"shm://{shm_directory}") as strict:
        for value in ([{"a": 1}], [], None):
            with pytest.raises(UnsupportedValueError, match="allow_pickle"):
                strict.put({"x": value}, schema=schema)
        with pytest.raises(UnsupportedValueError, match="allow_pickle"):
            strict.get(ref)


I32, F32 = {"dtype": "int32"}, {"dtype": "float32"}
TYPED = [
    ("numbers", I32, [1, 2, 3], np.array([1, 2, 3], np.int32)),
    ("numbers", I32, (1, 2), np.array([1, 2], np.int32)),
    ("numbers", F32, [1, 1 << 24], np.array([1, 1 << 24], np.float32)),
    ("numbers", F32, [0.5, 2.0], np.array([0.5, 2], np.float32)),
    ("numbers", I32, [], np.array([], np.int32)),
    ("numbers", I32, (), np.array([], np.int32)),
    ("numbers", {}, [True, False], np.array([True, False])),
    ("numbers", I32, [[1], [], [2, 3]], [np.array(row, np.int32) for row in ([1], [], [2, 3])]),
    ("numbers", I32, ((1,), (2, 3)), (np.array([1], np.int32), np.array([2, 3], np.int32))),
    ("ragged", I32, [[1], [], [2, 3]], [np.array(row, np.int32) for row in ([1], [], [2, 3])]),
    ("ragged", I32, [[], []], [np.array([], np.int32)] * 2),
    ("ragged", I32, [[1], None], [np.array([1], np.int32), None]),
    ("ragged", I32, arrays(3, 2), arrays(3, 2, dtype=np.int32)),
    ("ragged", I32, tensors(3, 2), arrays(3, 2, dtype=np.int32)),
    ("ragged", I32, tensors(3), arrays(3, dtype=np.int32)),
    ("ragged", I32, [[1, 2], np.arange(3)], [np.array([1, 2], np.int32), np.arange(3, dtype=np.int32)]),
    ("ragged", {}, tensors(3, 2), arrays(3, 2)),
    ("dense", F32, np.ones((2, 2)), np.ones((2, 2), np.float32)),
    ("dense", F32, torch.ones(2, 2), np.ones((2, 2), np.float32)),
    ("dense", {}, torch.ones(2, 2), np.ones((2, 2), np.float32)),
    ("dense", {}, None, None),
]


@pytest.mark.parametrize("returns", ["ndarray", "tensor"])
@pytest.mark.parametrize(("layout", "options", "value", "expected"), TYPED)
def test_typed_results(
    layout: Any, options: Any, value: Any, expected: Any, returns: Any, ferry: rollferry.Ferry
) -> None:
    def wanted(item: Any) -> Any:
        return torch.from_numpy(item.copy()) if returns == "tensor" and item is not None else item

    result = carried(ferry, value, FieldSchema(layout, returns=returns, **options))
    rows = expected if isinstance(expected, list | tuple) else [expected]
    got = result if isinstance(expected, list | tuple) else [result]
    assert type(got) is type(rows)
    assert_same(list(got), [wanted(row) for row in rows])
    for row in got:
        if row is not None and len(row):
            row[:] = 0  # writable


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, 2.5], "float64"),
        ([1, 2.5], None),
        ([1, None], "int32"),
        (1, "int32"),
        ([[1], [2.5]], "float64"),
        ([[1], [2.5]], "float32"),
        ([1 << 80], None),
    ],
)
def test_numbers_that_make_no_typed_array_are_refused(value: Any, dtype: str | None, ferry: rollferry.Ferry) -> None:
    with pytest.raises(SchemaError, match="field 'x'"):
        ferry.put({"x": value}, schema={"x": FieldSchema("numbers", dtype=dtype, returns="ndarray")})
    assert ferry.list() == []


REFUSED = [
    (FieldSchema("dense"), [1, 2], None, "type list"),
    (FieldSchema("dense"), 5, None, "type int"),
    (FieldSchema("dense", nullable=False), None, None, "None"),
    (FieldSchema("ragged"), [*arrays(2), "x"], 1, "type str"),
    (FieldSchema("ragged"), [[1], [2, "x"]], 1, "numbers"),
    (FieldSchema("ragged"), [1, 2], 0, "type int"),
    (FieldSchema("ragged", nullable=False), [*arrays(2, 1), None], 2, "None"),
    (FieldSchema("numbers"), [1, 2, "3"], 2, "type str"),
    (FieldSchema("numbers"), [1, np.int64(2)], 1, "type int64"),
    (FieldSchema("numbers"), [[1], ["x"]], 1, "numbers"),
    (FieldSchema("numbers", nullable=False), [1, None], 1, "None"),
    (FieldSchema("numbers", nullable=False), None, None, "None"),
    (FieldSchema("text"), ["a", 1], 1, "type int"),
    (FieldSchema("media"), [b"", "x"], 1, "type str"),
    (FieldSchema("tree", nullable=False), [{}, None], 1, "None"),
    (FieldSchema("dense", dtype="int8"), np.array([1, 128]), None, "int8"),
    (FieldSchema("dense", dtype="float32"), np.array([0.1]), None, "float32"),
    (FieldSchema("dense", dtype="int64"), np.array([np.nan]), None, "int64"),
    (FieldSchema("dense", dtype="int64"), np.array(["x"]), None, "int64"),
    (FieldSchema("dense", dtype="bfloat16"), np.ones(2), None, "bfloat16"),
    (FieldSchema("dense", dtype="bfloat16"), torch.tensor([0.1]), None, "bfloat16"),
    (FieldSchema("dense", dtype="nonsense"), torch.ones(2), None, "nonsense"),
    (FieldSchema("dense", returns="ndarray"), torch.ones(2, dtype=torch.bfloat16), None, "ndarray"),
    (FieldSchema("dense", returns="tensor"), np.zeros(2, "M8[s]"), None, "tensor"),
    (FieldSchema("ragged", dtype="int8"), [*arrays(2), np.array([300])], 1, "int8"),
    (FieldSchema("ragged", dtype="int8"), [*tensors(2), torch.tensor([300])], 1, "int8"),
    (FieldSchema("ragged", dtype="int8"), [[1], [2], [300]], 2, "int8"),
    (FieldSchema("numbers", dtype="uint8"), [1, -1], 1, "uint8"),
    (FieldSchema("numbers", dtype="float32"), [0.5, 0.1], 1, "float32"),
    (FieldSchema("numbers", dtype="float64"), [1], 0, "float64"),
    (FieldSchema("numbers", dtype="float32", returns="ndarray"), [1, (1 << 24) + 1], 1, "float32"),
    (FieldSchema("numbers", dtype="float16"), [0.5], 0, "float16"),
    (FieldSchema("numbers", dtype="nonsense"), [1], 0, "nonsense"),
    (FieldSchema("numbers", dtype="int32"), [True], 0, "int32"),
    (FieldSchema("numbers", dtype="int32"), [1, 1 << 80], 1, "int32"),
    (FieldSchema("dense", dtype="float32"), np.array([1 + 0j]), None, "float32"),
    (FieldSchema("text"), [["a"], [1]], 1, "text"),
    (FieldSchema(nullable=False), [1, None], 1, "None"),
    (FieldSchema(nullable=False), None, None, "None"),
]


@pytest.mark.parametrize(("field", "value", "row", "about"), REFUSED)
def test_errors_name_field_and_row(
    field: FieldSchema, value: Any, row: int | None, about: str, ferry: rollferry.Ferry, stored: Files
) -> None:
    with pytest.raises(SchemaError, match=about) as caught:
        ferry.put({"before": np.ones(1000), "x": value}, schema={"x": field})
    assert (caught.value.field, caught.value.row) == ("x", row)
    assert "field 'x'" in str(caught.value)
    assert ("row" in str(caught.value).partition(": ")[0]) == (row is not None)
    assert (stored("live"), stored("tmp"), stored("pool"), ferry.list()) == ({}, {}, {}, [])
    assert ferry.usage().live_nbytes == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: FieldSchema("sparse"),  # type: ignore[arg-type]
        lambda: FieldSchema("dense", returns="list"),  # type: ignore[arg-type]
        lambda: FieldSchema("dense", dtype=np.dtype("int8")),  # type: ignore[arg-type]
        lambda: FieldSchema("text", dtype="int8"),
        lambda: FieldSchema("tree", returns="ndarray"),
        lambda: FieldSchema(dtype="int8"),
        lambda: FieldSchema(returns="tensor"),
        lambda: Schema({"x": "dense"}),  # type: ignore[dict-item]
        lambda: rollferry.connect("inproc://", schema={"x": 5}),  # type: ignore[dict-item]
        lambda: rollferry.connect("inproc://", schema=[]),  # type: ignore[arg-type]
    ],
)
def test_schemas_that_make_no_sense(make: Callable[[], object]) -> None:
    with pytest.raises(SchemaError):
        make()


def test_a_schema_is_a_mapping() -> None:
    fields: Any = {"x": FieldSchema("dense"), 3: FieldSchema("text")}
    schema = Schema(fields)
    assert dict(schema) == fields
    assert (len(schema), schema[3], "y" in schema) == (2, fields[3], False)
    assert {FieldSchema("text"), FieldSchema("text")} == {FieldSchema("text")}


def test_the_schema_of_a_put_comes_before_that_of_the_ferry(shm_directory: Path) -> None:
    narrow = {"x": FieldSchema("dense", dtype="int8"), "y": FieldSchema("dense", nullable=False)}
    with rollferry.connect(f"shm://{shm_directory}", schema=narrow) as ferry:
        batch = {"x": np.array([300]), "y": np.ones(1), "free": {"any": 1}}
        with pytest.raises(SchemaError, match="int8"):
            ferry.put(batch)
        for schema in ({"x": FieldSchema("dense", dtype="int16")}, Schema({"x": FieldSchema("dense")})):
            assert_same(ferry.get(ferry.put(batch, schema=schema)), batch)
            with pytest.raises(SchemaError, match="None"):
                ferry.put({**batch, "y": None}, schema=schema)
        with pytest.raises(SchemaError, match="int8"):  # it was for those puts only
            ferry.put(batch)
        assert ferry.explain(batch, schema={"x": FieldSchema("dense", dtype="int16")})["x"].dtype == "int16"


def test_int_keys_have_schemas_and_equal_keys_of_other_types_do_not(ferry: rollferry.Ferry) -> None:
    schema = {1: FieldSchema("numbers", dtype="int8", returns="ndarray")}
    assert_same(ferry.get(ferry.put({1: [5]}, schema=schema)), {1: np.array([5], np.int8)})
    assert_same(ferry.get(ferry.put({True: [5], "1": [6]}, schema=schema)), {True: [5], "1": [6]})


def test_fields_that_hold_no_value_per_sample(ferry: rollferry.Ferry) -> None:
    batch = {
        "x": [1, 2],
        "y": [1, 2, 3],
        "z": np.ones(4),
        "o": np.array([1, None], object),
        "w": np.array(None, object),
    }
    loose = FieldSchema(row_aligned=False)
    assert ferry.put(batch).rows is None
    assert ferry.put(batch, schema={"y": loose, "z": FieldSchema("dense", row_aligned=False)}).rows == 2
    assert ferry.put(batch, schema={"y": loose, "x": loose, "o": loose}).rows == 4
    assert ferry.put(batch, schema={name: loose for name in batch}).rows is None
    assert ferry.put({"o": batch["o"], "w": batch["w"]}).rows == 2
    assert ferry.explain(batch, schema={"y": loose})["y"].layout == "numbers"
    assert_same(ferry.get(ferry.put(batch, schema={"y": loose})), batch)
