"""How long bundles live: readers that are done, times that are over, producers that died."""

import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest

import rollferry
from rollferry import BundleNotFoundError, RefError, TransferRef
from rollferry.bundle import lifetime
from rollferry.bundle.manifest import Lifetime

BATCH = {"a": [1, 2, 3]}


@pytest.fixture(params=["shm", "inproc"])
def url(request: pytest.FixtureRequest, shm_directory: Any) -> str:
    return f"shm://{shm_directory}" if request.param == "shm" else f"inproc://{shm_directory.name}"


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the clocks of this process go on."""
    real, real_time = time.clock_gettime, time.time
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + seconds)
    monkeypatch.setattr(time, "time", lambda: real_time() + seconds)


def test_the_last_reader_removes_it(url: str) -> None:
    with rollferry.connect(url) as producer, rollferry.connect(url) as one, rollferry.connect(url) as two:
        ref = producer.put(BATCH, readers=2).to_json()
        assert one.remove(ref)
        assert not one.remove(ref)  # it is done already
        assert two.get(ref) == BATCH
        batch = two.get(ref)
        two.release(batch)
        assert producer.list() == []
        with pytest.raises(BundleNotFoundError):
            one.get(ref)
        assert not two.remove(ref)


def test_results_that_are_not_released_are_forgotten_on_removal(url: str) -> None:
    with rollferry.connect(url) as ferry:
        ref = ferry.put(BATCH, readers=3)
        kept = [ferry.get(ref) for _ in range(5)]
        assert len(ferry._got) == len(kept)
        ferry.remove(ref)
        assert ferry._got == {}


def test_borrowing_is_reading(url: str) -> None:
    with rollferry.connect(url) as producer, rollferry.connect(url) as reader:
        ref = producer.put(BATCH, readers=1)
        with reader.borrow(ref) as batch:
            assert batch == BATCH
            assert producer.list() == [ref.id]
        assert producer.list() == []


def test_a_reader_started_anew_is_the_same(url: str) -> None:
    with rollferry.connect(url) as producer:
        ref = producer.put(BATCH, readers=2)
        for _ in range(2):
            with rollferry.connect(url, reader="rank0") as reader:
                reader.remove(ref)
        assert producer.list() == [ref.id]
        with rollferry.connect(url, reader="rank1") as reader:
            assert reader.remove(ref)
        assert producer.list() == []


def test_a_reader_killed_over_the_removal_can_do_it_again(url: str) -> None:
    with rollferry.connect(url) as producer:
        ref = producer.put(BATCH, readers=1)
        producer._engine.note(ref.key, "done-rank0")  # and then it died
        with rollferry.connect(url, reader="rank0") as reader:
            assert not reader.remove(ref)
        assert producer.list() == []


def test_notes_that_nobody_forgot_are_swept(shm_directory: Any) -> None:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        kept, gone = ferry.put(BATCH, readers=2), ferry.put(BATCH, readers=2)
        for ref in (kept, gone):
            ferry.remove(ref)
        (shm_directory / "live" / gone.key).unlink()  # a remover that was killed halfway
        (shm_directory / "notes" / "notes.txt").write_text("mine")
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        ferry.put(BATCH)
        assert {path.name for path in (shm_directory / "notes").iterdir()} == {kept.key, "notes.txt"}
        assert ferry._engine.notes(kept.key)


def test_readers_in_processes(shm_directory: Any) -> None:
    url = f"shm://{shm_directory}"
    code = "import rollferry, sys; f = rollferry.connect(sys.argv[1]); f.get(sys.argv[2]); print(f.remove(sys.argv[2]))"
    with rollferry.connect(url) as producer:
        ref = producer.put(BATCH, readers=4).to_json()
        processes = [
            subprocess.Popen([sys.executable, "-c", code, url, ref], stdout=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        assert [process.communicate()[0].strip() for process in processes] == ["True"] * 4
        assert producer.list() == []
    assert list((shm_directory / "notes").iterdir()) == []


def test_stages_and_force(url: str) -> None:
    with rollferry.connect(url) as ferry, rollferry.connect(url) as other:
        ref = ferry.put(BATCH, readers=2)
        more = ferry.append(ref, {"b": [4, 5, 6]})
        assert more.readers == 2
        ferry.remove(more)
        assert other.get(more) == BATCH | {"b": [4, 5, 6]}
        other.remove(more)
        assert ferry.list() == []
        ref = ferry.put(BATCH, readers=5)
        assert ferry.remove(ref, force=True)
        assert ferry.list() == []


def test_a_time_that_is_over(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with rollferry.connect(url) as ferry:
        short, long, endless = ferry.put(BATCH, ttl=10), ferry.put(BATCH, ttl=1000), ferry.put(BATCH)
        assert ferry.gc() == []
        with monkeypatch.context() as patch:
            later(patch, 20)
            assert [found.key for found in ferry.gc(dry_run=True)] == [short.key]
            [found] = ferry.gc()
            assert (found.key, found.reason, found.nbytes > 0) == (short.key, "time", True)
            assert set(ferry.list()) == {long.id, endless.id}
            ferry.keep(long, 5000)
        with monkeypatch.context() as patch:
            later(patch, 2000)
            assert ferry.gc() == []
        with monkeypatch.context() as patch:
            later(patch, 6000)
            assert [found.key for found in ferry.gc()] == [long.key]
        with pytest.raises(BundleNotFoundError):
            ferry.keep(long, 10)
        assert ferry.list() == [endless.id]


def test_a_reader_that_never_comes_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with rollferry.connect(url) as ferry:
        ref = ferry.put(BATCH, readers=2)
        ferry.remove(ref)
        later(monkeypatch, lifetime.READERS_SECONDS + 1)
        assert [found.key for found in ferry.gc()] == [ref.key]


def test_the_next_put_reclaims(shm_directory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        ferry.put(BATCH, ttl=10)
        later(monkeypatch, 20)
        real = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: real() + 20)
        kept = ferry.put(BATCH)
        assert ferry.list() == [kept.id]


def test_orphans(shm_directory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"shm://{shm_directory}"
    code = "import rollferry, sys; print(rollferry.connect(sys.argv[1]).put({'a': [1]}).to_json())"
    orphan = TransferRef.from_json(
        subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=True).stdout
    )
    with rollferry.connect(url) as ferry:
        own = ferry.put(BATCH)
        assert ferry.gc() == []
        later(monkeypatch, lifetime.ORPHAN_SECONDS + 1)
        assert [(found.key, found.reason) for found in ferry.gc()] == [(orphan.key, "orphan")]
        assert ferry.list() == [own.id]


def test_clocks_that_jump(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day says nothing, as long as the machine runs; after a start it is all that there is."""
    born = lifetime.born(100.0, None)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 1e12)
        assert lifetime.expired(lifetime.state_of(born, set())) is None
        patch.setattr(time, "time", lambda: 0.0)
        assert lifetime.expired(lifetime.state_of(born, set())) is None
    rebooted = msgspec.structs.replace(born, boot="another")
    assert lifetime.state_of(rebooted, set()).owner_alive is None
    assert lifetime.expired(lifetime.state_of(rebooted, set())) is None
    old = msgspec.structs.replace(rebooted, created=born.created - 101)
    assert lifetime.expired(lifetime.state_of(old, set())) == "time"


@pytest.mark.parametrize("owner", ["", "x", "1:2", "1:2:3:4", "a:b:c", f"1:1:{1 << 70}"])
def test_owners_that_make_no_sense(owner: str) -> None:
    born = lifetime.born(None, None)
    strange = Lifetime(created=born.created, boot=born.boot, uptime=born.uptime, owner=owner)
    assert lifetime.owner_alive(strange) is None


def test_what_makes_no_sense(url: str) -> None:
    with rollferry.connect(url) as ferry:
        for options in (
            {"ttl": 0},
            {"ttl": -1},
            {"ttl": 1e10},
            {"ttl": float("nan")},
            {"readers": 0},
            {"readers": True},
        ):
            with pytest.raises(ValueError):
                ferry.put(BATCH, **options)
        with pytest.raises(ValueError, match="no name of a reader"):
            rollferry.connect(url, reader="a/b")
        assert ferry.list() == []
        handle = ferry.put(BATCH, readers=3).to_dict()
        with pytest.raises(RefError, match="changed on its way"):
            ferry.get(handle | {"readers": 2})
