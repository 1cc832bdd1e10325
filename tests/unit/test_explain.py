"""explain() and infer_schema()."""

from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

import rollferry
from rollferry import Explanation, FieldReport, Schema, SchemaError, UnsupportedValueError

ARRAY = np.arange(4, dtype=np.int32)

# name -> value, layout, dtype, bytes (None: not fixed), path, a word of `why`
FIELDS: dict[str, tuple[Any, str, str, int | None, str, str]] = {
    "dense": (np.ones((2, 3), np.float32), "dense", "float32", 24, "fast", "one array"),
    "tensor": (torch.ones(3, dtype=torch.bfloat16), "dense", "bfloat16", 6, "fast", "one array"),
    "rows": ([ARRAY.copy(), ARRAY[:2].copy()], "ragged", "int32", 24 + 24, "fast", "arrays of one dtype"),
    "strided": ([np.arange(8)[::2], np.arange(3)], "ragged", "int64", 56 + 24, "general", "arrays of one dtype"),
    "big endian": ([np.arange(2, dtype=">i4"), np.arange(1, dtype=">i4")], "ragged", ">i4", 12 + 24, "fast", "arrays"),
    "ints": ([1, 2, 3], "numbers", "uint8", 3, "fast", "numbers"),
    "wide": ([1, -300], "numbers", "int16", 4, "fast", "numbers"),
    "floats": ([0.1, 0.2], "numbers", "float64", 16, "fast", "numbers"),
    "nested": ([[1], [2, 3]], "numbers", "uint8", 3 + 24, "fast", "lists"),
    "one": (5, "numbers", "uint8", 1, "fast", "numbers"),
    "text": (["ab", "c"], "text", "str", 3 + 24, "fast", "strings"),
    "texts": ([["ab"], []], "text", "str", None, "fast", "lists"),
    "images": ([PIL.Image.new("L", (2, 2))] * 2, "media", "", None, "general", "stored once"),
    "dicts": ([{"a": 1}, {"a": 2}], "tree", "uint8", 2, "general", "dicts of few shapes"),
    "maps": ([{(1, 2): 1}], "tree", "uint8", None, "general", "unusual keys"),
    "mixed": ([1, "a"], "tree", "", None, "general", "several kinds"),
    "optional": ([ARRAY, None, ARRAY[:1]], "ragged", "int32", None, "general", "several kinds"),
    "shared": ([ARRAY, ARRAY], "ragged", "int32", None, "general", "stored once"),
    "none": (None, "tree", "", 1, "fast", "None"),
    "empty": ([], "tree", "", 0, "fast", "empty"),
    "scalar": (np.float32(1), "tree", "float32", 4, "general", "scalars"),
    "objects": (np.array([1, None], object), "tree", "", None, "general", "object arrays"),
    "huge": (1 << 100, "tree", "", None, "general", "taken apart"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_reports_say_what_put_does(name: str, ferry: rollferry.Ferry) -> None:
    value, layout, dtype, nbytes, path, why = FIELDS[name]
    report = ferry.explain({name: value})[name]
    assert type(report) is FieldReport
    assert (report.key, report.layout, report.path) == (name, layout, path)
    assert report.copies == {"images": 2, "empty": 0}.get(name, 1)
    if name not in ("huge", "images", "objects", "mixed"):
        assert report.dtype == dtype
    assert nbytes is None or report.nbytes == nbytes
    assert why in report.why
    ref = ferry.put({name: value})
    assert report.nbytes <= ref.nbytes <= report.nbytes + 64 * 16
    assert ferry.list() == [ref.id]  # explain puts nothing


def test_an_explanation_is_a_sequence_and_a_table(ferry: rollferry.Ferry) -> None:
    batch = {name: field[0] for name, field in FIELDS.items()} | {7: [1], (1, 2): "x"}
    explanation = ferry.explain(batch)
    assert type(explanation) is Explanation
    assert len(explanation) == len(batch)
    assert [report.key for report in explanation] == list(batch)
    assert explanation[7].layout == "numbers"
    with pytest.raises(KeyError):
        explanation["other"]
    text = str(explanation)
    assert repr(explanation) == text
    for report in explanation:
        assert str(report.key) in text
        assert report.layout in text
    assert "\x1b" not in text
    for heading in ("field", "layout", "why", "dtype", "bytes", "copies", "path"):
        assert heading in text


def test_each_field_counts_its_own_bytes(ferry: rollferry.Ferry) -> None:
    rows = [np.ones(1000), np.ones(500)]
    explanation = ferry.explain({"first": rows, "again": list(rows), "other": [{"a": [np.ones(10)]}]})
    assert explanation["first"].nbytes > 12_000
    assert explanation["again"].nbytes < 200
    assert 80 <= explanation["other"].nbytes < 200


def test_explain_refuses_what_put_refuses(ferry: rollferry.Ferry) -> None:
    schema = {"x": rollferry.FieldSchema("dense")}
    for use in (ferry.explain, ferry.put):
        with pytest.raises(UnsupportedValueError, match=r"^x\[1\]"):
            use({"x": [1, object()]})
        with pytest.raises(SchemaError):
            use({"x": 5}, schema=schema)
    with rollferry.connect("inproc://", allow_pickle=True) as trusting:
        assert trusting.explain({"x": object()})["x"].layout == "pickled"


# ---- infer_schema -------------------------------------------------------------------------------------------------

ROUND_TRIPS: dict[str, Any] = {
    **{name: field[0] for name, field in FIELDS.items()},
    "bools": [True, False],
    "tuple": ((1, 2), (3,)),
    "deep text": [[["a"]]],
    "empty rows": [[], []],
    "dates": np.zeros(2, "M8[ns]"),
    "strings": np.array(["ab", "c"]),
    "bf16": [torch.ones(2, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)],
    "scalar array": np.array(3),
    "one row": [ARRAY],
    "one tensor": [torch.ones(2)],
    "one tuple row": (ARRAY,),
    "two dtypes": [np.arange(3), np.arange(3.0)],
    "libraries": [np.arange(3), torch.arange(3)],
    "scalar arrays": [np.array(1), np.array(2)],
    "structured": np.zeros(2, [("a", "<i4")]),
    "None within": [[1, None], [2]],
    "mixed within": [[1, 2.5]],
    "four levels": [[[[1]]]],
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_an_inferred_schema_accepts_its_batch(name: str, ferry: rollferry.Ferry) -> None:
    batch = {name: ROUND_TRIPS[name]}
    schema = ferry.infer_schema(batch)
    assert type(schema) is Schema
    assert list(schema) == [name]
    without, with_schema = ferry.explain(batch)[name], ferry.explain(batch, schema=schema)[name]
    assert with_schema == without
    result = ferry.get(ferry.put(batch, schema=schema))
    assert type(result[name]) is type(batch[name])


def test_an_inferred_schema_asks_for_what_it_saw(ferry: rollferry.Ferry) -> None:
    schema = ferry.infer_schema(
        {"a": [ARRAY.copy(), ARRAY[:1].copy()], "n": [1, None], "d": np.ones(2), 3: "x", (1,): 2}
    )
    assert {key: (field.layout, field.dtype, field.nullable) for key, field in schema.items()} == {
        "a": ("ragged", "int32", False),
        "n": ("numbers", None, True),
        "d": ("dense", "float64", False),
        3: ("text", None, False),
    }
    assert eval(repr(schema), {"Schema": Schema, "FieldSchema": rollferry.FieldSchema}) == schema
    for broken, row in (([ARRAY, None], 1), ([np.array([1 << 40])], 0), (["x"], 0)):
        with pytest.raises(SchemaError) as caught:
            ferry.put({"a": broken}, schema=schema)
        assert (caught.value.field, caught.value.row) == ("a", row)
    assert ferry.get(ferry.put({"n": [5, 6, None], "new": 1}, schema=schema)) == {"n": [5, 6, None], "new": 1}
