"""shm:// at its limits: a full file system, no descriptors left, a directory that went away."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry import EngineError, EngineFullError

MB = 1 << 20


def batch(nbytes: int, fill: int = 1) -> dict[str, Any]:
    return {"a": np.full(nbytes, fill, np.uint8)}


def free(root: Path) -> int:
    status = os.statvfs(root)
    return status.f_bavail * status.f_frsize


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


# ---- memory -------------------------------------------------------------------------------------------------------


def test_a_full_file_system(small: Path) -> None:
    with rollferry.connect(f"shm://{small}") as ferry:
        kept = ferry.put(batch(5 * MB, 9))
        before, left = free(small), files(small)
        for _ in range(3):
            with pytest.raises(EngineFullError, match="--shm-size") as caught:
                ferry.put(batch(4 * MB))
            assert caught.value.needed >= 4 * MB
            assert caught.value.free == free(small) == before
            assert f"{caught.value.needed:,}" in str(caught.value)
            assert files(small) == left
        assert (ferry.get(kept)["a"] == 9).all()
        small_one = ferry.put(batch(2 * MB, 4))
        assert (ferry.get(small_one)["a"] == 4).all()
        for ref in (kept, small_one):
            ferry.remove(ref)


def test_who_waits_for_room_takes_none_from_others(small: Path) -> None:
    with (
        rollferry.connect(f"shm://{small}?pool=0", full="block", patience=20) as waiting,
        rollferry.connect(f"shm://{small}?pool=0") as other,
    ):
        kept = other.put(batch(5 * MB))
        put: list[Any] = []
        thread = threading.Thread(target=lambda: put.append(waiting.put(batch(4 * MB, 7))))
        thread.start()
        for number in range(200):  # there is always room for these
            ref = other.put(batch(2 * MB, number))
            assert put == []
            other.remove(ref)
        other.remove(kept)
        thread.join(20)
        assert (other.get(put[0])["a"] == 7).all()


def test_pooled_memory_that_is_still_read_is_not_free(small: Path) -> None:
    with rollferry.connect(f"shm://{small}?pool=8mb") as ferry:
        ref = ferry.put(batch(5 * MB))
        held = ferry.get(ref)
        ferry.remove(ref)
        usage = ferry.usage()
        assert usage.free_nbytes is not None
        assert usage.pooled_nbytes > 5 * MB > 4 * MB > usage.free_nbytes
        del held
        assert ferry.usage().free_nbytes > 7 * MB


def test_a_batch_larger_than_the_file_system(small: Path) -> None:
    with rollferry.connect(f"shm://{small}") as ferry:
        empty = free(small)
        with pytest.raises(EngineFullError):
            ferry.put(batch(30 * MB))
        assert (files(small), free(small)) == ([], empty)
        assert ferry.get(ferry.put(batch(6 * MB)))["a"].nbytes == 6 * MB


def test_the_pool_makes_room(small: Path) -> None:
    with rollferry.connect(f"shm://{small}?pool=1gb") as other:
        refs = [other.put(batch(MB)) for _ in range(6)]
        for ref in refs:
            other.remove(ref)
    with rollferry.connect(f"shm://{small}?pool=1gb") as ferry:
        assert ferry.usage().pooled_nbytes >= 6 * MB
        assert (ferry.get(ferry.put(batch(6 * MB, 5)))["a"] == 5).all()
        assert ferry.usage().pooled_nbytes == 0


@pytest.mark.parametrize("pool", ["", "?pool=1gb"])
def test_the_pool_makes_room_where_this_process_has_mapped_it(pool: str, small: Path) -> None:
    with rollferry.connect(f"shm://{small}{pool}") as ferry:
        for nbytes in (5 * MB, 7 * MB):
            ferry.remove(ferry.put(batch(nbytes)))


def test_what_is_removed_beyond_the_limit_of_the_pool_is_free(small: Path) -> None:
    with rollferry.connect(f"shm://{small}?pool=0") as writer, rollferry.connect(f"shm://{small}?pool=0") as reader:
        empty = free(small)
        reader.remove(writer.put(batch(5 * MB)))
        assert free(small) == empty


def test_removed_bundles_are_free_once_the_writer_is_closed(small: Path) -> None:
    empty = free(small)
    with rollferry.connect(f"shm://{small}?pool=0") as ferry:
        ref = ferry.put(batch(5 * MB))
        held = ferry.get(ref)
        ferry.remove(ref)
    assert (held["a"] == 1).all()
    assert free(small) < empty - 5 * MB
    del held
    assert free(small) == empty


# ---- descriptors --------------------------------------------------------------------------------------------------

HOLD = """
import os, resource, sys, numpy as np, rollferry
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
ferry = rollferry.connect(sys.argv[1])
refs = [ferry.put({"a": np.full(100, i)}) for i in range(500)]
before = len(os.listdir("/proc/self/fd"))
held = [ferry.get(ref) for ref in refs]
assert len(os.listdir("/proc/self/fd")) == before
for ref in refs:
    ferry.remove(ref)
assert all((result["a"] == i).all() for i, result in enumerate(held))
print(before)
"""


def test_500_results_take_no_descriptors(shm_directory: Path, python: Callable[..., str]) -> None:
    assert int(python(HOLD, f"shm://{shm_directory}")) < 80


EXHAUST = """
import os, resource, sys, numpy as np, rollferry
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
ferry = rollferry.connect(sys.argv[1])
ref = ferry.put({"a": np.arange(5)})
other = ferry.put({"b": np.arange(100_000)})
uses = {"put": lambda: ferry.put({"a": np.arange(300_000)}), "get": lambda: ferry.get(ref), "list": ferry.list,
        "usage": ferry.usage, "remove": lambda: ferry.remove(other), "connect": lambda: rollferry.connect(sys.argv[1])}
use, spare = uses[sys.argv[2]], int(sys.argv[3])
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for _ in range(spare):
    os.close(held.pop())
try:
    use()
except rollferry.EngineError as error:
    assert spare < 4 and "ulimit -n" in str(error), error
for fd in held:
    os.close(fd)
use()
assert ferry.get(ref)["a"].tolist() == [0, 1, 2, 3, 4]
ferry.close()
assert not os.listdir(sys.argv[1].removeprefix("shm://") + "/tmp")
"""


@pytest.mark.parametrize("spare", range(5))
@pytest.mark.parametrize("use", ["put", "get", "remove", "list", "usage", "connect"])
def test_no_descriptors_left(use: str, spare: int, shm_directory: Path, python: Callable[..., str]) -> None:
    python(EXHAUST, f"shm://{shm_directory}", use, spare)


# ---- a directory that goes away -----------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["put", "list", "usage"])
def test_a_directory_that_was_deleted(use: str, shm_directory: Path) -> None:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        ferry.put(batch(100))
        shutil.rmtree(shm_directory)
        with pytest.raises(EngineError):
            ferry.put(batch(100)) if use == "put" else getattr(ferry, use)()


@pytest.mark.parametrize("pool", ["", "?pool=0"])
def test_a_segment_trimmed_under_a_reader_is_free_with_the_next_put(pool: str, small: Path) -> None:
    with rollferry.connect(f"shm://{small}{pool}") as ferry:
        for fill in range(10):
            ref = ferry.put(batch(5 * MB, fill))
            held = ferry.get(ref)
            ferry.remove(ref)
            assert (held["a"] == fill).all()
            del held
