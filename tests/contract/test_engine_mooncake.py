"""mooncake:// keeps the contract of engines against a real master, with real clients."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rollferry
from rollferry.engines.mooncake import client as client_module
from rollferry.engines.mooncake.frame import chunk_key, root_key
from rollferry.engines.registry import open_engine
from rollferry.errors import BundleError, BundleNotFoundError, EngineError, EngineFullError
from rollferry.testing.contracts import EngineContract
from rollferry.testing.equality import assert_same
from tests.contract.mooncake_master import Master, child, free_port
from tests.roundtrip.cases import CASES


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with Master() as master:
        yield master


def emptied(url: str) -> Iterator[str]:
    """The URL of an engine that is empty before and after."""
    engine = open_engine(url)
    assert engine.usage().live_nbytes == 0, "an earlier test left something"
    yield url
    for key in engine.list():
        engine.remove(key)
    engine.close()


@pytest.fixture(scope="module", autouse=True)
def _kept(master: Master) -> Iterator[None]:
    """Clients that tests share; each takes a second to close."""
    engines = [open_engine(master.url(chunk=chunk)) for chunk in ("64mb", "4096")]
    yield
    assert engines
    for client in list(client_module.CLIENTS.values()):  # some tests of the contract leave engines open
        client.users = 1
        client.close()


class TestMooncake(EngineContract):
    reserves = guarantees = False  # quotas are the master's, by tenant

    @pytest.fixture
    def url(self, master: Master) -> Iterator[str]:
        yield from emptied(master.url(chunk="64mb"))


class TestMooncakeSmallChunks(EngineContract):
    reserves = guarantees = False  # likewise
    opened_stays = False  # chunks are read when they are asked for, and a removal is forced

    @pytest.fixture
    def url(self, master: Master) -> Iterator[str]:
        yield from emptied(master.url(chunk="4096"))


@pytest.fixture
def url(master: Master) -> Iterator[str]:
    yield from emptied(master.url(chunk="4096"))


def batch_of(n: int = 3000) -> dict:
    return {"rows": [np.arange(i % 50, dtype=np.int32) for i in range(n)], "texts": [str(i) for i in range(n)]}


PUT = """
import sys, rollferry
from tests.contract.test_engine_mooncake import batch_of
ferry = rollferry.connect(sys.argv[1])
print(ferry.put(batch_of(), metadata={"step": 1}).to_json(), flush=True)
sys.stdin.read()
"""
GET = """
import sys, rollferry
from rollferry.testing.equality import assert_same
from tests.contract.test_engine_mooncake import batch_of
with rollferry.connect(sys.argv[1]) as ferry:
    assert_same(ferry.get(sys.argv[2]), batch_of())
    print(ferry.remove(sys.argv[2]), ferry.remove(sys.argv[2]))
"""


@pytest.mark.parametrize("chunk", ["4096", "64mb"])
def test_two_processes(master: Master, chunk: str) -> None:
    with rollferry.connect(master.url(chunk=chunk)) as ferry:
        ref = ferry.put(batch_of())
        done = child(GET, master.url(segment=0, buffer="1mb"), ref.to_json())
        assert (done.returncode, done.stdout.split()) == (0, ["True", "False"]), done.stderr[-2000:]
        with pytest.raises(BundleNotFoundError):
            ferry.get(ref)


def test_all_round_trip_cases(master: Master) -> None:
    batch = {name: list(make().items()) for name, make in CASES.items()}
    with rollferry.connect(master.url(chunk="65536")) as ferry:
        ref = ferry.put(batch)
        assert_same(ferry.get(ref), batch)
        assert ferry.remove(ref)
        assert ferry.usage().bundles == 0


def test_full_store() -> None:
    with Master() as small, rollferry.connect(small.url(segment="16mb", chunk="1mb")) as ferry:
        kept = ferry.put({"x": np.arange(500_000)})
        with pytest.raises(EngineFullError) as caught:
            ferry.put({"x": np.zeros(4_000_000)})
        assert caught.value.needed >= 32_000_000
        assert 0 < caught.value.free <= 16 << 20
        assert ferry.list() == [kept.id]
        assert ferry.usage().live_nbytes < 5_000_000
        second = ferry.put({"x": np.arange(1_000_000)})
        for _ in range(3):
            with pytest.raises(EngineFullError):
                ferry.put({"x": np.zeros(700_000)})
        assert_same(ferry.get(kept), {"x": np.arange(500_000)})  # never evicted
        assert_same(ferry.get(second), {"x": np.arange(1_000_000)})
        assert ferry.remove(second)
        ferry.put({"x": np.zeros(700_000)})


def test_remove_is_idempotent_and_leaves_nothing(url: str) -> None:
    with rollferry.connect(url) as ferry:
        ref = ferry.put(batch_of())
        held = ferry.get(ref)
        assert [ferry.remove(ref), ferry.remove(ref)] == [True, False]
        assert ferry.usage().live_nbytes == 0
        assert_same(held, batch_of())


def test_missing_chunk(url: str) -> None:
    with rollferry.connect(url) as ferry:
        ref = ferry.put(batch_of())
        ferry._engine._client.discard([chunk_key(ref.key, 2)])
        with pytest.raises(BundleError, match=rf"{ref.key}: chunk 2 of \d+ is gone"):
            ferry.get(ref)
        assert ferry.remove(ref)
        assert ferry.usage().live_nbytes == 0


@pytest.mark.parametrize("which", ["payload", "header", "manifest", "short"])
@pytest.mark.parametrize("chunk", ["4096", "64mb"])
def test_corrupt_object(master: Master, which: str, chunk: str) -> None:
    with rollferry.connect(master.url(chunk=chunk)) as ferry:
        ref = ferry.put(batch_of())
        client = ferry._engine._client
        key = chunk_key(ref.key, 1) if chunk == "4096" and which in ("payload", "short") else root_key(ref.key)
        data = bytearray(client.store.get(key))
        place = {"payload": 100, "header": 17, "manifest": len(data) - 20, "short": 0}[which]
        data[place] ^= 1
        client.discard([key])
        assert client.store.put(key, bytes(data[:-1] if which == "short" else data)) == 0
        with pytest.raises(BundleError, match=ref.key) as caught:
            ferry.get(ref)
        assert not isinstance(caught.value, BundleNotFoundError)
        assert ferry.remove(ref)


def test_foreign_object(url: str) -> None:
    with rollferry.connect(url) as ferry:
        ref = ferry.put({"x": 1})
        client = ferry._engine._client
        client.discard([root_key(ref.key)])
        client.store.put(root_key(ref.key), b"x" * 500)
        with pytest.raises(BundleError, match="no bundle, or one of another version"):
            ferry.get(ref)


def test_existing_object_is_never_taken_as_ours(url: str) -> None:
    engine = open_engine(url)
    for nbytes in (10, 10_000):
        for n in range(2):
            if n:
                with pytest.raises(EngineError, match="exists already"):
                    engine.begin("default.same", nbytes, 1)
            else:
                writer = engine.begin("default.same", nbytes, 1)
                list(writer.chunks)
                writer.publish(b"1")
        assert engine.open("default.same").manifest == b"1"
        assert engine.remove("default.same")
    engine.close()


def test_results_held_for_long_starve_nobody(master: Master) -> None:
    with rollferry.connect(master.url(buffer="1mb", segment="64mb")) as ferry:
        batches = [{"x": np.full(200_000, i)} for i in range(12)]
        held = []
        for batch in batches:
            ref = ferry.put(batch)
            held.append(ferry.get(ref))
            ferry.remove(ref)
        for result, batch in zip(held, batches, strict=True):
            assert_same(result, batch)
        pool = ferry._engine._client.pool
        assert pool._registered < 4 << 20
        del held, result
        assert pool.free_nbytes <= 1 << 20


def test_close_waits_for_work() -> None:
    with Master() as own:
        close_at_work(rollferry.connect(own.url(segment="128mb")))


def close_at_work(ferry: rollferry.Ferry) -> None:
    client = ferry._engine._client
    thread = threading.Thread(target=lambda: [ferry.put(batch_of()) for _ in range(1000)])
    errors = []
    threading.excepthook, hook = errors.append, threading.excepthook
    try:
        thread.start()
        time.sleep(0.1)
        ferry.close()
        thread.join()
    finally:
        threading.excepthook = hook
    assert client.closed
    assert [issubclass(error.exc_type, rollferry.FerryClosedError) for error in errors] == [True]


def test_removed_while_read(url: str) -> None:
    """A reader gets its batch, or a clean error."""
    with rollferry.connect(url) as ferry:
        outcomes = []
        for turn in range(20):
            ref = ferry.put(batch_of())
            thread = threading.Thread(target=lambda ref=ref, turn=turn: (time.sleep(turn / 4000), ferry.remove(ref)))
            thread.start()
            try:
                assert_same(ferry.get(ref), batch_of())
                outcomes.append(True)
            except BundleNotFoundError:
                outcomes.append(False)
            thread.join()
        assert len(outcomes) == 20
        assert ferry.usage().live_nbytes == 0


def started(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start Python code in a process of its own."""
    source = str(Path(rollferry.__file__).parents[1])
    path = os.pathsep.join([source, str(Path(__file__).parents[2])])
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_producer_that_died(master: Master) -> None:
    """Its memory is gone: an error in bounded time, never a wrong batch."""
    with Master() as own, rollferry.connect(own.url(segment=0)) as ferry:
        with started(PUT, own.url()) as producer:
            ref = producer.stdout.readline()
            assert_same(ferry.get(ref), batch_of())
            producer.kill()
        start = time.monotonic()
        with pytest.raises((EngineError, BundleNotFoundError)):
            ferry.get(ref)
        assert time.monotonic() - start < 30
        ferry.remove(ref)


def test_master_that_died_and_came_back() -> None:
    with Master() as first, rollferry.connect(first.url(segment="64mb")) as ferry:
        ref = ferry.put({"x": 1})
        first.stop()
        for call in (lambda: ferry.put({"x": 2}), lambda: ferry.get(ref), lambda: ferry.remove(ref), ferry.list):
            start = time.monotonic()
            with pytest.raises(EngineError):
                call()
            assert time.monotonic() - start < 30
        with Master(first.port):
            deadline = time.monotonic() + 60
            while True:
                try:
                    second = ferry.put({"x": 3})
                    break
                except EngineError:
                    assert time.monotonic() < deadline
                    time.sleep(0.5)
            assert ferry.get(second) == {"x": 3}
            with pytest.raises(BundleNotFoundError):
                ferry.get(ref)


def test_no_master() -> None:
    with pytest.raises(EngineError, match="mooncake_master --rpc_port"):
        rollferry.connect(f"mooncake://127.0.0.1:{free_port()}")


def test_rdma_is_never_tcp(master: Master) -> None:
    with pytest.raises(EngineError, match="no device nosuch0"):
        rollferry.connect(master.url(protocol="rdma", device="nosuch0"))
    if not os.path.isdir("/sys/class/infiniband"):
        with pytest.raises(EngineError, match="no device at all"):
            rollferry.connect(master.url(protocol="rdma"))


@pytest.mark.parametrize(
    "options", ["x=1", "chunk=100", "chunk=4100", "replicas=0", "replicas=a", "segment=many", "metrics=x", "timeout=0"]
)
def test_bad_options(options: str) -> None:
    with pytest.raises(EngineError):
        rollferry.connect(f"mooncake://127.0.0.1:1?{options}")


def test_master_from_the_environment(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_MASTER", f"127.0.0.1:{master.port}")
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "0")
    with rollferry.connect("mooncake://") as ferry:
        assert ferry._engine._client.options.segment == 0
        assert ferry.remove("0" * 32) is False
    monkeypatch.delenv("MOONCAKE_MASTER")
    with pytest.raises(EngineError, match="MOONCAKE_MASTER"):
        rollferry.connect("mooncake://")


def test_one_client_for_all_ferries(url: str) -> None:
    first, second = rollferry.connect(url), rollferry.connect(url)
    client = first._engine._client
    assert client is second._engine._client
    users = client.users
    first.close()
    first.close()
    assert client.users == users - 1
    second.close()


FORK = """
import os, sys, rollferry
ferry = rollferry.connect(sys.argv[1])
ref = ferry.put({"x": 1})
pid = os.fork()
if pid == 0:
    for call in (lambda: ferry.get(ref), lambda: ferry.put({}), lambda: rollferry.connect(sys.argv[1])):
        try:
            call()
        except rollferry.EngineError as error:
            assert "spawn" in str(error)
        else:
            sys.exit(5)
    ferry.close()
    os._exit(0)  # as multiprocessing does; Mooncake's static destructors crash in a forked child that exits otherwise
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert ferry.get(ref) == {"x": 1}
ferry.close()
print("child", code)
"""


def test_child_of_a_fork_is_refused(master: Master) -> None:
    done = child(FORK, master.url())
    assert (done.returncode, done.stdout.strip()) == (0, "child 0"), done.stderr[-2000:]
    assert client_module.LEAKED == []


def test_options_as_keywords(master: Master) -> None:
    with rollferry.connect(master.url(), segment="0", chunk=4096) as ferry:
        options = ferry._engine._client.options
        assert (options.segment, options.chunk) == (0, 4096)
    for wrong in ({"nosuch": 1}, {"metrics": 1}):  # unknown, and in the URL as well
        with pytest.raises(EngineError, match="nosuch|twice"):
            rollferry.connect(master.url(), **wrong)


BLOCKED = """
import importlib, sys, rollferry
class Finder:
    def find_spec(self, name, *_):
        if name == "mooncake.store":
            raise {error}
sys.meta_path.insert(0, Finder())
try:
    rollferry.connect("mooncake://127.0.0.1:1")
except rollferry.EngineError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("ModuleNotFoundError('no mooncake')", "pip install 'rollferry[mooncake]'"),
        ("ImportError('libibverbs.so.1: cannot open')", "apt-get install libibverbs1"),
    ],
)
def test_missing_libraries(error: str, advice: str) -> None:
    done = child(BLOCKED.format(error=error))
    assert advice in done.stdout, done.stderr


def test_replicas_outlive_a_process(master: Master) -> None:
    """With two replicas, a bundle is still whole after one of the processes that lend memory was killed."""
    with Master() as own, rollferry.connect(own.url(segment="64mb", replicas=2)) as ferry:
        with started(PUT, own.url(segment="64mb", replicas=2)) as producer:
            ref = producer.stdout.readline()
            assert_same(ferry.get(ref), batch_of())
            producer.kill()
        assert_same(ferry.get(ref), batch_of())


def test_tenants_are_apart(tmp_path: Path) -> None:
    """Each has a quota of its own, which the master knows."""
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("version: 1\ntenants:\n  - name: one\n    quota: 4MB\n  - name: default\n    quota: 64MB\n")
    flags = ["--enable_multi_tenants=true", f"--tenant_quota_connector_uri={quotas}"]
    with (
        Master(None, *flags) as own,
        rollferry.connect(own.url(segment=0, tenant="one")) as one,
        rollferry.connect(own.url(segment="64mb")) as other,
    ):
        ref = one.put(batch_of())
        assert_same(one.get(ref), batch_of())
        with pytest.raises(BundleNotFoundError):
            other.get(ref)
        assert other.remove(ref) is False
        with pytest.raises(EngineFullError):
            one.put({"x": np.zeros(1_000_000)})
        kept = other.put({"x": np.zeros(1_000_000)})
        assert_same(one.get(ref), batch_of())
        with pytest.raises(EngineError, match="of the tenant 'default' only"):
            one.list()
        assert other.list() == [kept.id]
        engine = other._engine
        engine.guarantee("default", 60_000_000)
        with pytest.raises(EngineFullError, match="can't be guaranteed"):
            engine.guarantee("default", 64 << 20)
        with pytest.raises(EngineError, match="tenant='train'"):
            engine.guarantee("train", 1)
        usage = other.usage()
        assert usage.namespaces["default"].guaranteed_nbytes == 60_000_000
        assert 0 < usage.free_nbytes <= (64 << 20) - 8_000_000
        assert one.remove(ref) is True
        assert other.remove(kept) is True


LEAVE = """
import sys, numpy as np
from rollferry.engines.registry import open_engine
chunks = iter(open_engine(sys.argv[1]).begin("default.left", 40_960, 1).chunks)
for _ in range(6):
    next(chunks)[:] = 1
print("half", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_producer_left_is_reclaimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that was on its way can't be removed until the master gives it up, and keeps nothing else."""
    flags = ["--put_start_discard_timeout_sec=1", "--put_start_release_timeout_sec=2"]
    with Master(None, *flags) as own, rollferry.connect(own.url(segment="64mb", chunk="4096")) as ferry:
        with started(LEAVE, own.url(segment=0, chunk="4096")) as producer:
            assert producer.stdout.readline() == "half\n"
            producer.kill()
        client = ferry._engine._client
        assert any("default.left" in name for name in client.all_keys())
        assert (ferry.list(), ferry.usage().bundles, ferry.gc(), ferry.gc()) == ([], 0, [], [])
        now = time.time()
        monkeypatch.setattr("rollferry.engines.mooncake.engine.time.time", lambda: now + 3700)
        found = ferry.gc(dry_run=True)
        assert [(one.key, one.reason) for one in found] == [("default.left", "unfinished")]
        assert found[0].nbytes > 3 * 4096
        deadline = time.monotonic() + 60
        while client.all_keys():
            assert time.monotonic() < deadline
            ferry.gc()
            time.sleep(0.2)
        assert ferry.put({"x": 1})


def test_large_arrays_are_sent_from_where_they_lie(master: Master) -> None:
    """Among rows, and cut by the ends of chunks; their memory is free again afterwards."""
    rng = np.random.default_rng(0)
    base = rng.integers(0, 255, 9 << 20, dtype=np.uint8)
    batch = {"first": base, "rows": batch_of()["rows"], "overlapping": base[1 << 20 :], "cut": rng.random(300_001)}
    for chunk in ("1mb", "16mb"):
        with rollferry.connect(master.url(chunk=chunk)) as ferry:
            client = ferry._engine._client
            taken = []
            take = client.borrowed.take
            client.borrowed.take = lambda memory, take=take, taken=taken: taken.append(take(memory)) or taken[-1]
            for _ in range(2):
                ref = ferry.put(batch)
                assert_same(ferry.get(ref), batch)
                assert ferry.remove(ref)
            assert taken == [True, False, True] * 2
            assert client.borrowed._taken == {}


def test_put_that_is_broken_off_leaves_nothing(master: Master) -> None:
    """Chunks that were sent already are removed."""
    engine = open_engine(master.url(chunk="4096"))
    before = engine.usage()
    writer = engine.begin("default.broken", 40_000, 1)
    chunks = iter(writer.chunks)
    for _ in range(6):
        next(chunks)[:] = 1
    with pytest.raises(EngineError, match="5 of 10 chunks"):
        writer.publish(b"m")
    assert engine.usage().live_nbytes == before.live_nbytes
    writer = engine.begin("default.broken", 40_000, 1)
    next(iter(writer.chunks))
    writer.abort()
    assert engine.usage().live_nbytes == before.live_nbytes
    engine.close()


def set_up_store(master: Master) -> object:
    """A store as frameworks set it up."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    config = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "protocol": "tcp", "rdma_devices": ""}
    sizes = {"global_segment_size": str(64 << 20), "local_buffer_size": str(16 << 20)}
    assert store.setup({**config, **sizes, "master_server_addr": f"127.0.0.1:{master.port}"}) == 0
    return store


def test_store_of_others_is_used_and_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with Master() as own:
        store = set_up_store(own)
        with rollferry.connect(store, chunk="4096") as ferry, rollferry.connect(store, chunk="4096") as second:
            ref = ferry.put(batch_of())
            assert_same(second.get(ref), batch_of())
            with pytest.raises(EngineError, match="MOONCAKE_MASTER"):
                ferry.list()
            monkeypatch.setenv("MOONCAKE_MASTER", f"127.0.0.1:{own.port}")
            with rollferry.connect(store, metrics=own.metrics) as informed:
                assert informed.list() == [ref.id]
        assert store.health_check() == 0
        assert store.put("theirs", b"1") == 0  # the segment is still lent
        with rollferry.connect(own.url(segment=0)) as other, pytest.raises(EngineError, match="no option 'segment'"):
            assert_same(other.get(ref), batch_of())
            assert other.remove(ref)
            rollferry.connect(store, segment="1gb")
        store.close()
        with pytest.raises(EngineError, match=r"setup\(\)"):
            rollferry.connect(store)


def test_store_that_was_never_set_up() -> None:
    from mooncake.store import MooncakeDistributedStore

    with pytest.raises(EngineError, match=r"setup\(\)"):
        rollferry.connect(MooncakeDistributedStore())


def test_commands_look_without_lending(master: Master) -> None:
    """Every command works in a process of its own, which mounts no segment; ages are found where they are asked for."""
    url = master.url(chunk="64mb")
    with rollferry.connect(url, namespace="looked-at") as ferry:
        ref = ferry.put({"x": np.arange(1000)}, ttl=100)
        assert ferry.usage().namespaces["looked-at"].oldest_age is None
        assert ferry.usage(ages=True).namespaces["looked-at"].oldest_age > 0
        for command, expected in (
            (["ls"], ref.id),
            (["stat"], "looked-at"),
            (["show", ref.to_json()], "int64"),
            (["verify", ref.to_json()], "its checksums match"),
            (["gc", "--dry-run"], "0 bundles"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "rollferry.cli", *command, url], capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            assert expected in done.stdout
            assert "Mounting segment" not in done.stderr
        ferry.remove(ref)
