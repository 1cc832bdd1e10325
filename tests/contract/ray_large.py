"""Bundles of more than 2 GiB: as one array, as rows, in one object of Ray's and in several. Run by test_engine_ray."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray

import rollferry

NBYTES = (2 << 30) + (100 << 20)
NEEDED = 5 * NBYTES  # the batch, its packing memory, the store, a result, and some
BLOCK = 16 << 20


def equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Compare block by block, without an array of bools as long."""
    blocks = range(0, len(one), BLOCK)
    return len(one) == len(other) and all(
        np.array_equal(one[start : start + BLOCK], other[start : start + BLOCK]) for start in blocks
    )


def store_bytes() -> int:
    return int(ray.cluster_resources()["object_store_memory"] - ray.available_resources().get("object_store_memory", 0))


def check(ferry: rollferry.Ferry, batch: dict[str, Any], rows: Callable[[Any], list[np.ndarray]]) -> None:
    base = store_bytes()
    ref = ferry.put(batch)
    assert ref.nbytes >= NBYTES
    for readonly in (True, False):
        got = ferry.get(ref, readonly=readonly)["x"]
        assert type(got) is type(batch["x"])
        for one, other in zip(rows(got), rows(batch["x"]), strict=True):
            assert one.dtype == other.dtype and one.flags.writeable is not readonly
            assert equal(one, other)
        del got, one
    assert store_bytes() >= base + NBYTES
    assert ferry.remove(ref)
    deadline = time.monotonic() + 20
    while store_bytes() > base + 1000:  # by which a Ferry is known, a few bytes
        assert time.monotonic() < deadline
        time.sleep(0.1)


def main() -> None:
    status = os.statvfs("/dev/shm")
    shm = status.f_bavail * status.f_frsize
    free = next(int(line.split()[1]) << 10 for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
    if free < NEEDED or shm < NEEDED // 2:
        print(
            f"skip: it takes {NEEDED >> 30} GiB of memory and half of it in /dev/shm; free are {free >> 30} and {shm >> 30}"
        )
        sys.exit()
    ray.init(address="local", num_cpus=1, object_store_memory=3 << 30, include_dashboard=False, log_to_driver=False)
    whole = np.arange(NBYTES // 8, dtype=np.int64)
    cuts = [*range(0, len(whole), 7_654_321), len(whole)]
    rows = [whole[start:stop] for start, stop in zip(cuts, cuts[1:], strict=False)]
    with rollferry.connect("ray://") as several, rollferry.connect("ray://?chunk=3gb&pool=0") as single:
        check(several, {"x": rows}, list)
        check(several, {"x": whole}, lambda array: [array])
        check(single, {"x": whole}, lambda array: [array])
    print("ok")


if __name__ == "__main__":
    main()
