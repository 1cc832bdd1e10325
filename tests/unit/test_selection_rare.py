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
