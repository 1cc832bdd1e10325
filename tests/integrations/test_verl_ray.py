"""The module that docs/verl.md puts in place of TransferQueue, in Ray."""

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import rollferry
from rollferry.testing import assert_same
from tests.integrations.dataprotos import unpadded

ray = pytest.importorskip("ray", reason="Ray isn't installed: pip install 'rollferry[ray]'")
DOCS = Path(__file__).parents[2] / "docs" / "verl.md"


@dataclass
class KVBatchMeta:
    """A stand-in for TransferQueue's."""

    keys: list[str] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)
    partition_id: str | None = None
    fields: list[str] | None = None
    extra_info: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module", autouse=True)
def session(shared_shm_directory: Path) -> Iterator[None]:
    """A Ray of this module's own, whose workers have the URL in their environment."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    source = [str(Path(rollferry.__file__).parents[1]), str(Path(__file__).parents[2])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*source, *filter(None, [os.environ.get("PYTHONPATH")])]))
        patch.setenv("ROLLFERRY_URL", f"shm://{shared_shm_directory}")
        ray.init(address="local", num_cpus=2, object_store_memory=1 << 28, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


def queue(source: str) -> Any:
    """The module of the docs."""
    sys.modules.setdefault("transfer_queue", SimpleNamespace(KVBatchMeta=KVBatchMeta))  # type: ignore[arg-type]
    module = ModuleType("rollferry_queue")
    exec(compile(source, "docs/verl.md", "exec"), module.__dict__)
    return module


class Worker:
    def __init__(self, source: str) -> None:
        self.tq = queue(source)
        self.tq.init()

    def generate(self, keys: list[str]) -> Any:
        tags = [{"status": "success"} for _ in keys]
        return asyncio.run(
            self.tq.async_kv_batch_put(keys=keys, fields=unpadded().batch, tags=tags, partition_id="train")
        )

    def compute_log_prob(self, meta: Any) -> Any:
        data = self.tq.kv_batch_get_by_meta(meta, select_fields=["input_ids"])
        output = TensorDict({"log_probs": data["input_ids"] * 0.5}, batch_size=data.batch_size)
        return self.tq.kv_batch_put(keys=meta.keys, partition_id=meta.partition_id, fields=output)


def test_module_in_place_of_transfer_queue() -> None:
    (source,) = [block for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S) if "_created" in block]
    tq = queue(source)
    assert tq.init({"anything": 1}) == {"anything": 1}  # the TaskRunner's
    workers = [ray.remote(Worker).options(num_cpus=0).remote(source) for _ in range(2)]
    keys = ["k0", "k1", "k2", "k3"]
    meta = ray.get(workers[0].generate.remote(keys), timeout=120)
    assert meta == KVBatchMeta(keys, [{"status": "success"}] * 4, "train", list(unpadded().batch.keys()), {})
    meta = ray.get(workers[1].compute_log_prob.remote(meta), timeout=120)
    assert "log_probs" in meta.fields
    assert tq.kv_list()["train"]["k3"] == {"status": "success"}
    data = tq.kv_batch_get(keys=["k2", "k0"], partition_id="train")
    for name, value in unpadded().batch.items():
        assert_same([data[name][place] for place in range(2)], [value[2], value[0]])
    assert_same(list(data["log_probs"].unbind()), [torch.tensor([1.0, 1.5, 2.0]), torch.tensor([0.0, 0.5])])
    tq.kv_clear(keys=["k0"], partition_id="train")
    with rollferry.connect(namespace="verl") as ferry:
        assert len(ferry.list()) == 2
        tq.close()
        assert ferry.list() == []
    with pytest.raises(AttributeError):
        tq.get_client()
