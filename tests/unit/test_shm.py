"""shm://: who may use its directory, reuse of segments, dead processes, warnings and URL options."""

import os
import signal
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry import BundleNotFoundError, EngineError, RollferryWarning

Files = Callable[[str], dict[str, int]]
Start = Callable[..., subprocess.Popen[str]]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


def batch(fill: int = 1, nbytes: int = 1 << 20) -> dict[str, Any]:
    return {"a": np.full(nbytes, fill, np.uint8)}


# ---- the directory ------------------------------------------------------------------------------------------------


def test_only_the_owner_can_look_in(shm_directory: Path) -> None:
    root = shm_directory / "new" / "engine"
    before = os.umask(0)
    try:
        with rollferry.connect(f"shm://{root}") as ferry:
            refs = [ferry.put(batch()) for _ in range(2)]
            ferry.remove(refs[0])
    finally:
        os.umask(before)
    found = [path for path in shm_directory.rglob("*") if path.name != "new"]
    assert sum(path.is_file() for path in found if path.parent.name != "peaks") == 2
    for path in found:
        assert path.stat().st_mode & 0o7777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("folder", ["live", "pool", "tmp", "notes", "reserved", "guarantees", "peaks"])
def test_folders_that_others_may_use_are_refused(folder: str, shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    rollferry.connect(url).close()
    path = shm_directory / folder
    for mode in (0o755, 0o770, 0o701, 0o777):
        path.chmod(mode)
        with pytest.raises(EngineError, match="open to, other users"):
            rollferry.connect(url)
    path.rmdir()
    for make in (
        lambda: path.write_text(""),
        lambda: path.symlink_to(shm_directory),
        lambda: path.symlink_to("nowhere"),
    ):
        make()
        with pytest.raises(EngineError, match="not a directory"):
            rollferry.connect(url)
        path.unlink()


@needs_root
@pytest.mark.parametrize("folder", ["live", "pool", "tmp", "notes", "reserved", "guarantees", "peaks"])
def test_folders_of_others_are_refused(folder: str, shm_directory: Path) -> None:
    rollferry.connect(f"shm://{shm_directory}").close()
    os.chown(shm_directory / folder, 12345, 12345)
    with pytest.raises(EngineError, match="belongs to"):
        rollferry.connect(f"shm://{shm_directory}")


@pytest.mark.parametrize("bad", ["open", pytest.param("foreign", marks=needs_root), "link", "file"])
def test_the_default_directory_may_be_squatted(bad: str, shm_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollferry.engines.shm.directory.DEFAULT_ROOT", str(shm_directory))
    root = shm_directory / f"rollferry-{os.geteuid()}"
    if bad == "link":
        root.symlink_to(shm_directory)
    elif bad == "file":
        root.write_text("")
    else:
        root.mkdir(mode=0o700)
        os.chown(root, 12345, 12345) if bad == "foreign" else root.chmod(0o777)
    with pytest.raises(EngineError, match=root.name):
        rollferry.connect("shm://")


def test_a_named_directory_that_others_may_change_is_refused(shm_directory: Path) -> None:
    shm_directory.chmod(0o777)  # others may rename live/ away and put their own in its place
    with pytest.raises(EngineError):
        rollferry.connect(f"shm://{shm_directory}")


def test_a_link_in_place_of_a_segment_is_not_followed(ferry: rollferry.Ferry, shm_directory: Path) -> None:
    ref = ferry.put(batch())
    path = shm_directory / "live" / ref.key
    path.rename(shm_directory / "elsewhere")
    path.symlink_to(shm_directory / "elsewhere")
    with pytest.raises(EngineError):
        ferry.get(ref)


def test_a_directory_on_disk_works_with_one_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True
    ).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"the temporary directory is a {kind}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with rollferry.connect(f"shm://{tmp_path}/engine") as ferry:
            for fill in range(3):
                ref = ferry.put(batch(fill))
                assert ferry.get(ref)["a"][-1] == fill
                ferry.remove(ref)
            assert ferry.usage().pooled_nbytes >= 1 << 20
    assert [warning.category for warning in caught] == [RollferryWarning]
    assert str(tmp_path) in str(caught[0].message)
    assert caught[0].filename == __file__
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("url", "about"),
    [
        ("shm:///x?colour=red", "no option 'colour'"),
        ("shm://?pool=much", "is no size"),
        ("shm://?pool=-1", "is no size"),
        ("shm:///proc/nowhere", "can't be used"),
        ("shm:///dev/null", "can't be used"),
        ("shmem:///x", "no engine"),
    ],
)
def test_urls_that_cannot_be_used(url: str, about: str) -> None:
    with pytest.raises(EngineError, match=about):
        rollferry.connect(url)


def test_foreign_files_are_left_alone(ferry: rollferry.Ferry, shm_directory: Path) -> None:
    for folder in ("live", "pool", "tmp"):
        (shm_directory / folder / "notes.txt").write_text("mine")
    for _ in range(3):
        ferry.remove(ferry.put(batch()))
    assert (ferry.list(), ferry.usage().bundles) == ([], 0)
    for folder in ("live", "pool", "tmp"):
        assert (shm_directory / folder / "notes.txt").read_text() == "mine"


# ---- reuse --------------------------------------------------------------------------------------------------------


def test_a_segment_is_reused(ferry: rollferry.Ferry, stored: Files) -> None:
    first = ferry.put(batch())
    inodes = set(stored("live").values())
    for fill in range(5):
        ferry.remove(first)
        first = ferry.put(batch(fill, (1 << 20) - fill * 1000))
        assert set(stored("live").values()) == inodes
        assert (stored("pool"), stored("tmp")) == ({}, {})
        assert ferry.get(first)["a"].tolist()[-1] == fill


def test_a_segment_far_too_large_or_too_small_is_not_reused(ferry: rollferry.Ferry, stored: Files) -> None:
    ferry.remove(ferry.put(batch(1, 8 << 20)))
    for nbytes in (1000, 20 << 20):
        ferry.put(batch(1, nbytes))
        assert len(stored("pool")) == 1


def test_a_lease_keeps_its_segment_from_reuse(ferry: rollferry.Ferry, stored: Files) -> None:
    ref = ferry.put(batch(7))
    held = ferry.get(ref)["a"][10:]
    (inode,) = stored("live").values()
    ferry.remove(ref)
    for fill in range(3):
        other = ferry.put(batch(fill))
        assert inode not in stored("live").values()
        ferry.remove(other)
    assert (held == 7).all()
    assert len(stored("pool")) == 2
    del held
    ferry.put(batch())
    ferry.put(batch())
    assert inode in stored("live").values()


@pytest.mark.parametrize(("limit", "kept"), [("0", 0), ("2500k", 2), ("1gb", 5)])
def test_the_pool_has_a_limit(limit: str, kept: int, shm_directory: Path, stored: Files) -> None:
    with rollferry.connect(f"shm://{shm_directory}?pool={limit}") as ferry:
        refs = [ferry.put(batch()) for _ in range(5)]
        inodes = set(stored("live").values())
        for ref in refs:
            ferry.remove(ref)
        assert len(stored("pool")) == kept
        assert inodes.issuperset(stored("pool").values())
        assert ferry.usage().pooled_nbytes == sum(path.stat().st_size for path in (shm_directory / "pool").iterdir())
        assert (ferry.usage().bundles, ferry.usage().live_nbytes) == (0, 0)


def test_usage_counts_whole_segments(ferry: rollferry.Ferry, shm_directory: Path) -> None:
    refs = [ferry.put(batch(1, nbytes)) for nbytes in (10, 5000, 1 << 20)]
    sizes = [(shm_directory / "live" / ref.key).stat().st_size for ref in refs]
    usage = ferry.usage()
    assert (usage.bundles, usage.live_nbytes, usage.pooled_nbytes) == (3, sum(sizes), 0)
    assert usage.namespaces["default"].live_nbytes == sum(sizes)
    assert all(ref.nbytes < size < 1.1 * ref.nbytes + 8192 for ref, size in zip(refs, sizes, strict=True))


# ---- other processes, dead and alive ------------------------------------------------------------------------------

WRITER = """
import sys, time, numpy as np, rollferry
from rollferry.engines.shm.writer import ShmWriter
def stuck(self, manifest):
    print("ready", flush=True)
    time.sleep(600)
ShmWriter.publish = stuck
rollferry.connect(sys.argv[1]).put({"a": np.full(1 << 20, 255, np.uint8)})
"""
READER = """
import sys, rollferry
ferry = rollferry.connect(sys.argv[1])
held = ferry.get(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
assert (held["a"] == 7).all()
"""


@pytest.mark.parametrize("recycled", [False, True])
def test_a_writer_killed_before_publishing(
    recycled: bool, ferry: rollferry.Ferry, shm_directory: Path, stored: Files, start: Start
) -> None:
    if recycled:
        ferry.remove(ferry.put(batch()))
    before = stored("pool")
    child = start(WRITER, f"shm://{shm_directory}")
    assert (list(stored("tmp").values()), stored("pool")) == (list(before.values()), {})
    ferry.remove(ferry.put({"small": 1}))  # a living writer's segment is not swept
    assert list(stored("tmp").values()) == list(before.values())
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert ferry.list() == []
    ref = ferry.put(batch(3))
    assert stored("tmp") == {}
    assert not recycled or set(stored("live").values()) == set(before.values())
    assert (ferry.get(ref)["a"] == 3).all()


def test_the_lease_of_a_killed_reader_ends(
    ferry: rollferry.Ferry, shm_directory: Path, stored: Files, start: Start
) -> None:
    ref = ferry.put(batch(7))
    child = start(READER, f"shm://{shm_directory}", ref.to_json())
    (inode,) = stored("live").values()
    ferry.remove(ref)
    ferry.put(batch())
    assert inode not in stored("live").values()
    child.send_signal(signal.SIGKILL)
    child.wait()
    ferry.put(batch())
    assert inode in stored("live").values()


def test_a_reader_elsewhere_keeps_its_data(ferry: rollferry.Ferry, shm_directory: Path, start: Start) -> None:
    ref = ferry.put(batch(7))
    child = start(READER, f"shm://{shm_directory}", ref.to_json())
    ferry.remove(ref)
    for fill in range(5):
        ferry.remove(ferry.put(batch(fill)))
    child.communicate()
    assert child.returncode == 0


REMOVER = "import sys, rollferry; print(rollferry.connect(sys.argv[1]).remove(sys.argv[2]))"


def test_another_process_removes(ferry: rollferry.Ferry, shm_directory: Path, python: Any) -> None:
    ref = ferry.put(batch())
    answers = [python(REMOVER, f"shm://{shm_directory}", ref.to_json()) for _ in range(2)]
    assert answers == ["True\n", "False\n"]
    assert not ferry.remove(ref)
    with pytest.raises(BundleNotFoundError):
        ferry.get(ref)
