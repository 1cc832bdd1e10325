"""DataProto-like batches: what they are taken apart into, how that is stored, and what is put together of it."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from tensordict import NonTensorData, NonTensorStack, TensorDict

import rollferry
from rollferry import FieldSchema, SchemaError, UnsupportedValueError
from rollferry.bundle.dataproto import SECTIONS, join, split
from rollferry.bundle.manifest import Envelope, Manifest, dump, load
from rollferry.errors import BundleError
from rollferry.testing import assert_same
from rollferry.testing.strategies import batches

ROWS = 4


@dataclass
class DataProto:
    """As verl's, as far as it matters here."""

    batch: Any = None
    non_tensor_batch: Any = field(default_factory=dict)
    meta_info: Any = field(default_factory=dict)


def objects(*items: Any) -> Any:
    array = np.empty(len(items), object)
    array[:] = items
    return array


def tensors(rows: int = ROWS, **options: Any) -> TensorDict:
    parts = {"input_ids": torch.arange(rows * 3).reshape(rows, 3), "mask": torch.ones(rows, 3, dtype=torch.bool)}
    return TensorDict(parts, batch_size=[rows], **options)


def proto(rows: int = ROWS) -> DataProto:
    infos = [{"id": i, "tags": ["x"] * i} for i in range(rows)]
    others = {"uid": objects(*"abcdefgh"[:rows]), "info": objects(*infos)}
    return DataProto(tensors(rows), others, {"step": 7, "lengths": [1, 2], "temperature": 0.5})


def envelope_of(value: Any) -> dict[str, Any]:
    return {section: getattr(value, section) for section in SECTIONS}


def manifest_of(ferry: rollferry.Ferry, ref: rollferry.TransferRef) -> Manifest:
    reader = ferry._engine.open(ref.key)
    manifest, digest = load(reader.manifest, reader.payload_nbytes)
    assert digest == ref.digest
    return manifest


def carried(ferry: rollferry.Ferry, value: Any, **options: Any) -> Any:
    """Put it and get it."""
    return ferry.get(ferry.put(value, type="dataproto", **options), type="dataproto")


SAME = [
    proto(),
    DataProto(),
    DataProto(None, None, None),
    DataProto({}, {}, {}),
    DataProto({"a": torch.ones(2), "b": np.ones((2, 2))}, {"a": [1, 2]}, {"a": None}),
    DataProto(TensorDict({}, batch_size=[5])),
    DataProto(tensors(names=["rows"], device="cpu")),
    DataProto(TensorDict({"a": torch.ones(2, 3, 4), "nested": {"x": torch.ones(2, 3)}}, batch_size=[2, 3])),
    DataProto(TensorDict({"a": torch.tensor(5)}, batch_size=[])),
    DataProto(TensorDict({"a": torch.ones(2), "name": "all", "each": NonTensorStack("x", "y")}, batch_size=[2])),
    DataProto(TensorDict({"a": NonTensorData({"k": 1}, batch_size=[2])}, batch_size=[2]), {1: objects(1, None)}),
    DataProto(None, {"uid": objects()}, {("odd", "key"): 1, "\ud800": {2}}),
]


@pytest.mark.parametrize("value", SAME)
def test_is_stored_and_put_together_as_it_was(value: DataProto, ferry: rollferry.Ferry) -> None:
    assert_same(carried(ferry, value), envelope_of(value))
    assert_same(carried(ferry, envelope_of(value)), envelope_of(value))


@given(batches(), batches(), batches())
def test_sections_of_anything(batch: Any, others: Any, meta: Any) -> None:
    envelope, entries = split(DataProto(batch, others, meta))
    sections: dict[str, dict[Any, Any]] = {section: {} for section in SECTIONS}
    for section, key, value in entries:
        assert section is not None
        sections[section][key] = value
    assert_same(join(envelope, sections), {"batch": batch, "non_tensor_batch": others, "meta_info": meta})
    with rollferry.connect("inproc://dataproto_put") as ferry:
        assert_same(carried(ferry, DataProto(batch, others, meta)), envelope_of(DataProto(batch, others, meta)))


def test_fields_have_sections_and_rows(ferry: rollferry.Ferry) -> None:
    ref = ferry.put(proto(), type="dataproto")
    manifest = manifest_of(ferry, ref)
    assert [(f.section, f.key, f.row_aligned) for f in manifest.fields] == [
        ("batch", "input_ids", True),
        ("batch", "mask", True),
        ("non_tensor_batch", "uid", True),
        ("non_tensor_batch", "info", True),
        ("meta_info", "step", False),
        ("meta_info", "lengths", False),
        ("meta_info", "temperature", False),
    ]
    assert (manifest.type, ref.rows, ref.stages) == ("dataproto", ROWS, 1)
    assert manifest.envelope == Envelope(batch="tensordict", batch_size=[ROWS])
    assert len(ref.to_json()) < 1024
    assert ferry.put(DataProto(None, {}, {"lengths": [1, 2]}), type="dataproto").rows is None
    assert ferry.put(DataProto(tensors(3), {"uid": objects("a")}), type="dataproto").rows is None


def test_missing_sections_are_empty(ferry: rollferry.Ferry) -> None:
    assert carried(ferry, {"meta_info": {"a": 1}}) == {"batch": None, "non_tensor_batch": {}, "meta_info": {"a": 1}}
    assert carried(ferry, {"batch": {}}) == {"batch": {}, "non_tensor_batch": {}, "meta_info": {}}


def test_join_makes_any_class_and_fewer_rows() -> None:
    envelope, entries = split(proto())
    sections: dict[str, dict[Any, Any]] = {
        section: {key: value for at, key, value in entries if at == section} for section in SECTIONS
    }
    whole = DataProto(**join(envelope, sections))
    assert type(whole) is DataProto
    assert_same(envelope_of(whole), envelope_of(proto()))
    sections["batch"] = {key: value[1:3] for key, value in sections["batch"].items()}
    some = join(envelope, sections, rows=2)
    assert_same(some["batch"], proto().batch[1:3])
    assert join(envelope, {"meta_info": {}}) == {"batch": None, "non_tensor_batch": {}, "meta_info": {}}
    deep = Envelope(batch="tensordict", batch_size=[2, 3])
    assert join(deep, {"batch": {"a": torch.ones(1, 3)}}, rows=1)["batch"].batch_size == (1, 3)
    assert join(Envelope(batch="tensordict", batch_size=[]), {"batch": {}}, rows=1)["batch"].batch_size == ()


@pytest.mark.parametrize(
    ("value", "about"),
    [
        ({"input_ids": torch.ones(2)}, r"dict with the keys \['input_ids'\]"),
        ({"batch": {}, "extra": {}}, "'extra'"),
        ({}, "some of these as its keys"),
        ([1], "not list"),
        (tensors(), "not TensorDict"),
        (None, "not NoneType"),
        (DataProto([1]), "^batch: .*not list"),
        (DataProto(None, [1]), "^non_tensor_batch: .*not list"),
        (DataProto(None, {}, objects(1)), "^meta_info: .*not ndarray"),
        (DataProto(TensorDict.lazy_stack([tensors(), tensors()])), "^batch: .*LazyStackedTensorDict"),
    ],
)
def test_anything_else_is_refused(value: Any, about: str, ferry: rollferry.Ferry) -> None:
    with pytest.raises(UnsupportedValueError, match=about):
        ferry.put(value, type="dataproto")
    assert ferry.list() == []


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (DataProto({"input_ids": [1, 2, 3, object()]}), "batch.input_ids[3]"),
        (DataProto(None, {}, {"foo": object()}), "meta_info.foo"),
        (DataProto(None, {}, {7: {"bar": [object()]}}), "meta_info[7].bar[0]"),
        (DataProto(None, {"uid": objects("a", object())}), "non_tensor_batch.uid[1]"),
        (DataProto(TensorDict({"n": {"x": torch.ones(2).to_sparse()}}, batch_size=[2])), "batch.n.x"),
    ],
)
def test_refused_values_are_found(value: Any, path: str, ferry: rollferry.Ferry) -> None:
    with pytest.raises(UnsupportedValueError) as caught:
        ferry.put(value, type="dataproto")
    assert caught.value.path == path
    assert ferry.list() == []


def test_a_schema_names_fields_of_any_section(ferry: rollferry.Ferry) -> None:
    value = DataProto({"a": [1, 2]}, {"a": [3, 4], "b": [1]}, {"a": [5]})
    schema = {"a": FieldSchema("numbers", dtype="int32", returns="ndarray"), "b": FieldSchema(row_aligned=False)}
    typed = [np.array(items, np.int32) for items in ([1, 2], [3, 4], [5])]
    expected = {"batch": {"a": typed[0]}, "non_tensor_batch": {"a": typed[1], "b": [1]}, "meta_info": {"a": typed[2]}}
    assert_same(carried(ferry, value, schema=schema), expected)
    assert ferry.put(value, type="dataproto", schema=schema).rows == 2
    with pytest.raises(SchemaError, match=r"field 'meta_info.a', row 1: ") as caught:
        ferry.put(DataProto(None, {}, {"a": [1, "x"]}), type="dataproto", schema=schema)
    assert (caught.value.field, caught.value.row) == ("meta_info.a", 1)


def test_an_object_in_two_sections_stays_one(ferry: rollferry.Ferry) -> None:
    shared = np.arange(1000)
    result = carried(ferry, DataProto(None, {"a": [shared, shared]}, {"b": [shared]}))
    assert result["meta_info"]["b"][0] is result["non_tensor_batch"]["a"][0]


def test_dicts_are_as_before(ferry: rollferry.Ferry) -> None:
    ref = ferry.put({"batch": {"a": 1}, "x": [1]})
    manifest = manifest_of(ferry, ref)
    assert (manifest.type, manifest.envelope, manifest.base) == ("dict", None, None)
    assert not any(name in dump(manifest)[0] for name in (b"section", b"row_aligned", b"envelope", b"base"))


@pytest.mark.parametrize(
    "damage",
    [
        {"type": "dict"},
        {"envelope": None},
        {"envelope": Envelope(batch="none")},
        {"envelope": Envelope(batch="tensordict")},
        {"envelope": Envelope(batch="dict", batch_size=[4])},
        {"envelope": Envelope(batch="tensordict", batch_size=[4], names=["a", "b"])},
        {"envelope": Envelope(batch="tensordict", batch_size=[-1])},
        {"envelope": Envelope(batch="tensordict", batch_size=[4], absent=["meta_info"])},
        {"envelope": Envelope(batch="tensordict", batch_size=[4], device="cuda")},  # type: ignore[arg-type]
    ],
)
def test_manifests_whose_sections_make_no_sense(damage: dict[str, Any], ferry: rollferry.Ferry) -> None:
    manifest = manifest_of(ferry, ferry.put(proto(), type="dataproto"))
    assert load(dump(manifest)[0], manifest.payload_nbytes)[0] == manifest
    with pytest.raises(BundleError):
        load(dump(msgspec.structs.replace(manifest, **damage))[0], manifest.payload_nbytes)
