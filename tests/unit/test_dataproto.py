"""Batches of type dataproto, as a get gives them."""

from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry import BundleError, FieldSchema, SelectionError
from rollferry.testing import assert_same

torch = pytest.importorskip("torch")
TensorDict = pytest.importorskip("tensordict").TensorDict

from tests.unit.test_dataproto_put import DataProto, objects


def proto() -> DataProto:
    ids = torch.arange(12).reshape(4, 3)
    nested = TensorDict({"deep": torch.arange(4)}, batch_size=[4])
    ragged = torch.nested.nested_tensor([torch.arange(n) for n in (1, 0, 3, 2)], layout=torch.jagged)
    batch = TensorDict({"ids": ids, "same": ids, "nested": nested, "ragged": ragged}, batch_size=[4])
    return DataProto(
        batch, {"uid": objects("a", "b", "c", "d"), "ids": objects([1], None, "x", {})}, {"step": 3, "ids": [1]}
    )


def sections(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value["batch"], value["non_tensor_batch"], value["meta_info"]]
    return [value.batch, value.non_tensor_batch, value.meta_info]


def check(found: Any, indices: Any) -> None:
    """Compare with the whole, indexed."""
    expected = proto()
    batch, others, meta = sections(found)
    assert type(batch) is TensorDict
    assert list(batch.batch_size) == [len(indices)]
    for key in ("ids", "same"):
        assert torch.equal(batch[key], expected.batch[key][indices])
    assert torch.equal(batch["nested"]["deep"], expected.batch["nested"]["deep"][indices])
    rows = expected.batch["ragged"].unbind()
    assert batch["ragged"].layout == torch.jagged
    assert [row.tolist() for row in batch["ragged"].unbind()] == [rows[n].tolist() for n in indices]
    assert_same(others, {key: value[indices] for key, value in expected.non_tensor_batch.items()})
    assert_same(meta, expected.meta_info)


@pytest.mark.parametrize("envelope", [False, True])
def test_round_trip_and_rows(ferry: rollferry.Ferry, envelope: bool) -> None:
    value: Any = proto()
    if envelope:
        value = {"batch": value.batch, "non_tensor_batch": value.non_tensor_batch, "meta_info": value.meta_info}
    ref = ferry.put(value, type="dataproto")
    assert ref.rows == 4
    found = ferry.get(ref, type="dataproto", data_cls=DataProto)
    assert type(found) is DataProto
    check(found, [0, 1, 2, 3])
    check(ferry.get(ref, type="dataproto"), [0, 1, 2, 3])
    for rows, indices in [([3, 0], [3, 0]), (slice(1, 3), [1, 2]), (np.array([True, False, False, True]), [0, 3])]:
        check(ferry.get(ref, type="dataproto", rows=rows), indices)


def test_fields(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(proto(), type="dataproto")
    named = ferry.get(ref, type="dataproto", fields=["ids"])
    assert [list(section.keys()) for section in sections(named)] == [["ids"], ["ids"], ["ids"]]
    some = ferry.get(ref, type="dataproto", fields={"batch": ["same"], "meta_info": None}, rows=[1])
    assert [list(section.keys()) for section in sections(some)] == [["same"], [], ["step", "ids"]]
    for fields, message in [
        (["uidd"], "did you mean 'uid'"),
        ({"batch": ["uid"]}, "no field 'uid'"),
        ({"batches": None}, "no section 'batches'"),
        ({"batch": ["ids", "ids"]}, "twice"),
    ]:
        with pytest.raises(SelectionError, match=message):
            ferry.get(ref, type="dataproto", fields=fields)


def test_stages(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(proto(), type="dataproto")
    added = TensorDict({"log_probs": torch.ones(4, 2)}, batch_size=[4])
    more = ferry.append(ref, {"batch": added, "meta_info": {"lr": 0.1}}, type="dataproto")
    found = ferry.get(more, type="dataproto", rows=[2], data_cls=DataProto)
    assert list(found.batch["log_probs"].shape) == [1, 2]
    assert found.meta_info == {"step": 3, "ids": [1], "lr": 0.1}
    assert ferry.packed(more, "log_probs", library="torch").cu_seqlens.tolist() == [0, 2, 4, 6, 8]
    ferry.release(found)
    assert (list(found.batch.keys()), found.non_tensor_batch, found.meta_info) == ([], {}, {})


def test_types_are_not_mixed_up(ferry: rollferry.Ferry) -> None:
    with pytest.raises(BundleError, match="get it with type='dataproto'"):
        ferry.get(ferry.put(proto(), type="dataproto"))
    with pytest.raises(BundleError, match="get it with type='dict'"):
        ferry.get(ferry.put({"batch": {}}), type="dataproto")
    empty = ferry.put(DataProto(), type="dataproto")
    assert sections(ferry.get(empty, type="dataproto")) == [None, {}, {}]


def test_sections_without_fields_are_what_they_were(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(DataProto(TensorDict({}, batch_size=[2]), {"uid": [1, 2]}, None), type="dataproto")
    for asked in (None, {"batch": None, "non_tensor_batch": ["uid"], "meta_info": []}):
        batch, others, meta = sections(ferry.get(ref, type="dataproto", fields=asked, rows=[1]))
        assert (type(batch), list(batch.batch_size), others, meta) == (TensorDict, [1], {"uid": [2]}, None)
    assert sections(ferry.get(ref, type="dataproto", fields=["uid"])) == [None, {"uid": [1, 2]}, {}]
    assert sections(ferry.get(ref, type="dataproto", fields={"non_tensor_batch": None})) == [None, {"uid": [1, 2]}, {}]


def test_rows_of_fields_that_are_one_object(ferry: rollferry.Ferry) -> None:
    grid, texts = np.arange(8).reshape(4, 2), objects("a", "b", "c", "d")
    tensor = torch.arange(4.0)
    batch = {
        "a": grid,
        "b": grid,
        "c": texts,
        "d": texts,
        "e": tensor,
        "f": tensor,
        "rows": list(grid),
        "first": grid[0],
    }
    ref = ferry.put(batch, schema={"first": FieldSchema(row_aligned=False)})
    found = ferry.get(ref, rows=[3, 1])
    expected = {key: value[[3, 1]] for key, value in batch.items() if key not in ("rows", "first")}
    assert_same(found, expected | {"rows": [grid[3], grid[1]], "first": grid[0]} | {"first": grid[0]})
    buffer = np.zeros((2, 2), np.int64)
    assert ferry.get(ref, rows=[3, 1], fields=["b"], into={"b": buffer})["b"] is buffer
    assert buffer.tolist() == [[6, 7], [2, 3]]
    assert ferry.packed(ref, "b", rows=[2]).values.tolist() == [4, 5]
