"""Rows and buffers that are rarely asked for."""

import warnings
from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry import SelectionError
from rollferry.testing import assert_same


def objects(*items: Any) -> Any:
    array = np.empty(len(items), object)
    array[:] = items
    return array


@pytest.mark.parametrize("dtype", ["V0", "S0", "U0"])
def test_rows_of_arrays_whose_items_have_no_bytes(ferry: rollferry.Ferry, dtype: str) -> None:
    array = np.zeros((5, 2), [("item", dtype)])["item"]
    ref = ferry.put({"array": array})
    assert ref.rows == 5
    assert_same(ferry.get(ref, rows=[3, 0, 3]), {"array": array[[3, 0, 3]]})


@pytest.mark.parametrize("readonly", [False, True])
def test_no_rows_of_a_list_whose_array_another_field_needs(ferry: rollferry.Ferry, readonly: bool) -> None:
    array = np.array([[0, 1]])
    ref = ferry.put({"rows": [array], "array": array, "rest": [{"deep": array}]})
    rows = ferry.get(ref, rows=[], lazy=True, readonly=readonly)["rows"]
    assert (len(rows), rows.values.shape, rows.offsets.tolist()) == (0, (0, 2), [0])
    assert ferry.packed(ref, "rows", rows=[]).cu_seqlens.tolist() == [0]


BATCH = {
    "large": [2**53 + 1, 2**53 + 3],
    "ragged": [np.arange(3), np.arange(2)],
    "objects": objects("a", [1], None),
    "grid": np.arange(6.0).reshape(2, 3),
    "number": 5,
}


@pytest.mark.parametrize(
    "buffer", [np.zeros(10, np.int64)[::2], np.zeros(5, np.int64)[::-1], np.zeros((5, 2), np.int64)[:, 1]]
)
def test_rows_go_into_buffers_that_are_not_contiguous(ferry: rollferry.Ferry, buffer: Any) -> None:
    found = ferry.get(ferry.put(BATCH), fields=["ragged"], into={"ragged": buffer})["ragged"]
    assert buffer.tolist() == [0, 1, 2, 0, 1]
    assert_same([row.copy() for row in found], BATCH["ragged"])
    assert all(np.shares_memory(row, buffer) for row in found)


@pytest.mark.parametrize("buffer", [np.empty(3, object), np.empty(6, object)[::2]])
def test_objects_go_into_buffers(ferry: rollferry.Ferry, buffer: Any) -> None:
    assert ferry.get(ferry.put(BATCH), fields=["objects"], into={"objects": buffer})["objects"] is buffer
    assert buffer.tolist() == ["a", [1], None]


def test_ints_do_not_go_into_floats(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(BATCH)
    for dtype in (np.float64, np.complex128):
        with pytest.raises(SelectionError, match="dtype"):
            ferry.get(ref, fields=["large"], into={"large": np.zeros(2, dtype)})
    with pytest.raises(SelectionError, match="dtype"):
        ferry.get(ferry.put({"a": [1, -70_000]}), into={"a": np.zeros(2)})


def test_a_number_has_no_buffer(ferry: rollferry.Ferry) -> None:
    with pytest.raises(SelectionError, match="'number' can't be read into a buffer"):
        ferry.get(ferry.put(BATCH), into={"number": np.zeros(1, np.int64)})


def test_one_buffer_is_not_filled_twice(ferry: rollferry.Ferry) -> None:
    buffer = np.full(3, 9.0)
    ref = ferry.put({"a": np.arange(3.0), "b": np.ones(3)})
    with pytest.raises(SelectionError, match="'a' and 'b' have the same buffer"):
        ferry.get(ref, into={"a": buffer, "b": buffer})
    ref = ferry.put({"batch": {"a": np.arange(3.0)}, "meta_info": {"a": np.ones(3)}}, type="dataproto")
    with pytest.raises(SelectionError, match=r"batch\.a and meta_info\.a have the same buffer"):
        ferry.get(ref, type="dataproto", into={"a": buffer})
    assert buffer.tolist() == [9, 9, 9]
    found = ferry.get(ref, type="dataproto", fields={"meta_info": ["a"]}, into={"a": buffer})
    assert found["meta_info"]["a"] is buffer
    nothing = ferry.put({"a": np.zeros(0), "b": np.zeros((0, 2))})
    empty = np.zeros(0)
    assert ferry.get(nothing, into={"a": empty, "b": empty.reshape(0, 2)})["a"] is empty


def test_tensors_that_can_not_be_filled(ferry: rollferry.Ferry) -> None:
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        inference = torch.zeros(2, 3, dtype=torch.float64)
    plain = torch.zeros(2, 3, dtype=torch.float64)
    wrong = [
        (plain.clone().requires_grad_(), "requires grad"),
        (torch.empty_like(plain, device="meta"), "no plain tensor"),
        (plain.to_sparse(), "no plain tensor"),
        (plain[:1].expand(2, 3), "one in memory"),
        (inference, "inference mode"),
    ]
    ref = ferry.put(BATCH)
    numbers = np.full(5, 9)
    for buffer, message in wrong:
        with pytest.raises(SelectionError, match=message):
            ferry.get(ref, fields=["ragged", "grid"], into={"ragged": numbers, "grid": buffer})
    assert numbers.tolist() == [9] * 5
    with torch.inference_mode():
        assert ferry.get(ref, into={"grid": inference})["grid"] is inference
    assert inference.tolist() == BATCH["grid"].tolist()


def test_tensors_are_filled_also_where_arrays_come_back_read_only(ferry: rollferry.Ferry) -> None:
    torch = pytest.importorskip("torch")
    buffer = torch.zeros(2, 3, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ferry.get(ferry.put(BATCH), into={"grid": buffer}, readonly=True)
    assert buffer.tolist() == BATCH["grid"].tolist()


@pytest.mark.parametrize("fields", [5, [["large"]]])
def test_fields_that_are_no_names(ferry: rollferry.Ferry, fields: Any) -> None:
    with pytest.raises(SelectionError, match="list of names"):
        ferry.get(ferry.put(BATCH), fields=fields)


def test_errors_of_a_data_class_are_its_own(ferry: rollferry.Ferry) -> None:
    def made(**sections: Any) -> Any:
        raise KeyError(*sections)

    with pytest.raises(KeyError, match="batch"):
        ferry.get(ferry.put({"batch": {}}, type="dataproto"), type="dataproto", data_cls=made)
