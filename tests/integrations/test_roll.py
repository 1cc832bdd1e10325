"""ROLL's transfer backend: rows of remote batches, put, got and deleted as its RemoteBatch does."""

import os
import pickle
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import rollferry
from rollferry.errors import SelectionError
from rollferry.integrations.roll import ActorCatalog, Catalog, RollClient
from rollferry.testing import assert_same
from tests.integrations.dataprotos import objects


class RowRemoteBatch:
    """A stand-in for ROLL's: names of fields and ids of rows, whose values are read when they are first used."""

    def __init__(self, partition: str, device: Any, fields: Any, row_ids: list[str], cache: TensorDict | None) -> None:
        self.partition, self.device, self.cache = partition, device, cache
        self.fields, self.row_ids = set(fields), list(row_ids)

    def __reduce__(self) -> Any:
        return RowRemoteBatch, (self.partition, self.device, self.fields, self.row_ids, None)

    def materialize(self, backend: RollClient) -> TensorDict:
        missing = [name for name in sorted(self.fields) if self.cache is None or name not in self.cache]
        data = backend.get(partition=self.partition, keys=self.row_ids, fields=missing)
        assert set(data.keys()) == set(missing)
        self.cache = data if self.cache is None else self.cache.update(data)
        return self.cache

    def select_idxs(self, index: list[int]) -> "RowRemoteBatch":
        return RowRemoteBatch(self.partition, self.device, self.fields, [self.row_ids[i] for i in index], None)

    def drop(self, backend: RollClient) -> None:
        backend.delete(partition=self.partition, keys=self.row_ids, fields=list(self.fields))


def values() -> dict[str, Any]:
    return {
        "input_ids": torch.arange(12).reshape(3, 4),
        "scores": torch.tensor([0.5, 1.0, 0.0], dtype=torch.bfloat16),
        "messages": objects([{"role": "user"}], [], [{"role": "tool", "content": "x"}]),
    }


@pytest.fixture
def backend(shm_directory: Path) -> Iterator[RollClient]:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        yield RollClient(ferry, Catalog(), remote_batch=RowRemoteBatch)


def check(found: TensorDict, rows: list[int]) -> None:
    for name in ("input_ids", "scores"):
        assert_same(found[name], values()[name][rows])
    assert_same(list(found["messages"]), values()["messages"][rows].tolist())


def test_remote_batch_reads_what_was_put(backend: RollClient) -> None:
    remote = backend.put("train", ["r0", "r1", "r2"], values(), 3)
    assert isinstance(remote, RowRemoteBatch)
    remote = pickle.loads(pickle.dumps(remote))
    check(remote.materialize(backend), [0, 1, 2])
    check(remote.select_idxs([2, 0]).materialize(backend), [2, 0])
    check(remote.select_idxs([0, 0, 1, 1]).materialize(backend), [0, 0, 1, 1])  # repeated, for several answers each


def test_further_fields_of_the_same_rows(backend: RollClient) -> None:
    ids = ["r0", "r1", "r2"]
    remote = backend.put("train", ids, values(), 3)
    added = backend.put("train", ids, {"advantages": torch.ones(3, 2)}, 3)
    remote.fields |= added.fields
    found = remote.materialize(backend)
    check(found, [0, 1, 2])
    assert_same(found["advantages"], torch.ones(3, 2))
    remote.select_idxs([0, 1]).drop(backend)
    with pytest.raises(SelectionError, match="'r1'"):
        backend.get("train", ["r2", "r1"], ["scores"])
    assert backend.get("train", ["r2"], ["scores"])["scores"].tolist() == [0]
    assert len(backend.samples.ferry.list()) == 2
    remote.drop(backend)
    assert backend.samples.ferry.list() == []


def test_class_is_that_of_roll_where_none_is_given(backend: RollClient, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "roll.distributed.scheduler.remote_protocol"
    for part in ("roll", "roll.distributed", "roll.distributed.scheduler"):
        monkeypatch.setitem(sys.modules, part, SimpleNamespace())
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(RowRemoteBatch=RowRemoteBatch))
    plain = RollClient(backend.samples.ferry, backend.samples.catalog)
    assert isinstance(plain.put("train", ["r"], {"x": torch.ones(1)}, 1), RowRemoteBatch)


@pytest.mark.parametrize(
    ("row_ids", "fields", "size", "error"),
    [
        (["a"], {"x": [1]}, 1, TypeError),
        (["a"], {"x": torch.ones(1)}, 2, ValueError),
        (["a", "b"], {"x": torch.ones(2), "y": np.array([1], object)}, 2, ValueError),
        (["a", "a"], {"x": torch.ones(2)}, 2, ValueError),
    ],
)
def test_what_is_refused_leaves_nothing(
    row_ids: list[str], fields: Any, size: int, error: type[Exception], backend: RollClient
) -> None:
    with pytest.raises(error):
        backend.put("train", row_ids, fields, size)
    assert backend.samples.ferry.list() == []


# ---- in Ray, with the catalog in an actor

ray: Any = pytest.importorskip("ray", reason="Ray isn't installed: pip install 'rollferry[ray]'")


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    source = [str(Path(rollferry.__file__).parents[1]), str(Path(__file__).parents[2])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*source, *filter(None, [os.environ.get("PYTHONPATH")])]))
        ray.init(address="local", num_cpus=2, object_store_memory=1 << 28, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


class Worker:
    def __init__(self, url: str, name: str) -> None:
        self.backend = RollClient(rollferry.connect(url), ActorCatalog.find(name), remote_batch=RowRemoteBatch)

    def generate(self, row_ids: list[str]) -> RowRemoteBatch:
        remote: RowRemoteBatch = self.backend.put("train", row_ids, values(), 3)
        return remote

    def score(self, remote: RowRemoteBatch) -> RowRemoteBatch:
        found = remote.materialize(self.backend)
        check(found, [0, 1, 2])
        remote.fields |= self.backend.put("train", remote.row_ids, {"sums": found["input_ids"].sum(1)}, 3).fields
        return remote

    def train(self, remote: RowRemoteBatch, index: list[int]) -> list[int]:
        found = remote.select_idxs(index).materialize(self.backend)
        check(found, [number % 3 for number in index])
        sums: list[int] = found["sums"].tolist()
        return sums


def test_rows_go_from_actor_to_actor(session: None, shm_directory: Path) -> None:  # noqa: ARG001
    url, name = f"shm://{shm_directory}", secrets.token_hex(8)
    catalog = ActorCatalog.create(name)
    rollout, scorer, trainer = (ray.remote(Worker).options(num_cpus=0).remote(url, name) for _ in range(3))
    remote = ray.get(rollout.generate.remote(["a", "b", "c"]), timeout=120)
    ray.kill(rollout)  # what it put stays
    remote = ray.get(scorer.score.remote(remote), timeout=120)
    assert ray.get(trainer.train.remote(remote, [2, 0]), timeout=120) == [38, 6]
    with rollferry.connect(url) as ferry:
        backend = RollClient(ferry, catalog)
        with pytest.raises(SelectionError, match="'d'"):
            backend.get("train", ["d"], ["scores"])
        with pytest.raises(ValueError, match="twice"):
            backend.samples.kv_batch_put(["a", "a"], "train", tags=[{}, {}])
        assert backend.samples.kv_list() == {"train": {"a": {}, "b": {}, "c": {}}}
        assert len(catalog.refs()) == len(ferry.list()) == 2
        remote.drop(backend)
        assert ferry.list() == []
    assert catalog.list() == {}
