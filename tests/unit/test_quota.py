"""Quotas of namespaces, and what a put does where there is no room."""

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry import EngineFullError
from rollferry.engines.base import Engine

KB = 1 << 10
SIZE = 100 * KB


@pytest.fixture(params=["shm", "inproc"])
def url(request: pytest.FixtureRequest, shm_directory: Any) -> str:
    return f"shm://{shm_directory}" if request.param == "shm" else f"inproc://{shm_directory.name}"


def batch(fill: int = 1, nbytes: int = SIZE) -> dict[str, Any]:
    return {"a": np.full(nbytes, fill, np.uint8)}


def test_a_full_quota_is_an_error(url: str) -> None:
    with rollferry.connect(url, quota=3 * SIZE) as ferry, rollferry.connect(url, namespace="other") as other:
        refs = [ferry.put(batch()) for _ in range(2)]
        other.put(batch(nbytes=10 * SIZE))  # has none
        with pytest.raises(EngineFullError, match="quota of 307,200 bytes, which leaves no room for 102,") as caught:
            ferry.put(batch())
        assert caught.value.needed > SIZE
        assert len(ferry.list()) == 2
        ferry.remove(refs.pop())
        assert (ferry.get(ferry.put(batch(7)))["a"] == 7).all()
        with pytest.raises(EngineFullError):
            ferry.put(batch(nbytes=4 * SIZE))


def test_blocking_puts_go_on_in_their_order(url: str) -> None:
    order: list[int] = []
    with rollferry.connect(url, quota=2.5 * SIZE, full="block") as ferry:
        refs = [ferry.put(batch()) for _ in range(2)]
        threads = []
        for number in range(3):
            thread = threading.Thread(target=lambda n=number: order.append((ferry.put(batch(n)), n)[1]))
            thread.start()
            threads.append(thread)
            time.sleep(0.05)
        assert order == []
        for count in range(3):
            time.sleep(0.05)
            assert len(order) == count
            ferry.remove(refs.pop(0) if refs else ferry.list()[0])
            threads[count].join(10)
        assert order == [0, 1, 2]


def test_patience_ends(url: str) -> None:
    with rollferry.connect(url, quota=1.5 * SIZE, full="block", patience=0.1) as ferry:
        kept = ferry.put(batch())
        with pytest.raises(EngineFullError) as caught:
            ferry.put(batch())
        assert "nobody made room" in caught.value.__notes__[0]
        start = time.monotonic()
        with pytest.raises(EngineFullError):
            ferry.put(batch(nbytes=2 * SIZE))  # never fits, so nobody waits
        assert time.monotonic() - start < 0.1
        assert ferry.list() == [kept.id]
        ferry.remove(kept)
        ferry.put(batch())


def test_evicting_the_oldest(url: str) -> None:
    with rollferry.connect(url, quota=2.5 * SIZE, full="evict-oldest") as ferry:
        refs = [ferry.put(batch(n)) for n in range(4)]
        assert set(ferry.list()) == {ref.id for ref in refs[2:]}
        assert (ferry.get(refs[3])["a"] == 3).all()


def test_files_of_others_take_none_of_it(shm_directory: Any) -> None:
    with rollferry.connect(f"shm://{shm_directory}", quota=2.5 * SIZE) as ferry:
        for name in ("default.txt", "notes", "other." + "0" * 32):
            (shm_directory / "live" / name).write_bytes(bytes(SIZE))
        refs = [ferry.put(batch()) for _ in range(2)]
        with pytest.raises(EngineFullError):
            ferry.put(batch())
        ferry.remove(refs[0])
        ferry.put(batch())


def test_evicting_leaves_no_stage_without_its_base(url: str) -> None:
    with rollferry.connect(url, quota=3.5 * SIZE, full="evict-oldest") as ferry:
        base = ferry.put(batch(1))
        stage = ferry.append(base, {"b": np.zeros(SIZE, np.uint8)})
        kept = ferry.put(batch(2))
        ferry.put(batch(3))
        assert kept.id not in ferry.list() or stage.id not in ferry.list()
        if stage.id in ferry.list():
            assert set(ferry.get(stage)) == {"a", "b"}


def test_the_quota_holds_over_processes(shm_directory: Any) -> None:
    url = f"shm://{shm_directory}"
    code = (
        "import rollferry, sys, numpy as np\n"
        "f = rollferry.connect(sys.argv[1], quota=450_000)\n"
        "done = 0\n"
        "for _ in range(50):\n"
        "    try:\n"
        "        f.put({'a': np.zeros(100_000, np.uint8)}); done += 1\n"
        "    except rollferry.EngineFullError: pass\n"
        "print(done)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert sum(int(process.communicate()[0]) for process in processes) == 4
    with rollferry.connect(url) as ferry:
        assert len(ferry.list()) == 4


def test_what_a_killed_process_had_set_aside_is_free(shm_directory: Any) -> None:
    url = f"shm://{shm_directory}"
    code = (
        "import rollferry, sys, os\n"
        "engine = rollferry.connect(sys.argv[1])._engine\n"
        "assert engine.reserve('default', 'default.' + '1' * 32, 200_000, 250_000, queue=True)\n"
        "assert not engine.reserve('default', 'default.' + '2' * 32, 200_000, 250_000, queue=True)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()"
    )
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([sys.executable, "-c", code, url], **pipes) as process,
        rollferry.connect(url, quota=250_000) as ferry,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(EngineFullError):
            ferry.put(batch())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        ferry.put(batch())
    assert [path.name for path in (shm_directory / "reserved").iterdir()] == ["default"]


def test_who_waits_reclaims(url: str) -> None:
    """Where all producers wait, nobody else comes by."""
    with rollferry.connect(url, quota=1.5 * SIZE, full="block", patience=60) as ferry:
        lost = ferry.put(batch(), ttl=1.2)
        start = time.monotonic()
        ref = ferry.put(batch(2))
        assert time.monotonic() - start < 50
        assert ferry.list() == [ref.id] != [lost.id]


@pytest.mark.parametrize("full", ["raise", "evict-oldest"])
def test_what_is_over_goes_before_anybody_suffers(url: str, full: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with rollferry.connect(url, quota=2.5 * SIZE, full=full) as ferry:
        kept = ferry.put(batch(1), ttl=1000)
        ferry.put(batch(2), ttl=10)
        real, real_boot = time.monotonic, time.clock_gettime
        monkeypatch.setattr(time, "monotonic", lambda: real() + 4)  # not yet by the way of a put
        monkeypatch.setattr(time, "clock_gettime", lambda clock: real_boot(clock) + 20)
        new = ferry.put(batch(3))
        assert set(ferry.list()) == {kept.id, new.id}


def test_time_begins_once_there_is_room(url: str) -> None:
    with rollferry.connect(url, quota=1.5 * SIZE, full="block") as ferry:
        first = ferry.put(batch())
        threading.Timer(1.0, ferry.remove, [first]).start()
        ref = ferry.put(batch(2), ttl=0.9)
        assert ferry.gc() == []
        assert (ferry.get(ref)["a"] == 2).all()


def test_a_bundle_being_published_counts_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with rollferry.connect(url, quota=2.5 * SIZE) as ferry:
        engine = ferry._engine
        unreserve = type(engine).unreserve
        refs = []

        def another_first(self: Any, key: str) -> None:
            if not refs:
                refs.append(key)
                refs.append(ferry.put(batch()))
            unreserve(self, key)

        monkeypatch.setattr(type(engine), "unreserve", another_first)
        ferry.put(batch())
        assert len(ferry.list()) == 2


def test_a_full_engine_blocks_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with rollferry.connect(url, full="block") as ferry:
        engine: Engine = ferry._engine
        begin, tries = type(engine).begin, []

        def full_at_first(self: Any, *arguments: Any, **options: Any) -> Any:
            tries.append(1)
            if len(tries) < 3:
                raise EngineFullError("full", needed=1, free=0)
            return begin(self, *arguments, **options)

        monkeypatch.setattr(type(engine), "begin", full_at_first)
        assert (ferry.get(ferry.put(batch(5)))["a"] == 5).all()
        assert len(tries) == 3


def test_what_makes_no_sense(url: str) -> None:
    for options in ({"quota": 0}, {"quota": "lots"}, {"full": "drop"}, {"patience": -1}):
        with pytest.raises((ValueError, rollferry.EngineError)):
            rollferry.connect(url, **options)
    assert rollferry.connect(url, quota="1mb")._terms.space.quota == 1 << 20
