"""shm://: a process is killed before every call that a put, append, get, remove or gc makes; the others go on."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import rollferry
from rollferry import TransferRef
from rollferry.bundle.stages import open_manifest
from rollferry.testing import assert_same

KB = 1 << 10
BATCH = {"a": np.arange(100 * KB, dtype=np.uint8), "rows": [np.arange(3), np.arange(40)], "texts": ["a", "b"]}
QUOTA = 150 * KB  # one batch, not two
PARTS = ("/rollferry/engines/shm/", "/rollferry/bundle/")


def killed_at(step: int, work: Callable[[], Any]) -> bool:
    """Do something in a child, which is killed before the given one of its calls of C functions; False if it came to its end."""
    pid = os.fork()
    if pid == 0:
        left = step

        def count(frame: Any, event: str, _: Any) -> None:
            nonlocal left
            if event == "c_call" and any(part in frame.f_code.co_filename for part in PARTS):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.setprofile(count)
            work()
            sys.setprofile(None)
            os._exit(0)
        except BaseException:
            sys.setprofile(None)
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status != 0


def ref_of(ferry: rollferry.Ferry, name: str, readers: int | None = None) -> TransferRef:
    """The reference of a bundle whose producer died before it gave it to anybody."""
    key = f"default.{name}"
    manifest, digest = open_manifest(ferry._engine, key)
    return TransferRef(
        id=name,
        engine="shm",
        namespace="default",
        nbytes=manifest.payload_nbytes,
        rows=manifest.rows,
        digest=digest,
        readers=readers,
    )


def names(root: Path, folder: str) -> list[str]:
    return sorted(os.listdir(root / folder))


def nbytes(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for folder in ("live", "pool", "tmp") for path in (root / folder).iterdir())


def check_base_line(root: Path, most_nbytes: int) -> None:
    """A newcomer has the whole quota, and finds or leaves nothing of those who died."""
    with rollferry.connect(f"shm://{root}", quota=QUOTA) as ferry:
        ref = ferry.put(BATCH, ttl=60)
        assert_same(ferry.get(ref), BATCH)
        assert ferry.remove(ref)
        assert [names(root, folder) for folder in ("live", "tmp", "notes", "reserved")] == [[], [], [], ["default"]]
    assert nbytes(root) <= most_nbytes


@pytest.mark.parametrize("recycled", [False, True])
def test_a_producer_killed_at_every_step_of_a_put(recycled: bool, shm_directory: Path) -> None:
    url = f"shm://{shm_directory}?pool=200k"

    def put() -> None:
        with rollferry.connect(url, quota=QUOTA, full="block", patience=20) as ferry:
            ferry.put(BATCH, ttl=60)

    with rollferry.connect(url) as ferry:
        kept = ferry.put({"a": [1, 2, 3]})
    published = 0
    step = 0
    while True:
        if recycled != bool(names(shm_directory, "pool")):
            with rollferry.connect(url if recycled else f"shm://{shm_directory}?pool=0") as ferry:
                ferry.remove(ferry.put(BATCH))
        killed = killed_at(step, put)
        step += 1
        with rollferry.connect(url) as ferry:
            assert_same(ferry.get(kept), {"a": [1, 2, 3]})
            for name in set(ferry.list()) - {kept.id}:  # all or nothing
                published += 1
                ref = ref_of(ferry, name)
                assert_same(ferry.get(ref), BATCH)
                assert ferry.remove(ref)
            other = ferry.put({"a": [4]})
            ferry.remove(other)
        if not killed:
            break
        (shm_directory / "live" / kept.key).rename(shm_directory / "aside")
        check_base_line(shm_directory, 300 * KB)
        (shm_directory / "aside").rename(shm_directory / "live" / kept.key)
    assert 30 < step < 1000
    assert 1 < published < step - 1


def test_a_consumer_killed_at_every_step_of_a_get(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}?pool=200k"
    step = 0
    killed = True
    while killed:
        with rollferry.connect(url, quota=QUOTA) as ferry:
            ref = ferry.put(BATCH, readers=1)

            def get() -> None:
                with rollferry.connect(url, reader="rank0") as reader:
                    reader.get(ref, rows=[0], fields=["rows", "texts"])
                    reader.get(ref)

            killed = killed_at(step, get)
            step += 1
            with rollferry.connect(url, reader="rank0") as again:
                assert_same(again.get(ref), BATCH)
                assert again.remove(ref)
        check_base_line(shm_directory, 300 * KB)
    assert 30 < step < 1000


@pytest.mark.parametrize("readers", [None, 1, 2])
def test_a_consumer_killed_at_every_step_of_a_remove(readers: int | None, shm_directory: Path) -> None:
    url = f"shm://{shm_directory}?pool=200k"
    step = 0
    killed = True
    while killed:
        with rollferry.connect(url, quota=QUOTA) as ferry, rollferry.connect(url, reader="rank1") as other:
            ref = ferry.put(BATCH, readers=readers)
            if readers == 2:
                assert other.remove(ref)

            def remove() -> None:
                with rollferry.connect(url, reader="rank0") as reader:
                    reader.remove(ref)

            killed = killed_at(step, remove)
            step += 1
            if ferry.list():
                assert_same(other.get(ref), BATCH)
                with rollferry.connect(url, reader="rank0") as again:
                    again.remove(ref)
            assert ferry.list() == []
        check_base_line(shm_directory, 300 * KB)
    assert 3 < step < 1000


def test_a_producer_killed_at_every_step_of_an_append(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}?pool=200k"
    more = {"more": ["c", "d"]}
    with rollferry.connect(url) as ferry:
        base = ferry.put(BATCH)

    def append() -> None:
        with rollferry.connect(url) as ferry:
            ferry.append(base, more)

    published = 0
    step = 0
    killed = True
    while killed:
        killed = killed_at(step, append)
        step += 1
        with rollferry.connect(url) as ferry:
            ferry.gc()
            assert_same(ferry.get(base), BATCH)
            for name in set(ferry.list()) - {base.id}:  # all or nothing
                published += 1
                stage = ref_of(ferry, name)
                assert_same(ferry.get(msgspec.structs.replace(stage, stages=2)), BATCH | more)
                assert ferry.remove(stage)
            assert ferry.list() == [base.id]
        (shm_directory / "live" / base.key).rename(shm_directory / "aside")
        check_base_line(shm_directory, 300 * KB)
        (shm_directory / "aside").rename(shm_directory / "live" / base.key)
    assert 30 < step < 1000
    assert 1 < published < step - 1


def test_a_process_killed_at_every_step_of_a_gc(shm_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.test_lifetime import later

    url = f"shm://{shm_directory}?pool=200k"

    def collect() -> None:
        with rollferry.connect(url) as ferry:
            ferry.gc()

    with rollferry.connect(url) as ferry:
        kept = ferry.put({"a": [1, 2, 3]})
    step = 0
    killed = True
    while killed:
        with rollferry.connect(url) as ferry, monkeypatch.context() as patch:
            over = ferry.put(BATCH, ttl=10)
            later(patch, 20)
            killed = killed_at(step, collect)
            step += 1
            assert_same(ferry.get(kept), {"a": [1, 2, 3]})
            if over.id in ferry.list():  # all or nothing
                assert_same(ferry.get(over), BATCH)
            ferry.gc()
            assert ferry.list() == [kept.id]
        (shm_directory / "live" / kept.key).rename(shm_directory / "aside")
        check_base_line(shm_directory, 300 * KB)
        (shm_directory / "aside").rename(shm_directory / "live" / kept.key)
    assert 10 < step < 1000


def test_two_jobs_with_one_namespace(shm_directory: Path) -> None:
    """They share its quota and its queue; one that is killed while it waits, and had bytes, keeps nobody from going on."""
    url = f"shm://{shm_directory}"

    def wait() -> None:
        with rollferry.connect(url, quota=QUOTA, full="block", patience=100) as ferry:
            ferry.put(BATCH)

    with rollferry.connect(url, quota=QUOTA) as one, rollferry.connect(url, quota=QUOTA, full="block") as two:
        first = one.put(BATCH)
        pid = os.fork()
        if pid == 0:
            wait()
            os._exit(0)
        while len(names(shm_directory, "reserved")) < 2:
            os.sched_yield()
        with pytest.raises(rollferry.EngineFullError, match="'default' has a quota"):
            one.put({"a": [1]})  # it would have room, but came later
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        small = two.put({"a": [1]})
        two.remove(first)
        second = two.put(BATCH)
        assert_same(one.get(second), BATCH)
        assert set(one.list()) == {small.id, second.id}
        for ref in (small, second):
            one.remove(ref)
    check_base_line(shm_directory, 300 * KB)
