"""Whatever batch hypothesis makes comes back the same, from every engine, and leaves nothing behind."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollferry
from rollferry.testing import assert_same, strategies


@pytest.fixture(scope="module")
def shm(shared_shm_directory: Path) -> Iterator[Any]:
    with rollferry.connect(f"shm://{shared_shm_directory}") as ferry:
        yield ferry


@pytest.fixture(scope="module")
def inproc() -> Iterator[Any]:
    with rollferry.connect("inproc://", checksum=True) as ferry:
        yield ferry


def carry(ferry: Any, batch: dict[Any, Any]) -> None:
    ref = ferry.put(batch)
    try:
        result = ferry.get(ref.to_json())
    finally:
        assert ferry.remove(ref)
    assert_same(result, batch)


@given(batch=strategies.batches())
def test_batches_through_shm(shm: Any, shared_shm_directory: Path, batch: dict[Any, Any]) -> None:
    carry(shm, batch)
    assert not list((shared_shm_directory / "live").iterdir())


@given(batch=strategies.batches())
def test_batches_through_inproc(inproc: Any, batch: dict[Any, Any]) -> None:
    carry(inproc, batch)


@given(rows=strategies.rows())
def test_rows(inproc: Any, rows: list[Any]) -> None:
    carry(inproc, {"list": rows, "tuple": tuple(rows)})


@given(array=strategies.arrays())
def test_arrays(inproc: Any, array: Any) -> None:
    carry(inproc, {"dense": array, "rows": [array, array.copy(), None], "meta": {"a": (array[...].copy(),)}})


@given(value=strategies.values())
def test_values(inproc: Any, value: Any) -> None:
    carry(inproc, {"field": value, "meta": [{"deep": [value]}]})


@given(tensor=strategies.tensors(), image=strategies.images())
def test_tensors_and_images(inproc: Any, tensor: Any, image: Any) -> None:
    carry(inproc, {"t": tensor, "rows": [tensor.clone(), None], "i": image, "images": [[image], []]})


@given(batch=strategies.batches(), verify=st.sampled_from(["manifest", "full"]), readonly=st.booleans())
def test_options_do_not_change_values(inproc: Any, batch: dict[Any, Any], verify: str, readonly: bool) -> None:
    ref = inproc.put(batch)
    result = inproc.get(ref, verify=verify, readonly=readonly)
    assert inproc.remove(ref)
    assert_same(result, batch)


@given(batch=strategies.batches())
def test_the_comparer_takes_copies_as_the_same(batch: dict[Any, Any]) -> None:
    assert_same(copy.deepcopy(batch), batch)
