"""Rows as training code takes them: packed, padded and nested."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollferry
from rollferry import SelectionError

ROWS = [np.arange(3, dtype=np.int32), np.arange(0, dtype=np.int32), np.arange(10, 15, dtype=np.int32)]
BATCH: dict[str, Any] = {
    "tokens": ROWS,
    "lists": [[1, 2], [], [300]],
    "experts": [np.full((n, 2, 2), n, np.uint8) for n in (2, 1, 3)],
    "same": [ROWS[0]] * 3,
    "grid": np.arange(6.0).reshape(3, 2),
    "half": [np.ones(2, np.float16), np.ones(1, np.float16), np.ones(0, np.float16)],
    "none": [ROWS[0], None, ROWS[2]],
    "texts": ["a", "b", "c"],
    "numbers": [1, 2, 3],
    "big": [np.ones(2, ">i4"), np.ones(2, ">i4"), np.ones(2, ">i4")],
}


@pytest.fixture
def ref(ferry: rollferry.Ferry) -> Any:
    return ferry.put(BATCH)


def mapped_file(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split(maxsplit=5)
        start, stop = (int(bound, 16) for bound in span.split("-"))
        if start <= address < stop:
            return name
    return ""


@pytest.mark.parametrize("rows", [None, slice(1, 3), [2, 0], []])
@pytest.mark.parametrize("name", ["tokens", "lists", "experts", "same", "grid", "half"])
def test_packed(ferry: rollferry.Ferry, ref: Any, name: str, rows: Any) -> None:
    expected = [np.asarray(BATCH[name][n]) for n in np.arange(3)[slice(None) if rows is None else rows].tolist()]
    values, cu_seqlens, longest = ferry.packed(ref, name, rows=rows)
    assert cu_seqlens.dtype == np.int32
    assert cu_seqlens.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert longest == max(map(len, expected), default=0)
    assert len(values) == cu_seqlens[-1]
    for row, start, stop in zip(expected, cu_seqlens, cu_seqlens[1:], strict=False):
        assert np.array_equal(values[start:stop], row)
    assert values.dtype == np.asarray(BATCH[name][0]).dtype


def test_packed_values_are_memory_of_the_bundle(ferry: rollferry.Ferry, ref: Any) -> None:
    pytest.importorskip("torch")
    for rows in (None, slice(1, 3)):
        values = [
            ferry.packed(ref, "tokens", rows=rows).values,
            ferry.packed(ref, "tokens", rows=rows, library="torch").values.numpy(),
            ferry.nested(ref, "tokens", rows=rows).values().numpy(),
        ]
        assert [ref.id in mapped_file(array.ctypes.data) for array in values] == [True] * 3


def test_packed_torch(ferry: rollferry.Ferry, ref: Any) -> None:
    torch = pytest.importorskip("torch")
    values, cu_seqlens, longest = ferry.packed(ref, "tokens", library="torch")
    assert (values.dtype, cu_seqlens.dtype, longest) == (torch.int32, torch.int32, 5)
    assert values.tolist() == [0, 1, 2, 10, 11, 12, 13, 14]
    assert cu_seqlens.tolist() == [0, 3, 3, 8]
    stored = ferry.put({"a": [torch.ones(2, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16)]})
    assert ferry.packed(stored, "a", library="torch").values.dtype == torch.bfloat16
    with pytest.raises(SelectionError, match="bfloat16"):
        ferry.packed(stored, "a")


@given(lengths=st.lists(st.integers(0, 5), max_size=6), left=st.booleans(), multiple=st.integers(1, 4))
def test_padded(lengths: list[int], left: bool, multiple: int) -> None:
    torch = pytest.importorskip("torch")
    rows = [np.arange(n * 2).reshape(n, 2) for n in lengths]
    width = -(-max(lengths, default=0) // multiple) * multiple
    expected = np.full((len(rows), width, 2), -1)
    for number, row in enumerate(rows):
        if len(row):
            expected[number, -len(row) :] = row if left else expected[number, -len(row) :]
            expected[number, : len(row)] = expected[number, : len(row)] if left else row
    with rollferry.connect("inproc://padded") as ferry:
        ref = ferry.put({"a": rows})
        options: Any = {"value": -1, "side": "left" if left else "right", "to_multiple_of": multiple}
        if rows:
            assert np.array_equal(ferry.padded(ref, "a", **options), expected)
            assert torch.equal(ferry.padded(ref, "a", library="torch", **options), torch.from_numpy(expected))
        else:
            with pytest.raises(SelectionError, match="no rows that could be packed"):
                ferry.padded(ref, "a", **options)
        ferry.remove(ref)


@pytest.mark.parametrize("rows", [None, [2, 0], slice(0, 2)])
def test_nested(ferry: rollferry.Ferry, ref: Any, rows: Any) -> None:
    torch = pytest.importorskip("torch")
    found = ferry.nested(ref, "experts", rows=rows)
    assert found.layout == torch.jagged
    expected = [BATCH["experts"][n] for n in np.arange(3)[slice(None) if rows is None else rows].tolist()]
    assert [np.array_equal(a.numpy(), b) for a, b in zip(found.unbind(), expected, strict=True)] == [True] * len(
        expected
    )


@pytest.mark.parametrize("name", ["none", "texts", "numbers"])
@pytest.mark.parametrize("call", ["packed", "padded", "nested"])
def test_what_has_no_such_rows(ferry: rollferry.Ferry, ref: Any, name: str, call: str) -> None:
    with pytest.raises(SelectionError, match=f"'{name}' has no rows that could be packed"):
        getattr(ferry, call)(ref, name)


@pytest.mark.parametrize("options", [{"library": "jax"}, {"side": "up"}, {"to_multiple_of": 0}])
def test_options_that_there_are_not(ferry: rollferry.Ferry, ref: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ferry.padded(ref, "tokens", **options)
    if "library" in options:
        with pytest.raises(ValueError, match="must be one of numpy, torch, not 'jax'"):
            ferry.packed(ref, "tokens", **options)


def test_what_torch_does_not_have(ferry: rollferry.Ferry, ref: Any) -> None:
    with pytest.raises(SelectionError, match=">i4"):
        ferry.packed(ref, "big", library="torch")
    with pytest.raises(SelectionError, match="did you mean 'tokens'"):
        ferry.packed(ref, "token")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: np.zeros(8, np.int32), "tokens"),
        (lambda: np.zeros((6, 2, 2), np.uint8), "experts"),
        (lambda: np.zeros((3, 2)), "grid"),
        (lambda: np.zeros((2, 3)).T, "grid"),
        (lambda: np.zeros(3, np.int64), "numbers"),
        (lambda: np.zeros(3, np.uint8), "numbers"),
        (lambda: np.zeros(3, np.int64), "lists"),
    ],
)
def test_into(ferry: rollferry.Ferry, ref: Any, make: Callable[[], Any], name: str) -> None:
    torch = pytest.importorskip("torch")
    for buffer in (make(), torch.from_numpy(make())):
        found = ferry.get(ref, fields=["texts", name], into={name: buffer})
        assert found["texts"] == ["a", "b", "c"]
        if isinstance(found[name], list):
            assert [row.tolist() for row in found[name]] == [np.asarray(row).tolist() for row in BATCH[name]]
            assert np.asarray(buffer).tolist() == np.concatenate([np.asarray(row) for row in BATCH[name]]).tolist()
            buffer[0] = 7
            assert (np.asarray(found[name][0][0]) == 7).all()
        else:
            assert found[name] is buffer
            assert buffer.tolist() == np.asarray(BATCH[name]).tolist()


def test_into_with_rows(ferry: rollferry.Ferry, ref: Any) -> None:
    buffer = np.zeros(8, np.int32)
    found = ferry.get(ref, rows=[2, 0], fields=["tokens"], into={"tokens": buffer})["tokens"]
    assert buffer.tolist() == [10, 11, 12, 13, 14, 0, 1, 2]
    assert [row.tolist() for row in found] == [[10, 11, 12, 13, 14], [0, 1, 2]]


@pytest.mark.parametrize(
    ("into", "message"),
    [
        ({"tokens": np.zeros(8, np.int64)}, "dtype int64, the values have int32"),
        ({"tokens": np.zeros(9, np.int32)}, r"shape \(9,\), the values have \(8,\)"),
        ({"grid": np.zeros((3, 2), np.float32)}, "dtype float32, the values have float64"),
        ({"lists": np.zeros(3, np.uint8)}, "dtype uint8, the values have int64"),
        ({"numbers": np.zeros(3, np.float16)}, "dtype float16, the values have int64"),
        ({"texts": np.zeros(3)}, "'texts' can't be read into a buffer"),
        ({"none": np.zeros(8, np.int32)}, "'none' can't be read into a buffer"),
        ({"tokens": [0] * 8}, "must be an ndarray or tensor, not list"),
        ({"tokens": np.frombuffer(bytes(32), np.int32)}, "read-only"),
        ({"tokenz": np.zeros(8, np.int32)}, "'tokenz', which is no field"),
    ],
)
def test_buffers_that_do_not_fit(ferry: rollferry.Ferry, ref: Any, into: Any, message: str) -> None:
    good = np.full((3, 2), 9.0)
    with pytest.raises(SelectionError, match=message):
        ferry.get(ref, into={"grid": good, **into})
    assert (good == 9).all()


def test_fields_and_rows_that_are_not_there(ferry: rollferry.Ferry, ref: Any) -> None:
    for options, message in [
        ({"fields": ["tokenz"]}, "no field 'tokenz'; did you mean 'tokens'"),
        ({"fields": ["tokens", "tokens"]}, "twice"),
        ({"fields": "tokens"}, "list of names"),
        ({"rows": [3]}, "no row 3: there are 3"),
        ({"rows": [-4]}, "no row -4"),
        ({"rows": [0.5]}, "ints or bools"),
        ({"rows": 1}, "one-dimensional"),
        ({"rows": [True]}, "1 bools for 3 rows"),
        ({"rows": ["a"]}, "ints or bools"),
        ({"rows": slice("a", None)}, "rows can't be"),
        ({"rows": np.array([2**64 - 1], np.uint64)}, "no row 18446744073709551615"),
    ]:
        with pytest.raises(SelectionError, match=message):
            ferry.get(ref, **options)
    other = ferry.put({"a": [1, 2], "b": [1, 2, 3], "c": "text"})
    with pytest.raises(SelectionError, match="'a' has 2, 'b' has 3"):
        ferry.get(other, rows=[0])
    assert ferry.get(other, rows=[1], fields=["b", "c"]) == {"b": [2], "c": "text"}
    with pytest.raises(SelectionError, match="none of the fields has rows"):
        ferry.get(other, rows=[0], fields=["c"])


def test_bytes_follow_the_selection(ferry: rollferry.Ferry) -> None:
    rng = np.random.default_rng(5)
    rows = [rng.integers(0, 9, rng.integers(50, 400)) for _ in range(1024)]
    ref = ferry.put({"a": rows, "b": [row.astype(np.float32) for row in rows], "c": [str(len(row)) for row in rows]})
    for wanted in (slice(128, 256), slice(None, None, 8), rng.permutation(1024)[:128]):
        ferry.get(ref, rows=wanted)
        fetched = ferry.timings[-1].fetched_nbytes
        assert 0 < fetched <= sum(rows[n].nbytes for n in np.arange(1024)[wanted]) * 1.6
        assert fetched <= ref.nbytes / 6
    ferry.get(ref, fields=["c"])
    assert ferry.timings[-1].fetched_nbytes < ref.nbytes / 50
    ferry.get(ref)
    assert ferry.timings[-1].fetched_nbytes == ref.nbytes


@pytest.mark.parametrize("lengths", [None, [1, 0, 2]])
@pytest.mark.parametrize("start", [0, 1])
def test_jagged_nested_tensors(ferry: rollferry.Ferry, lengths: list[int] | None, start: int) -> None:
    torch = pytest.importorskip("torch")
    offsets, values = torch.tensor([start, 3, 3, 5]), torch.arange(12).reshape(6, 2)
    sizes = None if lengths is None else torch.tensor(lengths)
    ref = ferry.put({"x": torch.nested.nested_tensor_from_jagged(values, offsets, sizes)})
    counts = lengths or [3 - start, 0, 2]
    rows = [values.numpy()[place : place + count] for place, count in zip((start, 3, 3), counts, strict=True)]
    found = ferry.packed(ref, "x")
    assert (found.values == np.concatenate(rows)).all()
    assert np.diff(found.cu_seqlens).tolist() == counts
    assert (ferry.packed(ref, "x", rows=[2, 0]).values == np.concatenate([rows[2], rows[0]])).all()
    other = torch.nested.nested_tensor_from_jagged(torch.arange(12).reshape(2, 6), offsets, jagged_dim=2)
    with pytest.raises(SelectionError, match="'x'"):
        ferry.packed(ferry.put({"x": other}), "x")


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_rows_are_filled_up_with_is_kept(ferry: rollferry.Ferry, library: Any) -> None:
    if library == "torch":
        pytest.importorskip("torch")
    batch = {
        "lists": [[1, 2], [3]],
        "large": [[1, 200], [70_000]],
        "bytes": [np.ones(2, np.uint8), np.ones(1, np.uint8)],
    }
    batch |= {"floats": [np.ones(2, np.float32), np.ones(1, np.float32)], "flags": [[True], [False, True]]}
    ref = ferry.put(batch)
    assert ferry.padded(ref, "lists", value=-100, library=library).tolist() == [[1, 2], [3, -100]]
    assert ferry.padded(ref, "large", value=-100, library=library).tolist() == [[1, 200], [70_000, -100]]
    assert ferry.padded(ref, "floats", value=0.5, library=library).tolist() == [[1, 1], [1, 0.5]]
    assert np.isnan(np.asarray(ferry.padded(ref, "floats", value=float("nan"), library=library))).sum() == 1
    assert ferry.padded(ref, "flags", library=library).tolist() == [[True, False], [False, True]]
    for name, value in [
        ("bytes", -1),
        ("bytes", 256),
        ("bytes", 0.5),
        ("lists", float("nan")),
        ("lists", float("inf")),
        ("lists", 1 << 70),
        ("lists", "pad"),
        ("flags", 2),
        ("floats", None),
    ]:
        with pytest.raises(SelectionError, match="can't be filled up with"):
            ferry.padded(ref, name, value=value, library=library)


def test_python_ints_go_into_all_that_keeps_them(ferry: rollferry.Ferry) -> None:
    ref = ferry.put({"a": [1, 1 << 40, 3], "b": [0.1, 1.0, 2.0], "c": [1 << 63, 1, 2]})
    for dtype in (np.int64, np.uint64):
        assert ferry.get(ref, into={"a": np.zeros(3, dtype)})["a"].tolist() == [1, 1 << 40, 3]
    assert ferry.get(ref, into={"b": np.zeros(3)})["b"].tolist() == [0.1, 1.0, 2.0]
    for into in ({"a": np.zeros(3, np.int32)}, {"b": np.zeros(3, np.float32)}, {"c": np.zeros(3, np.int64)}):
        with pytest.raises(SelectionError, match="dtype"):
            ferry.get(ref, into=into)


def test_fields_that_can_not_be_packed_are_refused(ferry: rollferry.Ferry) -> None:
    torch, tensordict = pytest.importorskip("torch"), pytest.importorskip("tensordict")
    ref = ferry.put({"dict": tensordict.TensorDict({"a": torch.zeros(2, 3)}, [2, 3]), "a": [[1]]})
    with pytest.raises(SelectionError, match="no rows that could be packed"):
        ferry.packed(ref, "dict", library="torch")
    with pytest.raises(ValueError, match="library must be one of"):
        ferry.packed(ref, "a", library="jax")  # type: ignore[arg-type]
    both = ferry.put({"batch": {"a": [[1, 2]]}, "meta_info": {"a": [[3]], "b": [[4]]}}, type="dataproto")
    with pytest.raises(SelectionError, match="both batch and meta_info have a field 'a'"):
        ferry.packed(both, "a")
    assert ferry.packed(both, "b").values.tolist() == [4]
