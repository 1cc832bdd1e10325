"""What get gives for fields and rows equals what indexing the whole batch gives, on whatever batch hypothesis makes."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import rollferry
from rollferry.bundle import checksums
from rollferry.testing import assert_same, strategies


@pytest.fixture(scope="module", params=["inproc", "cut", "shm", "verified", "networked"])
def ferry(request: pytest.FixtureRequest, shared_shm_directory: Path) -> Iterator[Any]:
    urls = {
        "inproc": "inproc://selection",
        "cut": "inproc://selection-in-chunks?chunk=100",
        "shm": f"shm://{shared_shm_directory}",
        "verified": f"shm://{shared_shm_directory}/verified",
        "networked": "inproc://selection-networked?chunk=100",
    }
    with pytest.MonkeyPatch.context() as patch:
        if request.param in ("verified", "networked"):  # small blocks, so that small members have several
            patch.setattr(checksums, "BLOCK_NBYTES", 64)
            patch.setitem(checksums.WIDENED, "auto", 64)
        with rollferry.connect(urls[request.param], checksum=True) as ferry:
            if request.param == "verified":
                patch.setattr(ferry, "get", partial(ferry.get, verify="full"))
            patch.setattr(ferry._engine, "networked", request.param == "networked")
            yield ferry


@st.composite
def wanted(draw: st.DrawFn, count: int) -> Any:
    """Any index of so many rows, as numpy takes it."""
    bound = st.none() | st.integers(-count - 2, count + 2)
    slices = st.builds(slice, bound, bound, st.none() | st.sampled_from([1, 2, 3, -1, -2]))
    masks = st.lists(st.booleans(), min_size=count, max_size=count)
    kinds: list[st.SearchStrategy[Any]] = [slices, masks.map(lambda bools: np.array(bools, bool))]
    if count:
        numbers = st.lists(st.integers(-count, count - 1), max_size=8)
        dtypes = npst.integer_dtypes(endianness="=", sizes=(8, 64))
        kinds += [numbers, numbers.map(tuple), st.builds(np.array, numbers, dtype=dtypes)]
    else:
        kinds.append(st.just([]))
    return draw(st.one_of(kinds))


def indexed(value: Any, rows: Any) -> Any:
    """Index the whole."""
    if isinstance(value, list | tuple):
        return type(value)(value[number] for number in np.arange(len(value))[rows].tolist())
    return value[rows]


def get(ferry: Any, batch: dict[Any, Any], **options: Any) -> Any:
    ref = ferry.put(batch)
    try:
        return ferry.get(ref, **options)
    finally:
        assert ferry.remove(ref)


def as_index(rows: Any) -> Any:
    return rows if isinstance(rows, slice) else np.asarray(rows, bool if np.asarray(rows).dtype == bool else np.int64)


@given(column=strategies.rows() | st.lists(strategies.values(4), max_size=6), data=st.data())
def test_rows_of_lists(ferry: Any, column: list[Any], data: st.DataObject) -> None:
    rows = data.draw(wanted(len(column)))
    index = as_index(rows)
    # Objects that occur in several fields, in another order too, are stored once.
    batch = {"list": column, "tuple": tuple(column), "reversed": column[::-1], "nested": [[row, "x"] for row in column]}
    result = get(ferry, batch, rows=rows)
    assert_same(result, {key: indexed(value, index) for key, value in batch.items()})


@given(array=strategies.arrays().filter(lambda array: array.ndim and array.dtype.itemsize), data=st.data())
def test_rows_of_arrays(ferry: Any, array: Any, data: st.DataObject) -> None:
    rows = data.draw(wanted(len(array)))
    boxed = np.empty(len(array), object)
    boxed[:] = [{"row": number} for number in range(len(array))]
    batch = {
        "dense": array,
        "objects": boxed,
        "grid": np.stack([boxed, boxed], 1),
        "rows": list(array),
        "whole": "text",
        "again": array,
        "objects again": boxed,
        "nested": [[array]] * len(array),
    }
    expected = {key: value if key == "whole" else indexed(value, as_index(rows)) for key, value in batch.items()}
    assert_same(get(ferry, batch, rows=rows), expected)


@given(tensor=strategies.tensors().filter(lambda tensor: tensor.dim() > 0), data=st.data())
def test_rows_of_tensors(ferry: Any, tensor: Any, data: st.DataObject) -> None:
    import torch

    rows = data.draw(wanted(len(tensor)))
    index = as_index(rows)
    numbers = torch.from_numpy(np.arange(len(tensor))[index].copy())
    batch = {"dense": tensor, "rows": list(tensor.unbind()), "again": tensor}
    result = get(ferry, batch, rows=rows)
    rows_there = [batch["rows"][number] for number in numbers.tolist()]
    stacked = torch.stack(rows_there) if rows_there else tensor[:0]
    assert_same(result, {"dense": stacked, "rows": rows_there, "again": stacked})


@given(tensor=strategies.nested_tensors(), axis=st.sampled_from([1, 2]), gaps=st.booleans(), data=st.data())
def test_rows_of_jagged_tensors(ferry: Any, tensor: Any, axis: int, gaps: bool, data: st.DataObject) -> None:
    import torch

    values, offsets, lengths = tensor.values(), tensor.offsets(), None
    count = len(offsets) - 1
    if gaps:
        sizes = [data.draw(st.integers(0, size)) for size in torch.diff(offsets).tolist()]
        lengths = torch.tensor(sizes, dtype=torch.int64)
    if axis == 2:
        values = torch.stack([values, values.flip(0)])
    tensor = torch.nested.nested_tensor_from_jagged(values, offsets, lengths, jagged_dim=axis)
    rows = data.draw(wanted(count))
    chosen = np.arange(count)[as_index(rows)].tolist()
    # The same offsets, values, and the tensor itself occur several times.
    dense = torch.arange(count)
    other = torch.nested.nested_tensor_from_jagged(values * 2, offsets, lengths, jagged_dim=axis)
    batch = {
        "jagged": tensor,
        "dense": dense,
        "same offsets": other,
        "again": tensor,
        "whole": {"deep": [tensor, values]},
    }
    result = get(ferry, batch, rows=rows)
    assert_same(result.pop("whole"), batch["whole"])
    assert_same(result.pop("dense"), dense[chosen])
    for name, found in result.items():
        assert found.layout == torch.jagged
        assert found.lengths() is None
        assert found.size(0) == len(chosen)
        components = batch[name].unbind()
        assert_same(list(found.unbind()) if chosen else [], [components[number] for number in chosen])


@given(array=strategies.arrays().filter(lambda array: array.ndim and array.dtype.itemsize), data=st.data())
def test_rows_of_what_occurs_several_times(ferry: Any, array: Any, data: st.DataObject) -> None:
    import torch

    rows = data.draw(wanted(len(array)))
    index = as_index(rows)
    tensor, boxed = torch.arange(len(array)), np.empty(len(array), object)
    boxed[:] = [[number] for number in range(len(array))]
    fields: dict[str, Any] = {"array": array, "tensor": tensor, "boxed": boxed}
    column = [array, tensor, boxed, "x"] * len(array)
    fields["column"] = column[: len(array)]
    names = data.draw(st.permutations(list(fields)))
    batch = {name: fields[name] for name in names}
    batch |= {f"{name} again": fields[name] for name in names}
    batch["whole"] = {"deep": list(fields.values())}
    options = data.draw(st.sampled_from([{}, {"readonly": True}]))
    result = get(ferry, batch, rows=rows, **options)
    numbers = np.arange(len(array))[index]
    expected = {
        name: batch["whole"]
        if name == "whole"
        else indexed(value, torch.from_numpy(numbers.copy()) if value is tensor else index)
        for name, value in batch.items()
    }
    assert_same(result, expected)
    if options:
        assert not any(value.flags.writeable for value in result.values() if isinstance(value, np.ndarray))
    else:
        assert all(value.flags.writeable for value in result.values() if isinstance(value, np.ndarray))


@given(batch=strategies.batches(), data=st.data())
def test_fields(ferry: Any, batch: dict[Any, Any], data: st.DataObject) -> None:
    names = data.draw(
        st.permutations(list(batch)).flatmap(lambda keys: st.integers(0, len(keys)).map(lambda n: keys[:n]))
    )
    options = data.draw(st.sampled_from([{}, {"readonly": True}]))
    assert_same(get(ferry, batch, fields=names, **options), {name: batch[name] for name in names})


@given(column=strategies.rows(), data=st.data())
def test_lazy_rows(ferry: Any, column: list[Any], data: st.DataObject) -> None:
    rows = data.draw(wanted(len(column)))
    lazy = get(ferry, {"a": column, "b": column}, rows=rows, lazy=True, fields=["b"])["b"]
    assert len(lazy) == len(indexed(column, as_index(rows)))
    assert_same(list(lazy), indexed(column, as_index(rows)))
