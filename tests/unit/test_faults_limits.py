"""shm:// where something runs out: disk, size of files, memory of a reader; and threads that tick, and forks, during puts."""

import os
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry import EngineFullError
from rollferry.testing import assert_same

MB = 1 << 20
Python = Callable[..., str]


def batch(nbytes: int, fill: int = 1) -> dict[str, Any]:
    return {"a": np.full(nbytes, fill, np.uint8)}


# ---- disk -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of 32 MB."""
    image, root = tmp_path / "image", tmp_path / "disk"
    root.mkdir()
    with open(image, "wb") as file:
        file.truncate(32 * MB)
    for command in (["mkfs.ext4", "-q", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(root)]):
        try:
            subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system can be mounted from a file here: {error}")
    yield root
    subprocess.run(["umount", "--lazy", root], check=True)


def test_a_disk_that_is_full(disk: Path) -> None:
    (disk / "engine").mkdir(mode=0o700)
    url = f"shm://{disk}/engine?pool=0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rollferry.RollferryWarning)
        ferry, other = rollferry.connect(url), rollferry.connect(url)
    with ferry, other:
        kept = ferry.put(batch(10 * MB, 9))
        before = sorted(path.name for path in (disk / "engine").rglob("*"))
        for writer in (ferry, other, ferry):
            with pytest.raises(EngineFullError, match="is full") as caught:
                writer.put(batch(25 * MB))
            assert caught.value.needed >= 25 * MB > caught.value.free
            assert sorted(path.name for path in (disk / "engine").rglob("*")) == before
        assert_same(other.get(kept), batch(10 * MB, 9))
        for writer in (ferry, other):
            small = writer.put(batch(5 * MB, 3))
            assert_same(ferry.get(small), batch(5 * MB, 3))
            writer.remove(small)
        ferry.remove(kept)
        big = other.put(batch(20 * MB, 2))
        assert_same(ferry.get(big), batch(20 * MB, 2))
        ferry.remove(big)


TOO_LARGE = """
import os, resource, sys, warnings, numpy as np, rollferry
warnings.simplefilter("ignore", rollferry.RollferryWarning)
root = sys.argv[1]
ferry = rollferry.connect("shm://" + root, quota="100mb")
kept = ferry.put({"a": np.full(100_000, 7)})
resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))
for _ in range(3):
    try:
        ferry.put({"a": np.ones(1 << 20)})
        raise SystemExit("it was put")
    except rollferry.EngineFullError as error:
        assert error.needed > 8 << 20, error
    assert sorted(os.listdir(root + "/live")) == [kept.key]
    assert os.listdir(root + "/tmp") == [] and os.listdir(root + "/reserved") == ["default"]
assert (ferry.get(kept)["a"] == 7).all()
assert ferry.get(ferry.put({"a": np.full(100_000, 8)}))["a"][-1] == 8
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
assert ferry.get(ferry.put({"a": np.full(1 << 20, 9)}))["a"][-1] == 9
"""


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_limit_on_the_size_of_files(where: str, shm_directory: Path, tmp_path: Path, python: Python) -> None:
    python(TOO_LARGE, shm_directory if where == "memory" else tmp_path / "engine")


# ---- memory ---------------------------------------------------------------------------------------------------------

SCARCE = """
import gc, os, resource, sys, numpy as np, rollferry
from pathlib import Path
from rollferry.testing import differences

url, how = sys.argv[1], sys.argv[2]
rows = 60_000
batch = {"numbers": [i * 1_000_003 for i in range(rows)], "texts": ["text %d" % i * 3 for i in range(rows)],
         "records": [{"id": i, "x": i / 7} for i in range(rows // 4)], "dense": np.arange(1 << 20),
         "rows": [np.arange(i % 9) for i in range(rows // 4)]}
ferry = rollferry.connect(url)
ref = ferry.put(batch)
options = {"whole": {}, "rows": {"rows": list(range(0, rows // 4, 2)), "fields": ["records", "rows"]}, "lazy": {"lazy": True}}[how]
wanted = ferry.get(ref, **options)

def used():
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096

def mapped():
    return Path("/proc/self/maps").read_text().count(sys.argv[3])

before = mapped()
outcomes = []
for spare in [*range(0, 40 << 20, 2 << 20)]:
    gc.collect()
    got = None
    resource.setrlimit(resource.RLIMIT_AS, (used() + spare, resource.RLIM_INFINITY))
    try:
        got = ferry.get(ref, **options)
        outcome = "got"
    except MemoryError as error:
        outcome = "MemoryError", getattr(error, "__notes__", None)
    except rollferry.EngineError as error:
        outcome = "EngineError", str(error), getattr(error, "__notes__", None)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    outcomes.append(outcome)
    if outcome == "got":
        if how != "lazy":
            assert not differences(got, wanted)
        got = None
    else:
        assert ref.key in str(outcome), outcome
    gc.collect()
    assert mapped() == before, (outcome, mapped(), before)
kinds = {outcome[0] for outcome in outcomes}
assert "EngineError" in kinds, kinds
assert how != "whole" or "MemoryError" in kinds, kinds
assert not differences(ferry.get(ref), batch)
del wanted, got
gc.collect()
assert ferry.remove(ref)
inodes = {entry.inode() for entry in os.scandir(sys.argv[3] + "/pool")}
again = ferry.put(batch)
assert {entry.inode() for entry in os.scandir(sys.argv[3] + "/live")} == inodes  # nobody reads it any more
print(sum(outcome == "got" for outcome in outcomes), "of", len(outcomes))
"""


@pytest.mark.parametrize("how", ["whole", "rows", "lazy"])
def test_a_reader_without_memory(how: str, shm_directory: Path, python: Python) -> None:
    """A get fails as a whole, says of which bundle, and leaves nothing mapped; the next one may succeed."""
    got, total = map(int, python(SCARCE, f"shm://{shm_directory}", how, shm_directory).split(" of "))
    assert 0 < got < total


# ---- threads and forks ----------------------------------------------------------------------------------------------


def test_others_tick_during_a_large_put(ferry: rollferry.Ferry, shm_directory: Path) -> None:
    """No step of a put of 1 GB keeps the GIL for long; the longest pause is compared to all of it."""
    status = os.statvfs(shm_directory)
    if status.f_bavail * status.f_frsize < 2 << 30:
        pytest.skip("there is no room for it")
    large = {"dense": np.ones(512 * MB, np.uint8), "rows": [np.ones(MB, np.uint8) for _ in range(512)]}
    pauses: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not stop.is_set():
            time.sleep(0.001)
            now = time.monotonic()
            pauses.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        start = time.monotonic()
        ref = ferry.put(large)
        took = time.monotonic() - start
        ticks, longest = len(pauses), max(pauses)
        got = ferry.get(ref)
    finally:
        stop.set()
        thread.join()
    assert ticks > 20
    assert longest < took / 2
    assert (got["dense"][::4096] == 1).all()
    assert len(got["rows"]) == 512
    ferry.remove(ref)


def test_forks_during_puts_under_a_quota(shm_directory: Path) -> None:
    """Children of a process that has bytes set aside, and places in the queue, neither keep them nor lose them for it."""
    url = f"shm://{shm_directory}"
    errors: list[BaseException] = []
    stop = threading.Event()

    def work(ferry: rollferry.Ferry, fill: int) -> None:
        try:
            while not stop.is_set():
                ref = ferry.put(batch(MB, fill))
                assert (ferry.get(ref)["a"] == fill).all()
                assert ferry.remove(ref)
        except BaseException as error:
            errors.append(error)

    with rollferry.connect(url, quota=int(2.5 * MB), full="block") as ferry:
        threads = [threading.Thread(target=work, args=(ferry, fill)) for fill in range(4)]
        for thread in threads:
            thread.start()
        children = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks and threads
            for number in range(12):
                time.sleep(0.02)
                pid = os.fork()
                if pid == 0:
                    status = 1
                    try:
                        for fill in range(3):
                            ref = ferry.put(batch(MB, 100 + fill))
                            assert (ferry.get(ref)["a"] == 100 + fill).all()
                            assert ferry.remove(ref)
                        status = 0
                    finally:
                        os._exit(status)
                children.append(pid)
        statuses = [os.waitpid(pid, 0)[1] for pid in children]
        stop.set()
        for thread in threads:
            thread.join()
        assert (errors, statuses) == ([], [0] * 12)
        whole = ferry.put(batch(2 * MB))
        assert ferry.list() == [whole.id]
        ferry.remove(whole)
    assert os.listdir(shm_directory / "tmp") == []
    assert os.listdir(shm_directory / "reserved") == ["default"]
