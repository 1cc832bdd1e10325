"""The calls of Mooncake's structured layer, as Miles, ROLL and slime make them, over rollferry's engines."""

import inspect
import json
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import rollferry
from rollferry.errors import (
    BundleNotFoundError,
    EngineFullError,
    RefError,
    RollferryWarning,
    SchemaError,
    SelectionError,
    UnsupportedValueError,
)
from rollferry.integrations import mooncake_api
from rollferry.integrations.mooncake_api import (
    CODECS,
    BundleTransferPolicy,
    FieldSchema,
    MooncakeBundleTransfer,
    MooncakeDataProtoRef,
    NotOfferedError,
    export_dataproto_ref,
    export_ref,
    import_dataproto_ref,
    import_ref,
    is_dataproto_ref_handle,
)
from rollferry.testing.equality import assert_same
from tests.contract.mooncake_master import Master


class DataProto:
    """Sections as attributes, made by keywords."""

    def __init__(self, batch: Any = None, non_tensor_batch: Any = None, meta_info: Any = None) -> None:
        self.batch, self.non_tensor_batch, self.meta_info = batch, non_tensor_batch, meta_info


class MadeDataProto(DataProto):
    """Made by `from_dict`, with other names for its parameters."""

    @classmethod
    def from_dict(cls, tensors: dict, non_tensors: dict, meta_info: dict) -> "MadeDataProto":
        assert type(tensors) is dict
        return cls(TensorDict(tensors, batch_size=[len(next(iter(tensors.values())))]), non_tensors, meta_info)


@pytest.fixture(params=["inproc", "shm"])
def transfer(request: pytest.FixtureRequest, shm_directory: Path) -> Iterator[MooncakeBundleTransfer]:
    url = f"inproc://{uuid.uuid4().hex}" if request.param == "inproc" else f"shm://{shm_directory}"
    transfer = MooncakeBundleTransfer(url, key_prefix="rl/data proto")
    yield transfer
    transfer.close()


def miles_batch(rows: int = 6) -> dict[str, Any]:
    return {
        "tokens": [np.arange(3 + i, dtype=np.int32) for i in range(rows)],
        "response_lengths": [2 + i for i in range(rows)],
        "rewards": [0.1 * i for i in range(rows)],
        "truncated": [0] * rows,
        "loss_masks": [[1] * (2 + i) for i in range(rows)],
        "rollout_log_probs": [torch.full((2 + i,), -0.5) for i in range(rows)],
        "raw_reward": [None if i == 1 else float(i) for i in range(rows)],
        "prompt": [[{"role": "user", "content": f"question {i}"}] for i in range(rows)],
        "weight_versions": [["1"], ["1", "2"], *[["2"]] * (rows - 2)],
        "multimodal_train_inputs": [None if i % 2 else {"pixels": torch.ones(2, i + 1)} for i in range(rows)],
        "step_slots": [4, 2],
        "step_adapter_batch_sizes": {0: 4, 7: 2},
        "n_adapters": 2,
    }


def miles_schemas(module: ModuleType) -> dict[str, Any]:
    codecs = {
        "tokens": ("typed_ragged", "int32"),
        "loss_masks": ("typed_ragged", "int32"),
        "rollout_log_probs": ("typed_ragged", "float32"),
        "response_lengths": ("ndarray", "int64"),
        "rewards": ("ndarray", "float32"),
        "truncated": ("ndarray", "int64"),
        "prompt": ("msgpack_ragged", None),
        "weight_versions": ("msgpack_ragged", None),
        "raw_reward": ("auto", None),
    }
    schemas = {}
    for name, (codec, dtype) in codecs.items():
        metadata = {"section": "meta_info" if codec == "auto" else "non_tensor_batch"}
        if dtype is not None:
            metadata["dtype"] = dtype
        schemas[name] = module.FieldSchema(codec=codec, nullable=False, metadata=metadata)
    schemas["multimodal_train_inputs"] = module.FieldSchema("ragged_tensor_dict")
    return schemas


def roll_batch(rows: int = 4) -> dict[str, Any]:
    return {
        "batch": {
            "input_ids": torch.arange(rows * 3).reshape(rows, 3),
            "scores": torch.linspace(0, 1, rows, dtype=torch.bfloat16),
        },
        "non_tensor_batch": {
            "uid": np.array([f"u{i}" for i in range(rows)], dtype=object),
            "turns": np.arange(rows),
        },
        "meta_info": {"roll_row_ids": [f"r{i}" for i in range(rows)], "temperature": 0.7},
    }


class TestMiles:
    def test_put_get_remove(self, transfer: MooncakeBundleTransfer) -> None:
        batch = miles_batch()
        ref = transfer.put(
            batch,
            type="dict",
            namespace="miles",
            chunk_bytes=None,
            config=None,
            field_schemas=miles_schemas(mooncake_api),
        )
        payload = json.loads(json.dumps(export_ref(ref)))
        value = transfer.get(import_ref(payload), type="dict")
        assert_same(value, batch)
        tokens = value["tokens"][2]
        MooncakeBundleTransfer.release_result(value)
        MooncakeBundleTransfer.release_result(value)
        assert_same(tokens, batch["tokens"][2])
        transfer.cleanup_dataproto(import_ref(payload))
        transfer.cleanup_dataproto(import_ref(payload))
        assert transfer.ferry.usage().bundles == 0

    def test_reference_says_what_it_is(self, transfer: MooncakeBundleTransfer) -> None:
        ref = transfer.put(
            miles_batch(), type="dict", namespace="miles", partition="p1", field_schemas=miles_schemas(mooncake_api)
        )
        assert (ref.batch_size, ref.namespace, ref.partition) == (6, "miles", "p1")
        assert (ref.global_indexes, ref.encoded_non_tensor, list(ref.stage_refs)) == (None, {}, ["default"])
        assert ref.field_index["tokens"] == ("default", "non_tensor_batch.tokens", "non_tensor_batch")
        assert "step_slots" not in ref.field_index
        assert "raw_reward" not in ref.field_index
        assert transfer.ferry.list() == [ref.transfer_ref.id]
        assert ref.transfer_ref.namespace == "rl-data-proto"

    def test_reference_stays_small(self, transfer: MooncakeBundleTransfer) -> None:
        few, many = miles_batch(2), miles_batch(3000)
        sizes = [
            len(json.dumps(export_ref(transfer.put(batch, type="dict", field_schemas=miles_schemas(mooncake_api)))))
            for batch in (few, many)
        ]
        assert sizes[1] - sizes[0] < 20
        assert sizes[1] < 1500

    def test_rows_leave_meta_info_whole(self, transfer: MooncakeBundleTransfer) -> None:
        batch = miles_batch()
        ref = transfer.put(batch, type="dict", field_schemas=miles_schemas(mooncake_api))
        part = transfer.get(ref, type="dict", rows=[4, -6])
        aligned = set(ref.field_index)
        assert_same(
            part,
            {name: [value[4], value[0]] if name in aligned else value for name, value in batch.items()},
        )

    def test_fields_keep_their_order_and_bring_meta_info(self, transfer: MooncakeBundleTransfer) -> None:
        batch = miles_batch()
        ref = transfer.put(batch, type="dict", field_schemas=miles_schemas(mooncake_api))
        part = transfer.get(ref, type="dict", fields=["rewards", "tokens"], rows=slice(1, 3))
        meta = ["raw_reward", "step_slots", "step_adapter_batch_sizes", "n_adapters"]
        expected = {name: batch[name] for name in ["tokens", "rewards", *meta]}
        expected |= {"tokens": batch["tokens"][1:3], "rewards": batch["rewards"][1:3]}
        assert_same(part, {name: expected[name] for name in batch if name in expected})
        assert list(transfer.get(ref, type="dict", fields=["tokens"], meta_info_keys=["n_adapters", "other"])) == [
            "tokens",
            "n_adapters",
        ]

    def test_none_where_none_is_allowed(self, transfer: MooncakeBundleTransfer) -> None:
        for value in ([[1], None], None, np.array(["x", None], object)):
            with pytest.raises(ValueError, match="'a'") as caught:
                transfer.put(
                    {"b": [1, 2], "a": value},
                    type="dict",
                    field_schemas={"a": FieldSchema("auto", nullable=False), "b": FieldSchema("ndarray", False)},
                )
            assert isinstance(caught.value, SchemaError)
        with pytest.raises(ValueError, match="'uid'"):
            transfer.put(
                {"non_tensor_batch": {"uid": np.array([None, "x"], object)}},
                field_schemas={"uid": FieldSchema("utf8_ragged", nullable=False)},
            )
        assert transfer.ferry.usage().bundles == 0

    def test_wrong_schemas(self, transfer: MooncakeBundleTransfer) -> None:
        assert {FieldSchema(codec).codec for codec in CODECS} == set(CODECS)
        for wrong in (lambda: FieldSchema("zip"), lambda: FieldSchema("auto", metadata={"section": "other"})):
            with pytest.raises(ValueError, match="zip|other"):
                wrong()
        with pytest.raises(TypeError, match="'a'.*FieldSchema"):
            transfer.put({"a": [1]}, type="dict", field_schemas={"a": "ndarray"})


class TestRoll:
    def test_put_append_get_delete(self, transfer: MooncakeBundleTransfer) -> None:
        roll(mooncake_api, transfer)
        assert transfer.ferry.usage().bundles == 0

    def test_object_with_tensordict(self, transfer: MooncakeBundleTransfer) -> None:
        sent = roll_batch()
        data = DataProto(TensorDict(sent["batch"], batch_size=[4]), sent["non_tensor_batch"], sent["meta_info"])
        ref = transfer.put(
            data, type="dataproto", partition="train", policy=BundleTransferPolicy(2, "parallel", "copy")
        )
        assert ref.batch_size == 4
        assert_same(transfer.get(ref, type="dataproto"), sent)
        got = transfer.get(ref, batch_fields=["scores"], non_tensor_fields=[], data_cls=dict)
        assert_same(
            got, {"batch": {"scores": sent["batch"]["scores"]}, "non_tensor_batch": {}, "meta_info": sent["meta_info"]}
        )
        got = transfer.get(ref, batch_fields=[], non_tensor_fields=["uid"], meta_info_keys=[], rows=[3, 1])
        assert_same(got, {"batch": {}, "non_tensor_batch": {"uid": np.array(["u3", "u1"], object)}, "meta_info": {}})
        assert transfer.get(ref, meta_info_keys=["temperature", "other"])["meta_info"] == {"temperature": 0.7}

    def test_no_tensors(self, transfer: MooncakeBundleTransfer) -> None:
        names = np.array(["a", {"b": 1}, None, [2]], object)
        ref = transfer.put(DataProto(TensorDict({}, batch_size=[4]), {"n": names}, {"roll_row_ids": ["1"]}))
        assert ref.batch_size == 4
        got = transfer.get(ref)
        assert_same(got, {"batch": {}, "non_tensor_batch": {"n": names}, "meta_info": {"roll_row_ids": ["1"]}})
        assert_same(transfer.get(transfer.put(DataProto())), {"batch": {}, "non_tensor_batch": {}, "meta_info": {}})

    def test_classes_of_results(self, transfer: MooncakeBundleTransfer) -> None:
        sent = roll_batch()
        ref = transfer.put(sent)
        made = transfer.get(ref, data_cls=MadeDataProto, rows=slice(1, None))
        assert isinstance(made, MadeDataProto)
        assert_same(made.batch["input_ids"], sent["batch"]["input_ids"][1:])
        plain = transfer.get(ref, data_cls=DataProto)
        assert_same([plain.batch, plain.non_tensor_batch, plain.meta_info], list(sent.values()))
        with pytest.raises(TypeError, match="list can't be made"):
            transfer.get(ref, data_cls=list)

    def test_append_keeps_the_old_snapshot(self, transfer: MooncakeBundleTransfer) -> None:
        sent = roll_batch()
        first = transfer.put_dataproto(sent, stage="rollout")
        handle = json.loads(json.dumps(export_dataproto_ref(first)))
        more = DataProto(TensorDict({"old_log_probs": torch.rand(4, 2)}, batch_size=[4]), None, {"temperature": 0.9})
        second = transfer.append_dataproto_fields(handle, more, stage="log_prob")
        assert list(second.stage_refs) == ["rollout", "log_prob"]
        assert second.field_index["old_log_probs"].stage == "log_prob"
        got = transfer.get(
            import_dataproto_ref(export_dataproto_ref(second)), fields=["old_log_probs", "input_ids"], rows=[2]
        )
        assert_same(
            got["batch"],
            {"input_ids": sent["batch"]["input_ids"][2:3], "old_log_probs": more.batch["old_log_probs"][2:3]},
        )
        assert got["meta_info"]["temperature"] == 0.9
        assert_same(transfer.get(handle), sent)
        transfer.cleanup_dataproto(second)
        assert transfer.ferry.usage().bundles == 0

    def test_append_refuses(self, transfer: MooncakeBundleTransfer) -> None:
        sent = roll_batch()
        ref = transfer.put(sent)
        for data, words in (
            ({"batch": {"scores": torch.ones(4)}}, "scores"),
            ({"batch": {"more": torch.ones(3)}}, "3"),
        ):
            with pytest.raises(ValueError, match=words):
                transfer.append_dataproto_fields(ref, data, stage="more")
        with pytest.raises(ValueError, match="section"):
            transfer.append_dataproto_fields(
                ref, {"non_tensor_batch": {"scores": np.ones(4)}}, stage="more", overwrite=True
            )
        with pytest.raises(TypeError, match="stage"):
            transfer.append_dataproto_fields(ref, {"batch": {"more": torch.ones(4)}})
        assert_same(transfer.get(ref), sent)
        newer = transfer.append_dataproto_fields(ref, {"batch": {"scores": torch.ones(4)}}, stage="new", overwrite=True)
        assert_same(transfer.get(newer, fields=["scores"])["batch"], {"scores": torch.ones(4)})
        assert newer.field_index["scores"].stage == "new"

    def test_append_to_a_dict(self, transfer: MooncakeBundleTransfer) -> None:
        ref = transfer.put({"a": [1, 2], "note": "x"}, type="dict")
        longer = transfer.append_dataproto_fields(
            ref, {"b": ["p", "q"], "note": "y", "sizes": {"k": [1]}}, stage="more"
        )
        assert_same(transfer.get(longer, type="dict"), {"a": [1, 2], "note": "y", "b": ["p", "q"], "sizes": {"k": [1]}})
        assert_same(transfer.get(ref, type="dict"), {"a": [1, 2], "note": "x"})

    def test_manifest_view(self, transfer: MooncakeBundleTransfer) -> None:
        view = transfer.dataproto_manifest_view(export_ref(transfer.put(roll_batch(), stage="s", partition="p")))
        assert (view["batch_size"], view["partition"], list(view["stages"])) == (4, "p", ["s"])
        assert list(view["batch_fields"]) == ["input_ids", "scores"]
        assert list(view["non_tensor_fields"]) == ["uid", "turns"]
        assert view["batch_fields"]["scores"]["stage"] == "s"
        assert view["meta_info_keys"] == ["roll_row_ids", "temperature"]


def roll(module: ModuleType, transfer: Any) -> None:
    """ROLL's calls, with either module."""
    sent = roll_batch()
    policy = module.BundleTransferPolicy(max_inflight_put=1, put_mode="auto", copy_mode="auto")
    ref = transfer.put_dataproto(sent, namespace="roll", partition="train", stage="stage_1", policy=policy)
    handle = json.loads(json.dumps(module.export_dataproto_ref(ref)))
    assert module.is_dataproto_ref_handle(handle)

    ref = module.import_dataproto_ref(handle)
    more = {
        "batch": {"log_probs": torch.rand(4, 3)},
        "non_tensor_batch": {},
        "meta_info": {"roll_row_ids": [f"r{i}" for i in range(4)]},
    }
    stage = list(ref.stage_refs)[0]
    newer = transfer.append_dataproto_fields(ref, more, stage=stage, policy=policy)
    for name, info in transfer.dataproto_manifest_view(newer).get("batch_fields", {}).items():
        if info.get("spec", {}).get("encoding") == "torch_tensor":
            place = newer.field_index[name]
            assert newer.stage_refs[place.stage].manifest is not None

    newer = module.import_dataproto_ref(json.loads(json.dumps(module.export_dataproto_ref(newer))))
    result = transfer.get_dataproto(newer, fields=["log_probs", "uid", "input_ids"], rows=slice(1, 3))
    data = result["batch"]
    data.update(result["non_tensor_batch"])
    assert sorted(data) == ["input_ids", "log_probs", "uid"]
    assert torch.equal(data["input_ids"], sent["batch"]["input_ids"][1:3])
    assert torch.equal(data["log_probs"], more["batch"]["log_probs"][1:3])
    assert list(data["uid"]) == ["u1", "u2"]
    if module is mooncake_api:  # Mooncake's module needs the first stage, which took the name's place
        assert_same(transfer.get_dataproto(handle), sent)
    transfer.cleanup_dataproto(newer)


def miles(module: ModuleType, transfer: Any) -> None:
    """Miles' calls, with either module, on values that both keep."""
    batch = miles_batch()
    for name in ("loss_masks", "multimodal_train_inputs", "raw_reward", "rollout_log_probs"):
        batch.pop(name)
    schemas = {name: schema for name, schema in miles_schemas(module).items() if name in batch}
    batch["step_adapter_batch_sizes"] = {"0": 4}
    ref = transfer.put(batch, type="dict", namespace="miles", chunk_bytes=1 << 20, config=None, field_schemas=schemas)
    payload = json.loads(json.dumps(module.export_ref(ref)))
    value = transfer.get(module.import_ref(payload), type="dict")
    assert set(value) == set(batch)
    assert all(np.array_equal(got, sent) for got, sent in zip(value["tokens"], batch["tokens"], strict=True))
    assert list(value["response_lengths"]) == batch["response_lengths"]
    assert (value["prompt"], value["step_slots"], value["n_adapters"]) == (batch["prompt"], [4, 2], 2)
    module.MooncakeBundleTransfer.release_result(value)
    transfer.cleanup_dataproto(module.import_ref(payload))


class TestSlime:
    def test_put_get_remove(self, transfer: MooncakeBundleTransfer) -> None:
        batch = miles_batch()
        ref = transfer.put_legacy_dict(batch, namespace="slime", partition="default", stage="rollout", chunk_bytes=None)
        handle = export_dataproto_ref(ref)
        assert list(ref.stage_refs) == ["rollout"]
        assert_same(transfer.get_legacy_dict(handle), batch)
        transfer.remove_legacy_dict(handle)
        with pytest.raises(KeyError):
            transfer.get_legacy_dict(handle)


class TestForms:
    def test_dict_as_dataproto(self, transfer: MooncakeBundleTransfer) -> None:
        batch = {
            "c": 7,
            "a": torch.arange(3),
            "names": ["x", "y", "z"],
            "other": [1, 2],
            "o": np.array(["p", "q", "r"], object),
        }
        ref = transfer.put(batch, type="dict")
        assert ref.batch_size == 3
        assert_same(
            transfer.get(ref, rows=[2]),
            {
                "batch": {"a": torch.tensor([2])},
                "non_tensor_batch": {"names": ["z"], "o": np.array(["r"], object)},
                "meta_info": {"c": 7, "other": [1, 2]},
            },
        )

    def test_dataproto_as_dict(self, transfer: MooncakeBundleTransfer) -> None:
        sent = roll_batch()
        ref = transfer.put(sent)
        assert_same(transfer.get(ref, type="dict"), {**sent["meta_info"], **sent["batch"], **sent["non_tensor_batch"]})
        part = transfer.get(ref, type="dict", fields=["turns", "scores"], meta_info_keys=[], rows=slice(0, 1))
        assert_same(part, {"scores": sent["batch"]["scores"][:1], "turns": sent["non_tensor_batch"]["turns"][:1]})
        assert_same(transfer.get(transfer.put(sent, type="dict"), type="dict")["uid"], sent["non_tensor_batch"]["uid"])

    def test_flat_dict_put_as_dataproto(self, transfer: MooncakeBundleTransfer) -> None:
        got = transfer.get(transfer.put({"a": torch.ones(2), "n": np.array(["x", "y"], object), "step": 1}))
        assert (list(got["batch"]), list(got["non_tensor_batch"]), got["meta_info"]) == (["a"], ["n"], {"step": 1})

    def test_one_name_in_meta_info_and_batch(self, transfer: MooncakeBundleTransfer) -> None:
        sent = {"batch": {"a": torch.ones(2)}, "non_tensor_batch": {}, "meta_info": {"a": "about"}}
        ref = transfer.put(sent)
        assert_same(transfer.get(ref, fields=["a"]), sent)
        for call in (lambda: transfer.get(ref, type="dict"), lambda: transfer.put(sent, type="dict")):
            with pytest.raises(ValueError, match=r"\['a'\]"):
                call()
        with pytest.raises(ValueError, match="both"):
            transfer.put({"batch": {"a": torch.ones(2)}, "non_tensor_batch": {"a": np.ones(2)}})

    def test_no_batch(self, transfer: MooncakeBundleTransfer) -> None:
        for wrong in (None, 5, [1]):
            for kind in ("dict", "dataproto"):
                with pytest.raises(TypeError):
                    transfer.put(wrong, type=kind)
        with pytest.raises(TypeError, match="section"):
            transfer.put({"batch": 5})
        with pytest.raises(ValueError, match="'a': 4, 'n': 3"):
            transfer.put({"batch": {"a": torch.ones(4)}, "non_tensor_batch": {"n": np.ones(3)}})
        with pytest.raises(UnsupportedValueError, match="str or int"):
            transfer.put({("a", 1): [1]}, type="dict")
        with pytest.raises(TypeError, match=r"x\[0\]"):
            transfer.put({"x": [object()]}, type="dict")
        for call in (transfer.put, transfer.get):
            with pytest.raises(ValueError, match="type must be"):
                call({}, type="other")

    def test_int_names(self, transfer: MooncakeBundleTransfer) -> None:
        handle = json.loads(json.dumps(export_ref(transfer.put({1: [1, 2], "b": [3, 4]}, type="dict"))))
        assert_same(transfer.get(handle, type="dict", fields=[1], rows=[1]), {1: [2]})


class TestDestinations:
    def test_are_filled(self, transfer: MooncakeBundleTransfer) -> None:
        sent = roll_batch()
        ref = transfer.put(sent)
        tensor, array = torch.zeros(2, 3, dtype=torch.int64), np.zeros(2, np.int64)
        got = transfer.get(
            ref, fields=["input_ids", "turns"], rows=[3, 0], destinations={"input_ids": tensor, "turns": array}
        )
        assert got["batch"]["input_ids"] is tensor
        assert_same(tensor, sent["batch"]["input_ids"][[3, 0]])
        assert_same(array, sent["non_tensor_batch"]["turns"][[3, 0]])

    def test_that_do_not_fit(self, transfer: MooncakeBundleTransfer) -> None:
        ref = transfer.put({"a": np.arange(4)}, type="dict")
        for wrong in ({"a": np.zeros(3, np.int64)}, {"a": np.full(4, 9, np.int32)}, {"b": np.zeros(4)}):
            before = {name: buffer.copy() for name, buffer in wrong.items()}
            with pytest.raises(ValueError) as caught:
                transfer.get(ref, type="dict", destinations=wrong)
            assert isinstance(caught.value, SelectionError)
            assert all(np.array_equal(buffer, before[name]) for name, buffer in wrong.items())
        raw = SimpleNamespace(ptr=1, size=32)
        with pytest.raises(NotImplementedError, match="'a'") as caught:
            transfer.get(ref, type="dict", destinations={"a": raw})
        assert isinstance(caught.value, NotOfferedError)


class TestErrors:
    def test_gone(self, transfer: MooncakeBundleTransfer) -> None:
        ref = transfer.put({"a": [1]}, type="dict")
        transfer.cleanup_dataproto(ref)
        with pytest.raises(KeyError, match=ref.transfer_ref.id) as caught:
            transfer.get(ref, type="dict")
        assert isinstance(caught.value, BundleNotFoundError)
        assert not str(caught.value).startswith(("'", '"'))

    def test_selections(self, transfer: MooncakeBundleTransfer) -> None:
        ref = transfer.put(roll_batch())
        for wrong in ({"fields": ["inputs"]}, {"batch_fields": ["uid", "temperature"]}):
            with pytest.raises(KeyError) as caught:
                transfer.get(ref, **wrong)
            assert isinstance(caught.value, SelectionError)
        with pytest.raises(IndexError):
            transfer.get(ref, rows=[9])
        with pytest.raises(ValueError, match="go with"):
            transfer.get(ref, fields=["uid"], batch_fields=[])
        with pytest.raises(TypeError, match=r"\['uid'\]"):
            transfer.get(ref, fields="uid")

    def test_references(self, transfer: MooncakeBundleTransfer) -> None:
        ref = transfer.put({"a": [1]}, type="dict")
        handle = export_ref(ref)
        assert [is_dataproto_ref_handle(one) for one in (handle, ref, {}, None, "x", {"type": "rollferry_ref"})] == [
            True,
            *[False] * 5,
        ]
        assert transfer.ferry.get(handle) == {"a": [1]}
        foreign = transfer.ferry.put({"a": [1]})
        mooncakes = {"type": "mooncake_dataproto_ref", "version": 1}
        for wrong in (foreign, foreign.to_dict(), {}, mooncakes, {**handle, "id": "0" * 32}, {**handle, "version": 9}):
            with pytest.raises(ValueError) as caught:
                transfer.get(wrong, type="dict")
            assert isinstance(caught.value, RefError)
        damaged = json.loads(json.dumps(handle).replace('"kind": "dict"', '"kind": "list"'))
        assert damaged != handle
        with pytest.raises(RefError, match="kind"):
            import_ref(damaged)
        for call in (transfer.get, transfer.cleanup_dataproto, transfer.dataproto_manifest_view):
            for wrong in ("x", None, 3):
                with pytest.raises(TypeError, match="MooncakeDataProtoRef"):
                    call(wrong)
        with pytest.raises(TypeError):
            export_ref(handle)
        assert import_ref(ref) is ref

    def test_options(self, transfer: MooncakeBundleTransfer) -> None:
        for wrong in (
            lambda: transfer.put({"a": [1]}, type="dict", chunk_bytes=0),
            lambda: MooncakeBundleTransfer(transfer.ferry, default_chunk_bytes=0),
            lambda: MooncakeBundleTransfer(transfer.ferry, key_prefix=""),
            lambda: MooncakeBundleTransfer(transfer.ferry, key_prefix="//"),
            lambda: transfer.put({"a": [1]}, type="dict", partition=""),
            lambda: BundleTransferPolicy(max_inflight_put=0),
            lambda: BundleTransferPolicy(put_mode="fast"),
            lambda: BundleTransferPolicy(copy_mode="fast"),
        ):
            with pytest.raises(ValueError):
                wrong()
        with pytest.raises(TypeError, match="namespace"):
            transfer.put({"a": [1]}, type="dict", namespace=5)
        assert transfer.ferry.usage().bundles == 0

    def test_closed(self, transfer: MooncakeBundleTransfer) -> None:
        transfer.close()
        with pytest.raises(RuntimeError, match="closed"):
            transfer.put({"a": [1]}, type="dict")

    def test_full(self, transfer: MooncakeBundleTransfer, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise EngineFullError("no room", needed=9, free=1)

        monkeypatch.setattr(transfer.ferry._engine, "begin", full)
        with pytest.raises(RuntimeError, match="no room") as caught:
            transfer.put({"a": [1]}, type="dict")
        assert isinstance(caught.value, EngineFullError)
        assert (caught.value.needed, caught.value.free) == (9, 1)

    def test_what_is_not_offered(self, transfer: MooncakeBundleTransfer) -> None:
        for name in ("put_bundle", "put_structured_object", "put_object", "read_spec", "materialize"):
            assert not hasattr(transfer, name)


class TestReferences:
    def test_travel(self, transfer: MooncakeBundleTransfer) -> None:
        ref = transfer.put(roll_batch())
        copy = pickle.loads(pickle.dumps(ref))
        assert copy == ref
        assert hash(copy) == hash(ref)
        assert copy != transfer.put(roll_batch())
        assert ref.transfer_ref.id in repr(ref)
        assert_same(transfer.get(copy), roll_batch())

    def test_small_meta_info(self, transfer: MooncakeBundleTransfer) -> None:
        shared = [1]
        ref = transfer.put(DataProto(None, {"n": np.arange(2)}, {"step": 3, "shared": shared}))
        shared.append(2)
        assert import_ref(export_ref(ref)).meta_info == {"step": 3, "shared": [1]}
        newer = transfer.append_dataproto_fields(ref, DataProto(None, {"m": np.arange(2)}, {"step": 4}), stage="s")
        assert newer.meta_info == {"step": 4, "shared": [1]}
        for large in ({"x": "y" * 2000}, {"x": (1, 2)}, {"x": np.arange(2)}, {"x": {1: 2}}, {"x": float("nan")}):
            other = transfer.put(DataProto(None, {"n": np.arange(2)}, large))
            with pytest.raises(NotOfferedError, match="get"):
                other.meta_info  # noqa: B018
            assert_same(transfer.get(other, batch_fields=[])["meta_info"], large)


class TestWhere:
    def test_ferry_and_url(self, shm_directory: Path) -> None:
        url = f"shm://{shm_directory}"
        with rollferry.connect(url, namespace="own") as ferry:
            ref = MooncakeBundleTransfer(ferry, key_prefix="other").put({"a": [1]}, type="dict")
            MooncakeBundleTransfer(ferry).close()
            assert ferry.list() == [ref.transfer_ref.id]
            for other in (MooncakeBundleTransfer(url), MooncakeBundleTransfer(object(), url=url)):
                assert other.get(ref, type="dict") == {"a": [1]}
                other.close()

    def test_environment(self, shm_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ROLLFERRY_URL", f"shm://{shm_directory}")
        transfer = MooncakeBundleTransfer(None)
        transfer.put({"a": [1]}, type="dict")
        assert len(list((shm_directory / "live").iterdir())) == 1
        transfer.close()

    def test_other_stores(self) -> None:
        with pytest.raises(TypeError, match="url=") as caught:
            MooncakeBundleTransfer({})
        assert "dict" in str(caught.value)
        with pytest.raises(RuntimeError, match="no engine"):
            MooncakeBundleTransfer("other://")

    def test_replicas_that_a_url_decides_on(self, transfer: MooncakeBundleTransfer) -> None:
        transfer.put({"a": [1]}, type="dict", config=SimpleNamespace(replica_num=1))
        with pytest.warns(RollferryWarning, match="replicas=2"):
            transfer.put({"a": [1]}, type="dict", config=SimpleNamespace(replica_num=2))


READER = """
import json, sys
from rollferry.integrations.mooncake_api import MooncakeBundleTransfer, import_ref
from rollferry.testing.equality import assert_same
from tests.integrations.test_mooncake_api import miles_batch, roll_batch
transfer = MooncakeBundleTransfer(sys.argv[1])
first, second = map(import_ref, json.loads(sys.stdin.read()))
assert_same(transfer.get(first, type="dict"), miles_batch())
assert_same(transfer.get(second), roll_batch())
transfer.cleanup_dataproto(first)
transfer.cleanup_dataproto(second)
transfer.ferry.close()
"""


def test_other_process(shm_directory: Path) -> None:
    transfer = MooncakeBundleTransfer(f"shm://{shm_directory}")
    refs = [transfer.put(miles_batch(), type="dict"), transfer.put(roll_batch())]
    read_elsewhere(f"shm://{shm_directory}", refs)
    assert transfer.ferry.usage().bundles == 0
    transfer.close()


def read_elsewhere(url: str, refs: list[MooncakeDataProtoRef]) -> None:
    """Read and remove in another process what this one has put."""
    done = subprocess.run(
        [sys.executable, "-c", READER, url],
        input=json.dumps([export_ref(ref) for ref in refs]),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with Master() as master:
        yield master


@pytest.fixture(scope="module")
def store(master: Master) -> Iterator[Any]:
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    config = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "tcp",
        "rdma_devices": "",
    }
    sizes = {"global_segment_size": 128 << 20, "local_buffer_size": 64 << 20}
    assert store.setup({**config, **sizes, "master_server_addr": f"127.0.0.1:{master.port}"}) == 0
    yield store
    store.close()


@pytest.mark.parametrize("calls", [miles, roll])
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "theirs"])
def test_same_code_with_both_modules(store: Any, calls: Callable[[ModuleType, Any], None], ours: bool) -> None:
    module = mooncake_api if ours else pytest.importorskip("mooncake.structured_object_store")
    transfer = module.MooncakeBundleTransfer(store, key_prefix="miles-object-store")
    try:
        calls(module, transfer)
    finally:
        if ours:  # the other has no close
            transfer.close()


def test_calls_take_what_theirs_take(store: Any) -> None:
    theirs = pytest.importorskip("mooncake.structured_object_store")
    other = theirs.MooncakeBundleTransfer(store)
    transfer = MooncakeBundleTransfer(store)
    for name in ("put", "get", "append_dataproto_fields", "cleanup_dataproto", "dataproto_manifest_view"):
        known = inspect.signature(getattr(transfer, name)).parameters
        for parameter in inspect.signature(getattr(other, name)).parameters.values():
            assert known[parameter.name].kind == parameter.kind
            assert known[parameter.name].default == parameter.default
    for name in ("FieldSchema", "BundleTransferPolicy"):
        known = inspect.signature(getattr(mooncake_api, name)).parameters
        assert list(known) == list(inspect.signature(getattr(theirs, name)).parameters)
    transfer.close()


def test_other_process_with_a_url(master: Master, store: Any) -> None:
    transfer = MooncakeBundleTransfer(store, key_prefix="miles-object-store")
    refs = [transfer.put(miles_batch(), type="dict"), transfer.put(roll_batch())]
    read_elsewhere(master.url(segment=0), refs)
    with pytest.raises(KeyError):
        transfer.get(refs[0])
    transfer.close()
    assert store.health_check() == 0


def test_replicas(store: Any) -> None:
    from mooncake.store import ReplicateConfig

    config = ReplicateConfig()
    config.replica_num = 2
    transfer = MooncakeBundleTransfer(store)
    ref = transfer.put({"a": [1]}, type="dict", config=config)  # one segment: as many as there are
    assert transfer.get(ref, type="dict") == {"a": [1]}
    transfer.cleanup_dataproto(ref)
    transfer.close()


def test_store_that_is_not_set_up() -> None:
    from mooncake.store import MooncakeDistributedStore

    with pytest.raises(RuntimeError, match=r"setup\(\)"):
        MooncakeBundleTransfer(MooncakeDistributedStore())
