"""verl's batches: DataProtos by handle, and samples by key."""

import asyncio
import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict

import rollferry
from rollferry.errors import BundleNotFoundError, SchemaError, SelectionError
from rollferry.integrations.verl import Catalog, DataProtoStore, KeyValueClient, rows_of_rank
from rollferry.testing import assert_same
from tests.integrations.dataprotos import DataProto, jagged, objects, padded, unpadded


@pytest.fixture
def ferry(shm_directory: Path) -> Iterator[rollferry.Ferry]:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        yield ferry


@pytest.fixture
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


# ---- whole DataProtos


@pytest.mark.parametrize("make", [padded, unpadded, DataProto])
def test_dataproto_comes_back_as_it_was(make: Callable[[], DataProto], ferry: rollferry.Ferry) -> None:
    store = DataProtoStore(ferry, DataProto)
    handle = store.put(make())
    assert json.loads(json.dumps(handle)) == handle
    back = store.get(json.loads(json.dumps(handle)))
    assert type(back) is DataProto
    assert_same(vars(back), vars(make()))
    assert store.delete(handle)
    assert not store.delete(handle)
    with pytest.raises(BundleNotFoundError):
        store.get(handle)


def rollout(url: str) -> Any:
    return DataProtoStore(rollferry.connect(url)).put(padded(rows=8))


def log_probs(url: str, handle: Any) -> Any:
    """What a worker adds that reads one field."""
    store = DataProtoStore(rollferry.connect(url), DataProto)
    ids = store.get(handle, fields=["input_ids"])
    assert ids.meta_info == ids.non_tensor_batch == {}
    batch = TensorDict({"old_log_probs": ids.batch["input_ids"] * 0.5}, batch_size=len(ids))
    return store.append(handle, DataProto(batch))


def train(url: str, handle: Any, rank: int) -> tuple[list[int], list[str], int]:
    store = DataProtoStore(rollferry.connect(url), DataProto)
    rows = rows_of_rank(handle, rank, 2)
    data = store.get(handle, rows=rows)
    whole = padded(rows=8)
    assert_same(dict(data.batch.exclude("old_log_probs").items()), dict(whole.batch[rows].items()))
    assert_same(data.non_tensor_batch, {name: value[rows] for name, value in whole.non_tensor_batch.items()})
    assert_same(data.meta_info, whole.meta_info)
    assert torch.equal(data.batch["old_log_probs"], data.batch["input_ids"] * 0.5)
    return list(data.batch.batch_size), list(data.non_tensor_batch["uid"]), store.ferry.timings[-1].fetched_nbytes


def test_stages_of_a_step_are_processes(
    processes: ProcessPoolExecutor, ferry: rollferry.Ferry, shm_directory: Path
) -> None:
    url = f"shm://{shm_directory}"
    first = processes.submit(rollout, url).result(timeout=120)
    handle = processes.submit(log_probs, url, first).result(timeout=120)
    (size, uids, fetched), (_, others, _) = (processes.submit(train, url, handle, rank).result(120) for rank in (0, 1))
    assert size == [4]
    assert (uids, others) == (["prompt-0"] * 2 + ["prompt-1"] * 2, ["prompt-2"] * 2 + ["prompt-3"] * 2)
    assert fetched < first["nbytes"]
    store = DataProtoStore(ferry, DataProto)
    assert "old_log_probs" not in store.get(first).batch  # which it goes on to mean
    assert store.delete(handle)
    assert ferry.list() == []


def test_fields_and_rows(ferry: rollferry.Ferry) -> None:
    store = DataProtoStore(ferry, DataProto)
    handle = store.put(padded())
    part = store.get(handle, fields={"batch": ["attention_mask"], "meta_info": None}, rows=[3, 0])
    assert_same(part.batch, TensorDict({"attention_mask": torch.ones(2, 7, dtype=torch.int64)}, batch_size=[2]))
    assert_same((part.non_tensor_batch, part.meta_info), ({}, padded().meta_info))
    with pytest.raises(SelectionError, match="input_idz"):
        store.get(handle, fields=["input_idz"])
    with pytest.raises(SelectionError, match="4"):
        store.get(handle, rows=[4])
    with pytest.raises(SchemaError, match="uid"):
        store.append(handle, DataProto(None, {"uid": objects(*"abcd")}))
    with pytest.raises(SchemaError, match="3"):
        store.append(handle, DataProto(None, {"other": objects(*"abc")}))
    newer = store.append(handle, {"non_tensor_batch": {"uid": objects(*"abcd")}}, overwrite=True)
    assert list(store.get(newer, rows=slice(2, None)).non_tensor_batch["uid"]) == ["c", "d"]


@pytest.mark.parametrize("rows", [slice(0, 2), [3, 0, 0], [], slice(None, None, -1)])
def test_rows_of_what_is_not_padded(rows: Any, ferry: rollferry.Ferry) -> None:
    store = DataProtoStore(ferry, DataProto)
    found = store.get(store.put(unpadded()), rows=rows)
    numbers = list(range(4))[rows] if isinstance(rows, slice) else rows
    assert found.batch.batch_size == torch.Size([len(numbers)])
    for name, value in unpadded().batch.items():
        assert_same([found.batch[name][place] for place in range(len(numbers))], [value[number] for number in numbers])
        assert found.batch[name].is_nested == value.is_nested


def test_share_of_a_rank(ferry: rollferry.Ferry) -> None:
    handle = DataProtoStore(ferry).put(padded(rows=6))
    assert [rows_of_rank(handle, rank, 3) for rank in range(3)] == [slice(0, 2), slice(2, 4), slice(4, 6)]
    for rank, ranks in ((0, 4), (3, 3), (-1, 3), (0, 0)):
        with pytest.raises(SelectionError, match=f"{rank} of {ranks}"):
            rows_of_rank(handle, rank, ranks)


def test_class_is_that_of_verl_where_none_is_given(ferry: rollferry.Ferry, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import SimpleNamespace

    monkeypatch.setitem(sys.modules, "verl", SimpleNamespace(DataProto=DataProto))
    store = DataProtoStore(ferry)
    assert type(store.get(store.put(padded()))) is DataProto


# ---- samples by key


@pytest.fixture
def client(ferry: rollferry.Ferry) -> KeyValueClient:
    return KeyValueClient(ferry, Catalog())


def fields(*numbers: int) -> TensorDict:
    values = {
        "prompts": jagged(*(torch.arange(number) for number in numbers)),
        "scores": torch.tensor([number / 2 for number in numbers]),
        "turns": NonTensorStack(*[{"tools": ["calc"] * number} for number in numbers]),
    }
    return TensorDict(values, batch_size=[len(numbers)])


def test_samples_come_back_by_key(client: KeyValueClient) -> None:
    keys = ["a", "b", "c"]
    meta = client.kv_batch_put(keys, "train", fields(1, 2, 3), [{"status": "ok", "n": n} for n in range(3)])
    assert asdict(meta) == {
        "keys": keys,
        "tags": [{"status": "ok", "n": n} for n in range(3)],
        "partition_id": "train",
        "fields": ["prompts", "scores", "turns"],
        "extra_info": {},
    }
    assert (meta.size, len(meta)) == (3, 3)
    found = client.kv_batch_get(["c", "a", "c"], "train")
    assert type(found) is TensorDict
    assert_same(found, fields(3, 1, 3))
    assert_same(client.kv_batch_get_by_meta(meta), fields(1, 2, 3))
    assert_same(client.kv_batch_get("b", "train", "scores"), fields(2).select("scores"))
    assert_same(client.kv_batch_get(["b"], "train", ["turns", "scores"]), fields(2).select("turns", "scores"))
    assert_same(client.kv_batch_get([], "train"), TensorDict({}, batch_size=[0]))


def test_fields_of_a_sample_come_from_several_puts(client: KeyValueClient) -> None:
    client.kv_batch_put(["a", "b"], "train", fields(1, 2))
    client.kv_batch_put(["d", "c"], "train", fields(4, 3))
    meta = client.kv_batch_put(["c", "b", "a"], "train", {"advantages": jagged([3.0], [2.0, 2.0], [1.0])})
    assert meta.fields == ["prompts", "scores", "turns", "advantages"]
    found = client.kv_batch_get(["a", "c", "b"], "train")
    expected = fields(1, 3, 2)
    expected["advantages"] = jagged([1.0], [3.0], [2.0, 2.0])
    assert_same(dict(found.items()), {name: expected.get(name) for name in found.keys()})  # noqa: SIM118
    with pytest.raises(SelectionError, match="'d'.*advantages"):
        client.kv_batch_get(["a", "d"], "train")
    assert_same(client.kv_batch_get(["a", "d"], "train", ["scores"]), fields(1, 4).select("scores"))


def test_only_the_rows_asked_for_are_fetched(client: KeyValueClient) -> None:
    values = jagged(*(torch.arange(10_000) for _ in range(10)))
    client.kv_batch_put([f"k{row}" for row in range(10)], "train", {"long": values, "other": torch.ones(10, 5000)})
    client.ferry.timings.clear()
    client.kv_batch_get(["k3", "k4"], "train", "long")
    (timing,) = client.ferry.timings
    assert timing.fetched_nbytes < 2.1 * 80_000


def test_newer_fields_replace_older_ones_and_their_bundle_goes(client: KeyValueClient) -> None:
    client.kv_batch_put(["a", "b"], "train", {"score": torch.zeros(2)})
    client.kv_batch_put(["a"], "train", {"score": torch.ones(1)})
    assert len(client.ferry.list()) == 2
    assert client.kv_batch_get(["a", "b"], "train")["score"].tolist() == [1, 0]
    client.kv_batch_put(["b"], "train", {"score": torch.ones(1), "more": torch.ones(1)})
    assert len(client.ferry.list()) == 2  # nobody needs the first one any more
    assert client.kv_batch_get(["b", "a"], "train", "score")["score"].tolist() == [1, 1]


def test_clearing_removes_bundles_with_their_last_sample(client: KeyValueClient) -> None:
    client.kv_batch_put(["a", "b"], "train", fields(1, 2))
    client.kv_batch_put(["a"], "val", fields(9), [{"status": "x"}])
    result = client.kv_batch_get(["b"], "train")
    client.kv_clear("a", "train")
    assert client.kv_list("train") == {"train": {"b": {}}}
    assert client.kv_list() == {"train": {"b": {}}, "val": {"a": {"status": "x"}}}
    with pytest.raises(LookupError, match="'a'"):
        client.kv_batch_get(["b", "a"], "train")
    assert len(client.ferry.list()) == 2
    client.kv_clear(["b", "never put"], "train")
    assert len(client.ferry.list()) == 1
    assert client.kv_list() == {"val": {"a": {"status": "x"}}}
    assert client.kv_list("train") == {"train": {}}
    assert_same(result, fields(2))


def test_tags_only_and_single_samples(client: KeyValueClient) -> None:
    meta = client.kv_put("uid", "train", tag={"status": "pending", "n": 1})
    assert (meta.tags, meta.fields) == ([{"status": "pending", "n": 1}], [])
    client.kv_put("uid", "train", {"raw_prompt": [{"role": "user"}], "ids": torch.arange(3)}, {"status": "running"})
    assert client.kv_list("train") == {"train": {"uid": {"status": "running", "n": 1}}}
    found = client.kv_batch_get("uid", "train")
    expected = {"raw_prompt": NonTensorStack([{"role": "user"}]), "ids": torch.arange(3)[None]}
    assert found.get("raw_prompt").tolist() == [[{"role": "user"}]]
    assert_same(found["ids"], expected["ids"])
    client.kv_batch_put(["uid"], "train", TensorDict({"ids": torch.zeros(1)}, batch_size=[1]))
    assert client.kv_batch_get("uid", "train", "ids")["ids"].tolist() == [0]


def test_values_of_a_dict(client: KeyValueClient) -> None:
    values = {
        "numbers": np.arange(2, dtype=np.int32),
        "objects": objects({"x": None}, np.arange(2)),
        "text": ["a", "b"],
        "same": [torch.zeros(2), torch.ones(2)],
        "ragged": [torch.zeros(2), torch.ones(1)],
        "wide": [torch.zeros(2, 1), torch.ones(2, 3)],
    }
    client.kv_batch_put(["a", "b"], "p", values)
    found = client.kv_batch_get(["b", "a"], "p")
    assert_same(found["numbers"], torch.tensor([1, 0], dtype=torch.int32))
    assert_same(found.get("objects").tolist(), [np.arange(2), {"x": None}])
    assert found.get("text").tolist() == ["b", "a"]
    assert_same(found["same"], torch.stack([torch.ones(2), torch.zeros(2)]))
    assert_same(list(found["ragged"].unbind()), [torch.ones(1), torch.zeros(2)])
    assert_same(list(found["wide"].unbind()), [torch.ones(2, 3), torch.zeros(2, 1)])


def test_numeric_arrays_of_several_puts_are_one_tensor(client: KeyValueClient) -> None:
    client.kv_batch_put(["a", "b"], "p", {"x": np.array([[1, 2], [3, 4]])})
    client.kv_batch_put(["c"], "p", {"x": np.array([[5, 6]])})
    found = client.kv_batch_get(["b", "c", "a", "c"], "p")["x"]
    assert torch.equal(found, torch.tensor([[3, 4], [5, 6], [1, 2], [5, 6]]))


def test_rows_of_different_forms(client: KeyValueClient) -> None:
    client.kv_batch_put(["a"], "p", {"x": torch.zeros(1, 2), "y": torch.zeros(1, 2), "z": torch.zeros(1, 2)})
    client.kv_batch_put(["b"], "p", {"x": torch.ones(1, 3), "y": torch.ones(1, 2).double(), "z": ["text"]})
    assert_same(list(client.kv_batch_get(["b", "a"], "p", "x")["x"].unbind()), [torch.ones(3), torch.zeros(2)])
    with pytest.raises(ValueError, match="'y' make no tensor.*float32.*float64"):
        client.kv_batch_get(["a", "b"], "p", "y")
    assert_same(client.kv_batch_get(["a", "b"], "p", "z").get("z").tolist(), [torch.zeros(2), "text"])


@pytest.mark.parametrize(
    ("keys", "values", "tags", "message"),
    [
        (["a"], None, None, "fields or tags"),
        (["a"], {}, None, "no fields"),
        ([], {"x": torch.ones(0)}, None, "no keys"),
        (["a", "a"], {"x": torch.ones(2)}, None, "twice"),
        (["a", "b"], {"x": torch.ones(2)}, [{}], "1 tags for 2 keys"),
        (["a", "b"], {"x": torch.ones(2), "y": [1]}, None, "'y' has 1 rows for 2 keys"),
        (["a"], {"y": 5}, None, "'y' has no rows"),
        (["a"], {"y": "x"}, None, "'y' has no rows"),
        (["a"], {"y": torch.tensor(5)}, None, "'y' has no rows"),
        (["a"], TensorDict({"y": {"x": torch.ones(1)}}, batch_size=[1]), None, "flatten"),
    ],
)
def test_what_is_refused_leaves_nothing(
    keys: list[str], values: Any, tags: Any, message: str, client: KeyValueClient
) -> None:
    with pytest.raises(ValueError, match=message):
        client.kv_batch_put(keys, "train", values, tags)
    assert client.ferry.list() == []
    assert client.kv_list() == {}


def test_async_twins(client: KeyValueClient) -> None:
    async def run() -> Any:
        await asyncio.gather(*(client.async_kv_put(f"k{n}", "p", {"x": torch.tensor(n)}) for n in range(8)))
        meta = await client.async_kv_batch_put(["k1", "k0"], "p", {"y": torch.tensor([1, 0])}, tags=[{}, {}])
        found = await client.async_kv_batch_get_by_meta(meta)
        await client.async_kv_clear(["k2"], "p")
        assert sorted((await client.async_kv_list("p"))["p"]) == [f"k{n}" for n in range(8) if n != 2]
        return found, await client.async_kv_batch_get(["k7", "k3"], "p", select_fields="x")

    found, others = asyncio.run(run())
    assert (found["x"].tolist(), found["y"].tolist(), others["x"].tolist()) == ([1, 0], [1, 0], [7, 3])


def test_bundle_that_is_replaced_while_it_is_read(client: KeyValueClient) -> None:
    client.kv_batch_put(["a"], "p", {"x": torch.zeros(1)})
    catalog = client.catalog

    class Interrupted(Catalog):
        def resolve(self, *given: Any) -> Any:
            reads = catalog.resolve(*given)
            if len(client.ferry.list()) == 1 and not self.list():
                self.update("done", ["once"], tags=[{}])
                KeyValueClient(client.ferry, catalog).kv_batch_put(["a"], "p", {"x": torch.ones(1)})
            return reads

    reader = KeyValueClient(client.ferry, Interrupted())
    assert reader.kv_batch_get("a", "p")["x"].tolist() == [1]
    for ref in catalog.refs():  # type: ignore[attr-defined]
        client.ferry.remove(ref)
    with pytest.raises(BundleNotFoundError):
        reader.kv_batch_get("a", "p")


@pytest.mark.parametrize("move", [lambda c: pickle.loads(pickle.dumps(c)), lambda c: Catalog.from_json(c.to_json())])
def test_catalog_moves(move: Callable[[Catalog], Catalog], ferry: rollferry.Ferry) -> None:
    catalog = Catalog()
    first = KeyValueClient(ferry, catalog)
    first.kv_batch_put(["a", "b"], "p", {"x": torch.tensor([0, 1])}, [{"t": 1}, {}])
    first.kv_batch_put(["b"], "p", {"y": ["yes"]})
    client = KeyValueClient(ferry, move(catalog))
    assert client.kv_batch_get(["b", "a"], "p", "x")["x"].tolist() == [1, 0]
    assert client.kv_list() == {"p": {"a": {"t": 1}, "b": {}}}
    client.kv_clear(["a", "b"], "p")
    assert ferry.list() == []
    with pytest.raises(ValueError, match="version 9"):
        Catalog.from_json('{"version": 9}')


def test_bundle_is_in_the_catalog_once(client: KeyValueClient) -> None:
    ref = client.ferry.put({"x": [1]}).to_json()
    client.catalog.update("p", ["a"], ref=ref, fields=["x"])
    with pytest.raises(ValueError, match="already"):
        client.catalog.update("p", ["b"], ref=ref, fields=["x"])
    with pytest.raises(ValueError, match="1 rows for 2 keys"):
        client.catalog.update("p", ["b", "c"], ref=client.ferry.put({"x": [1]}).to_json(), fields=["x"])
    assert client.kv_list() == {"p": {"a": {}}}


NAMES = ["x", "y", "z"]
KEYS = ["a", "b", "c", "d"]
PUTS = st.tuples(
    st.lists(st.sampled_from(KEYS), min_size=1, unique=True), st.lists(st.sampled_from(NAMES), min_size=1, unique=True)
)
CLEARS = st.lists(st.sampled_from(KEYS), max_size=2)


@given(steps=st.lists(PUTS | CLEARS, max_size=12), read=st.lists(st.sampled_from(KEYS), max_size=6))
def test_any_puts_and_clears_against_a_dict(steps: list[Any], read: list[str]) -> None:
    with rollferry.connect("inproc://key-value") as ferry:
        client = KeyValueClient(ferry, Catalog())
        model: dict[str, dict[str, int]] = {}
        for number, step in enumerate(steps):
            if isinstance(step, list):
                client.kv_clear(step, "p")
                model = {key: values for key, values in model.items() if key not in step}
                continue
            keys, names = step
            values = [100 * number + row for row in range(len(keys))]
            rows = [torch.full([value % 3], value) for value in values]
            made = {"x": torch.tensor(values), "y": jagged(*rows), "z": values}
            client.kv_batch_put(keys, "p", {name: made[name] for name in names})
            for key, value in zip(keys, values, strict=True):
                model.setdefault(key, {}).update(dict.fromkeys(names, value))
        assert set(client.kv_list("p")["p"]) == set(model)
        for name in NAMES:
            if all(name in model.get(key, {}) for key in read):
                found = client.kv_batch_get(read, "p", name)
                assert list(found.batch_size) == [len(read)]
                expected = [model[key][name] for key in read]
                if name == "y" and read:
                    assert [row.tolist() for row in found["y"].unbind()] == [
                        [value] * (value % 3) for value in expected
                    ]
                elif read:
                    assert found.get(name).tolist() == expected
            else:
                with pytest.raises(SelectionError):
                    client.kv_batch_get(read, "p", name)
        client.kv_clear(KEYS, "p")
        assert ferry.list() == []


# ---- processes


class Controller(BaseManager):
    """Serves the catalog of one process to others."""


Controller.register("Catalog", Catalog, exposed=["update", "resolve", "list", "remove"])


def generate(url: str, catalog: Any, keys: list[str]) -> None:
    client = KeyValueClient(rollferry.connect(url), catalog)
    client.kv_batch_put(keys, "train", fields(*(int(key) for key in keys)), [{"status": "success"} for _ in keys])


def score(url: str, catalog: Any) -> Any:
    client = KeyValueClient(rollferry.connect(url), catalog)
    keys = sorted(client.kv_list("train")["train"])
    prompts = client.kv_batch_get(keys, "train", ["prompts"])["prompts"]
    return client.kv_batch_put(keys, "train", {"values": prompts * 2})


def test_workers_and_trainer_are_processes(
    processes: ProcessPoolExecutor, ferry: rollferry.Ferry, shm_directory: Path
) -> None:
    url = f"shm://{shm_directory}"
    with Controller(ctx=get_context("spawn")) as controller:
        catalog = controller.Catalog()  # type: ignore[attr-defined]
        puts = [processes.submit(generate, url, catalog, keys) for keys in (["4", "1"], ["3", "2"])]
        for put in puts:
            put.result(timeout=120)
        meta = processes.submit(score, url, catalog).result(timeout=120)
        assert meta.keys == ["1", "2", "3", "4"]
        client = KeyValueClient(ferry, catalog)
        found = client.kv_batch_get_by_meta(meta)
        assert_same(dict(found.exclude("values").items()), dict(fields(1, 2, 3, 4).items()))
        assert_same(list(found["values"].unbind()), [torch.arange(n) * 2 for n in (1, 2, 3, 4)])
        with pytest.raises(SelectionError, match="'5'"):
            client.kv_batch_get(["5"], "train")
        client.kv_clear(meta.keys, "train")
        assert ferry.list() == []
