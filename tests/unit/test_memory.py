"""How much memory puts and gets take beside the payload, and when it goes back."""

from collections.abc import Callable
from pathlib import Path

import pytest

MEASURE = """
import ctypes, gc, os, sys
import numpy as np
import rollferry

MB = 1 << 20
ferry = rollferry.connect(sys.argv[1])
ferry.get(ferry.put({"warm": [np.zeros(3)], "up": [[1.5]], "d": np.zeros((4, 4))[:, ::2]}))  # imports, first allocations

def status(*names):
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return sum(int(lines[name].split()[0]) << 10 for name in names)

def resident():
    return status("RssAnon", "RssShmem", "RssFile")

def peak_of(work):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the high-water mark starts again here
    before = status("VmRSS")
    result = work()
    return result, status("VmHWM") - before

def stored():
    return sum(entry.stat().st_blocks * 512 for folder in ("live", "pool", "tmp")
               for entry in os.scandir(sys.argv[1].removeprefix("shm://") + "/" + folder))
"""

PUT = """
def rows(n, width):
    return [np.full(width, i, np.int32) for i in range(n)]

def floats(n):
    return (np.arange(n) + 0.1).tolist()

batch = {
    "rows": lambda: {"tokens": rows(100_000, 256), "masks": rows(100_000, 256)},
    "few rows": lambda: {"tokens": rows(4, 12 * MB)},
    "dense": lambda: {"a": np.ones(200 * MB, np.uint8)},
    "noncontiguous": lambda: {"a": np.ones((4096, 100 * MB // 4096, 2), np.uint8)[:, :, 0].T},
    "noncontiguous rows": lambda: {"a": [np.ones((5 * MB, 2), np.uint8)[:, 1] for _ in range(20)]},
    "flat list": lambda: {"a": floats(12_000_000)},
    "lists": lambda: {"a": [floats(1000) for _ in range(12_000)]},
    "nested ints": lambda: {"a": [list(range(1 << 40, (1 << 40) + 1000)) for _ in range(12_000)]},
    "text": lambda: {"a": [os.urandom(50_000).hex() for _ in range(1000)], "b": [os.urandom(MB) for _ in range(100)]},
}[sys.argv[2]]()
checksum = sys.argv[3] == "checksum"
target = rollferry.connect(sys.argv[1], checksum=checksum)
ref, peak = peak_of(lambda: target.put(batch))
assert ref.nbytes > 80 * MB
print(peak, ref.nbytes)
"""


@pytest.mark.parametrize("checksum", ["plain", "checksum"])
@pytest.mark.parametrize(
    "name",
    [
        *("rows", "few rows", "dense", "noncontiguous", "noncontiguous rows", "lists", "nested ints", "text"),
        "flat list",
    ],
)
def test_a_put_takes_the_payload_once(
    name: str, checksum: str, shm_directory: Path, python: Callable[..., str]
) -> None:
    peak, payload = map(int, python(MEASURE + PUT, f"shm://{shm_directory}", name, checksum).split())
    assert payload <= peak <= 1.1 * payload + (8 << 20)


GETS = """
ref = ferry.put({"rows": [np.full(256 << 10, i, np.uint8) for i in range(200)], "dense": np.ones(50 * MB, np.uint8)})
def use(result):
    assert sum(int(row[-1]) for row in result["rows"]) == sum(range(200))
    result["dense"] += 1  # half of it becomes this process's own
    assert int(result["dense"][::4096].max()) == 2
for _ in range(5):
    use(ferry.get(ref))
after_some, blocks = resident(), stored()
_, peak = peak_of(lambda: [use(ferry.get(ref)) for _ in range(50)] and None)
assert resident() - after_some < 4 * MB, resident() - after_some
assert peak < 120 * MB, peak
assert stored() == blocks
"""

# One put after the other in one process: the pool is not a leak.
PUTS = """
for _ in range(5):
    ferry.remove(ferry.put({"a": np.ones(20 * MB, np.uint8)}))
after_some, blocks = resident(), stored()
for i in range(50):
    ferry.remove(ferry.put({"a": np.full(20 * MB - i * 10_000, i, np.uint8)}))
assert resident() - after_some < 4 * MB, resident() - after_some
assert stored() == blocks
"""

RELEASE = """
ref = ferry.put({"rows": [np.full(256 << 10, i, np.uint8) for i in range(200)], "numbers": [0.5] * 1_000_000, "t": "x" * MB})
before = resident()
batch = ferry.get(ref)
for row in batch["rows"]:
    row += 1
assert resident() - before > 50 * MB
alias = batch
ferry.release(batch)
del row
assert alias == {}
gc.collect()
assert resident() - before < 20 * MB, resident() - before

with ferry.borrow(ref) as borrowed:
    for row in borrowed["rows"]:
        row += 1
    assert resident() - before > 50 * MB
del row
assert resident() - before < 20 * MB, resident() - before
"""

KEPT = """
for keep in (lambda batch: batch["rows"][7][100:], lambda batch: batch["rows"][7].reshape(-1, 2).T.view(np.int8)):
    ferry = rollferry.connect(sys.argv[1])
    ref = ferry.put({"rows": [np.full(256 << 10, i, np.uint8) for i in range(200)]})
    batch = ferry.get(ref)
    kept = keep(batch)
    ferry.release(batch)
    del batch
    ferry.remove(ref)
    for i in range(3):
        ferry.remove(ferry.put({"rows": [np.full(256 << 10, 99, np.uint8)] * 200}))
        ferry.remove(ferry.put({"a": np.full(50 * MB, 99, np.uint8)}))
    ferry.close()
    del ferry
    gc.collect()
    assert (kept == 7).all()
    kept[...] = 8
    assert (kept == 8).all()
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(GETS, id="50 gets"),
        pytest.param(PUTS, id="50 puts"),
        pytest.param(RELEASE, id="release"),
        pytest.param(KEPT, id="one kept row"),
    ],
)
def test_memory_goes_back(script: str, shm_directory: Path, python: Callable[..., str]) -> None:
    python(MEASURE + script, f"shm://{shm_directory}")
