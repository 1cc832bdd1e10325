"""A Ray whose store and disk are full. Run by test_engine_ray.

Ray falls back to the disk first. It takes the disk for full at a share of use that it can be told; here, at once.
"""

import time

import numpy as np
import ray

import rollferry
from rollferry.engines.ray.staging import Staging
from rollferry.errors import EngineFullError
from rollferry.testing import assert_same

STORE, ROW = 100 << 20, 20 << 20


def batch_of(number: int) -> dict[str, list[np.ndarray]]:
    return {"rows": [np.full(ROW, number, np.uint8)]}


def put_when_free(ferry: rollferry.Ferry, batch: dict[str, list[np.ndarray]]) -> rollferry.TransferRef:
    """Put what fits as soon as Ray has freed what was removed, which it does in the background."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return ferry.put(batch)
        except EngineFullError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def refused(ferry: rollferry.Ferry, needed: int = ROW) -> None:
    """Put what doesn't fit."""
    held = set(ferry.list())
    start = time.monotonic()
    try:
        ferry.put(batch_of(99))
    except EngineFullError as error:
        assert needed <= error.needed < needed + 1000, error.needed
        assert 0 <= error.free <= STORE, error.free  # as of when Ray counted last
        assert f"{error.needed:,} bytes" in str(error)
        assert f"{error.free:,} were free" in str(error)
    else:
        raise AssertionError
    assert time.monotonic() - start < 10
    assert set(ferry.list()) == held


ray.init(
    address="local",
    num_cpus=1,
    object_store_memory=STORE,
    include_dashboard=False,
    log_to_driver=False,
    _system_config={"automatic_object_spilling_enabled": False, "local_fs_capacity_threshold": 0.0},
)
with rollferry.connect("ray://?timeout=30") as ferry:
    refs = [ferry.put(batch_of(number)) for number in range(4)]
    for _ in range(10):
        refused(ferry)
    small = ferry.put({"x": 1})  # in the memory of the registry
    assert_same(ferry.get(small), {"x": 1})
    for number, ref in enumerate(refs):
        assert_same(ferry.get(ref), batch_of(number))
    for number in range(4, 8):
        assert ferry.remove(refs.pop(0))
        refs.append(put_when_free(ferry, batch_of(number)))
        refused(ferry)
    for number, ref in enumerate(refs, 4):
        assert_same(ferry.get(ref, readonly=True), batch_of(number))

    describe = Staging.describe
    Staging.describe = lambda *args: describe(*args)._replace(identity=(0, 0))  # no shared /proc
    refused(ferry, 2 * ROW)
print("ok")
