"""References of Miles' object store travel through Ray, which never sees the batch."""

import os
import secrets
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollferry
from rollferry.errors import BundleNotFoundError
from rollferry.integrations import miles as object_store
from rollferry.testing import assert_same
from tests.integrations.shards import VALUE_SPEC, shard

ray = pytest.importorskip("ray", reason="Ray isn't installed: pip install 'rollferry[ray]'")


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    """A Ray of this module's own."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    source = [str(Path(rollferry.__file__).parents[1]), str(Path(__file__).parents[2])]
    path = os.pathsep.join([*source, *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        ray.init(address="local", num_cpus=2, object_store_memory=1 << 28, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


class Rollout:
    def __init__(self, args: Namespace) -> None:
        self.store = object_store.init_instance(args, contribute_segment=False)

    def generate(self, ranks: int) -> dict[str, Any]:
        return {"data_ref": [self.store.put(value=shard(), value_spec=VALUE_SPEC) for _ in range(ranks)]}


class Trainer:
    def __init__(self, args: Namespace, rank: int) -> None:
        self.rank = rank
        object_store.init_instance(args)

    def train(self, refs: list[object_store.StoreObjectRef]) -> int:
        with object_store.get_instance().get(refs[self.rank]) as value:
            assert_same(value, shard())
            return len(value["tokens"])


def arguments(backend: str, directory: Path) -> Namespace:
    url = {"rollferry": f"shm://{directory}", "ray": f"ray://?registry={secrets.token_hex(8)}"}[backend]
    return Namespace(object_store_backend=backend, rollferry_init_kwargs={"url": url})


@pytest.mark.parametrize("backend", ["rollferry", "ray"])
def test_reference_goes_from_actor_to_actor(backend: str, shm_directory: Path) -> None:
    args = arguments(backend, shm_directory)
    rollout = ray.remote(Rollout).options(num_cpus=0).remote(args)
    trainers = [ray.remote(Trainer).options(num_cpus=0).remote(args, rank) for rank in range(2)]
    pack = ray.get(rollout.generate.remote(2), timeout=120)
    assert [type(ref) for ref in pack["data_ref"]] == [object_store.StoreObjectRef] * 2
    ray.kill(rollout)  # what it put stays
    assert ray.get([trainer.train.remote(pack["data_ref"]) for trainer in trainers], timeout=120) == [3, 3]

    store = object_store.STORES[object_store.ObjectStoreBackend(backend)](args, contribute_segment=False)
    for ref in pack["data_ref"]:
        store.remove(ref)
        with pytest.raises(BundleNotFoundError):
            store.get(ref)
    assert store.ferry.list() == []
    store.close()
