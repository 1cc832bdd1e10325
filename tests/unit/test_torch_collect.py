"""The native way to collect tensors gives what the general one gives."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rollferry
from rollferry import UnsupportedValueError
from rollferry.layouts.optional import torch_types
from rollferry.layouts.optional.torch_types import CODES, TORCH, borrow
from rollferry.testing import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")


def contents(rows: Any) -> Any:
    if rows is None:
        return None
    data = np.full(rows.source.nbytes, 255, np.uint8)
    rows.source.fill(data)
    arrays = [None if array is None else array.tolist() for array in (rows.offsets, rows.shapes)]
    return data.tobytes(), rows.dtype, rows.ndim, arrays, rows.equal_inner


SHAPES = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def tensor_rows(draw: Any) -> list[torch.Tensor]:
    dtypes = draw(st.lists(st.sampled_from(list(CODES)), min_size=1, max_size=2))
    shapes = draw(st.lists(SHAPES, min_size=1, max_size=2))
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        dtype, shape = draw(st.sampled_from(dtypes)), [draw(st.integers(0, 4)) for _ in draw(st.sampled_from(shapes))]
        size = int(np.prod(shape)) * dtype.itemsize
        values = torch.frombuffer(bytearray(draw(st.binary(min_size=size, max_size=size)) or b"\0"), dtype=torch.uint8)
        row = values[:size].clone().view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
        change = draw(st.sampled_from(["none", "transpose", "expand", "offset"]))
        if change == "transpose" and row.ndim > 1:
            row = row.transpose(0, 1)
        if change == "expand" and row.ndim and row.shape[0] == 1:
            row = row.expand(3, *row.shape[1:])
        if change == "offset" and row.ndim:
            row = row[1:]
        rows.append(row)
    return rows


@given(tensor_rows())
def test_native_and_general_agree(rows: list[torch.Tensor]) -> None:
    found = borrow(rows)
    assert found is not False
    assert contents(TORCH.collect(rows)) == contents(TORCH.collect_one_by_one(rows))


def test_it_is_used() -> None:
    assert torch_types.EXCHANGE is not None


ODD = {
    "negated view": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "conjugate view": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(),
}


@pytest.mark.parametrize("name", ODD)
def test_lazy_values_are_resolved(name: str) -> None:
    odd = ODD[name]()
    with rollferry.connect("inproc://") as ferry:
        for batch in ({"a": odd}, {"a": [odd, odd.clone().resolve_conj().resolve_neg()]}):
            ref = ferry.put(batch)
            result = ferry.get(ref)["a"]
            ferry.remove(ref)
            first = result if isinstance(result, torch.Tensor) else result[0]
            assert_same(first, odd.resolve_conj().resolve_neg().clone())


REFUSED = {
    "requires grad": (lambda: torch.ones(2, requires_grad=True), "grad"),
    "meta": (lambda: torch.ones(2, device="meta"), "meta"),
    "sparse": (lambda: torch.eye(2).to_sparse(), "sparse"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "qint8"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.filterwarnings("ignore:.*quantiz.*")
def test_what_is_no_plain_memory_is_refused_by_name(name: str, place: int) -> None:
    make, message = REFUSED[name]
    rows = [torch.ones(2), torch.ones(2)]
    rows[place] = make()
    with (
        rollferry.connect("inproc://") as ferry,
        pytest.raises(UnsupportedValueError, match=rf"a\[{place}\].*{message}"),
    ):
        ferry.put({"a": rows})


def test_a_tensor_under_vmap_is_refused() -> None:
    with rollferry.connect("inproc://vmap") as ferry:

        def put(row: torch.Tensor) -> torch.Tensor:
            with pytest.raises(UnsupportedValueError, match="a"):
                ferry.put({"a": [row, row]})
            return row

        torch.vmap(put)(torch.ones(3, 4))
        assert ferry.list() == []
