"""ray:// keeps the contract, on a Ray that is really started."""

import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry.engines.registry import open_engine
from rollferry.errors import BundleNotFoundError, EngineError
from rollferry.testing import assert_same
from rollferry.testing.contracts import EngineContract, get, payload_of, put

ray = pytest.importorskip("ray", reason="Ray isn't installed: pip install 'rollferry[ray]'")

from rollferry.engines.ray.actors import PIECE, SMALL  # noqa: E402

ROOT = Path(__file__).parents[2]
SOURCE = str(Path(rollferry.__file__).parents[1])


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[str]:
    """A Ray of this module's own; its address."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init(address="local", num_cpus=2, object_store_memory=1 << 30, include_dashboard=False, log_to_driver=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


def registry_of(namespace: str) -> Any:
    return ray.get_actor("rollferry-registry-5", namespace=namespace)


def kill_registry(namespace: str) -> None:
    ray.kill(registry_of(namespace))


def kill_process_of(actor: Any) -> None:
    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=20), 9)


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace of the test's own."""
    name = secrets.token_hex(8)
    yield name
    try:
        kill_registry(name)
    except ValueError:
        pass


def store_bytes() -> int:
    """Bytes that Ray's object store holds."""
    return int(ray.cluster_resources()["object_store_memory"] - ray.available_resources().get("object_store_memory", 0))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class TestRay(EngineContract):
    slack = 2 << 20  # nobody else uses the registry

    @pytest.fixture(params=["512mb", "64"])
    def url(self, request: pytest.FixtureRequest, namespace: str) -> str:
        chunk = request.param
        if chunk == "64" and any(
            word in request.node.name
            for word in ("threads", "usage", "readers", "outlives", "100003", "guarantee", "accounts")
        ):
            chunk = "8kb"  # thousands of objects are no use to anybody
        return f"ray://?registry={namespace}&chunk={chunk}"


BATCH = {
    "tokens": [np.arange(n, dtype=np.int32) for n in (7, 4, 0, 300_000)],
    "rewards": [0.5, 1.0, float("nan"), -0.0],
    "metadata": [{"tools": ("calc",), "teacher": None}, {}, None, [1, "two"]],
}

GET_IN_DRIVER = """
import sys, json, rollferry
address, namespace, path = sys.argv[1:]
ferry = rollferry.connect(f"ray://{address}?registry={namespace}")
batch = ferry.get(open(path).read())
print(json.dumps([batch["tokens"][3].sum().item(), repr(batch["rewards"]), repr(batch["metadata"])]))
"""


class Worker:
    def __init__(self, namespace: str) -> None:
        self.ferry = rollferry.connect(f"ray://?registry={namespace}")

    def put(self, path: str) -> int:
        Path(path).write_text(self.ferry.put(BATCH).to_json())
        return os.getpid()

    def get(self, path: str) -> Any:
        return self.ferry.get(Path(path).read_text())


def digest(batch: Any) -> list[Any]:
    return [batch["tokens"][3].sum().item(), repr(batch["rewards"]), repr(batch["metadata"])]


def test_ref_in_a_file_outlives_its_producer_in_actors_and_drivers(
    namespace: str, session: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "ref.json")
    actor = ray.remote(Worker).options(num_cpus=0)
    producer, consumer = actor.remote(namespace), actor.remote(namespace)
    os.kill(ray.get(producer.put.remote(path), timeout=60), 9)
    time.sleep(2)  # what Ray frees when a process dies is freed now
    assert json.loads(Path(path).read_text())["engine"] == "ray"
    assert_same(ray.get(consumer.get.remote(path), timeout=60), BATCH)
    with rollferry.connect(f"ray://?registry={namespace}") as ferry:
        assert_same(ferry.get(Path(path).read_text()), BATCH)
    done = subprocess.run(
        [sys.executable, "-c", GET_IN_DRIVER, session, namespace, path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == digest(BATCH)


def test_ref_of_another_driver_outlives_it(namespace: str, session: str, tmp_path: Path) -> None:
    path = tmp_path / "ref.json"
    code = (
        "import sys, numpy as np, rollferry\n"
        "ferry = rollferry.connect(f'ray://{sys.argv[1]}?registry={sys.argv[2]}')\n"
        "open(sys.argv[3], 'w').write(ferry.put({'rows': [np.arange(100_000), np.arange(3)]}).to_json())\n"
    )
    subprocess.run([sys.executable, "-c", code, session, namespace, str(path)], check=True, timeout=120)
    time.sleep(2)
    with rollferry.connect(f"ray://?registry={namespace}") as ferry:
        assert_same(ferry.get(path.read_text()), {"rows": [np.arange(100_000), np.arange(3)]})


def test_hundred_rounds_return_to_the_base_line(namespace: str) -> None:
    with rollferry.connect(f"ray://?registry={namespace}") as ferry:
        batch = {"rows": [np.arange(1 << 20), np.arange(1 << 20)]}  # 16 MiB; a hundred don't fit
        ferry.remove(ferry.put(batch))
        time.sleep(2)
        base = store_bytes()
        highest = 0
        for n in range(100):
            ref = ferry.put(batch)
            if n % 2:
                assert len(ferry.get(ref, readonly=n % 4 == 1)["rows"][0]) == 1 << 20
            assert ferry.remove(ref) is True
            highest = max(highest, store_bytes())
        wait_until(lambda: store_bytes() <= base)
        assert highest - base < 600 << 20
        assert ferry.usage().live_nbytes == 0


def test_held_bundles_are_seen_in_the_store(namespace: str) -> None:
    with rollferry.connect(f"ray://?registry={namespace}") as ferry:
        wait_until(lambda: store_bytes() < 32 << 20)
        ref = ferry.put({"rows": [np.zeros(32 << 20, np.uint8)]})
        wait_until(lambda: store_bytes() >= 32 << 20)
        ferry.remove(ref)
        wait_until(lambda: store_bytes() < 32 << 20)


def test_dead_registry(namespace: str) -> None:
    with rollferry.connect(f"ray://?registry={namespace}&timeout=20") as ferry:
        ref = ferry.put(BATCH)
        assert_same(ferry.get(ref), BATCH)
        kill_registry(namespace)
        start = time.monotonic()
        with pytest.raises(EngineError, match="died"):
            ferry.get(ref)
        with pytest.raises(BundleNotFoundError):
            ferry.get(ref)
        assert time.monotonic() - start < 25
        again = ferry.put(BATCH)
        assert_same(ferry.get(again), BATCH)
        assert ferry.list() == [again.id]


def test_killed_registry_is_an_error_of_put(namespace: str) -> None:
    with rollferry.connect(f"ray://?registry={namespace}&timeout=20") as ferry:
        for batch in (BATCH, {"x": 1}):
            ferry.put(BATCH)
            kill_process_of(registry_of(namespace))
            start = time.monotonic()
            with pytest.raises(EngineError, match="died"):
                ferry.put(batch)
            assert time.monotonic() - start < 25
            assert_same(ferry.get(ferry.put(batch)), batch)
            assert ferry.usage().bundles == 1


GUARANTEE_IN_DRIVER = """
import sys, rollferry
address, namespace = sys.argv[1:]
ferry = rollferry.connect(f"ray://{address}?registry={namespace}", namespace="one", guarantee=1000)
print("given", flush=True)
sys.stdin.read()
"""


def test_a_guarantee_ends_with_its_process(namespace: str, session: str) -> None:
    with rollferry.connect(f"ray://?registry={namespace}") as ferry:
        command = [sys.executable, "-c", GUARANTEE_IN_DRIVER, session, namespace]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
            try:
                assert owner.stdout.readline() == b"given\n"
                assert ferry.usage().namespaces["one"].guaranteed_nbytes == 1000
            finally:
                owner.kill()
        wait_until(lambda: "one" not in ferry.usage().namespaces)


def test_registry_that_does_not_answer(namespace: str) -> None:
    small, large = {"x": 1}, {"x": np.arange(1 << 20)}
    url = f"ray://?registry={namespace}"
    with rollferry.connect(url) as patient, rollferry.connect(f"{url}&timeout=1") as hasty:
        patient.put(large)
        refs = [hasty.put(small), hasty.put(large)]
        # It is busy with something else.
        busy = registry_of(namespace).__ray_call__.remote(lambda _: time.sleep(8))
        actions = [lambda: hasty.put(large), lambda: hasty.put(small), lambda: hasty.get(refs[0]), hasty.list]
        actions += [lambda ref=ref: hasty.remove(ref) for ref in refs]
        for action in actions:
            start = time.monotonic()
            with pytest.raises(EngineError, match="longer than 1 s"):
                action()
            assert time.monotonic() - start < 3
        ray.get(busy, timeout=30)
        assert patient.usage().bundles == 1  # the puts were given up, and the removals came to pass
        assert_same(patient.get(patient.put(large)), large)


def test_killed_keeper_is_an_error_of_get(namespace: str) -> None:
    with rollferry.connect(f"ray://?registry={namespace}&timeout=20") as ferry:
        small, lost = ferry.put({"x": 1}), ferry.put(BATCH)
        kill_process_of(ferry._engine._session.keeper())
        start = time.monotonic()
        with pytest.raises(EngineError, match=lost.id):
            while time.monotonic() - start < 20:  # until Ray has noticed, the bundle is there
                assert_same(ferry.get(lost), BATCH)
        for readonly in (True, False):
            with pytest.raises(EngineError, match=lost.id):
                ferry.get(lost, readonly=readonly)
        assert time.monotonic() - start < 60
        assert_same(ferry.get(small), {"x": 1})  # the registry has it
        assert_same(ferry.get(ferry.put(BATCH)), BATCH)
        assert ferry.remove(lost)


def test_killed_keeper_is_an_error_of_put(namespace: str) -> None:
    with rollferry.connect(f"ray://?registry={namespace}&timeout=20") as ferry:
        ferry.put(BATCH)
        kill_process_of(ferry._engine._session.keeper())
        start = time.monotonic()
        with pytest.raises(EngineError, match="publishing the bundle .* died"):
            ferry.put(BATCH)
        assert time.monotonic() - start < 25
        assert ferry.usage().bundles == 1
        assert_same(ferry.get(ferry.put(BATCH)), BATCH)


@pytest.mark.parametrize("size", [20_000, 1 << 20], ids=["small", "large"])
def test_remove_during_get(namespace: str, size: int) -> None:
    batch = {"rows": [np.arange(size), np.arange(3)]}
    outcomes = set()

    def attempt(ferry: rollferry.Ferry, ref: Any, readonly: bool) -> str:
        start = time.monotonic()
        try:
            got = ferry.get(ref, readonly=readonly)
        except BundleNotFoundError:
            return "gone"
        finally:
            assert time.monotonic() - start < 10
        assert_same(got, batch)
        return "whole"

    with rollferry.connect(f"ray://?registry={namespace}") as ferry, ThreadPoolExecutor(4) as pool:
        for turn in range(300):
            if turn >= 40 and len(outcomes) == 2:
                break
            ref = ferry.put(batch)
            attempts = [pool.submit(attempt, ferry, ref, bool(n % 2)) for n in range(4)]
            time.sleep(random.uniform(0, 0.004))
            assert ferry.remove(ref)
            outcomes |= {done.result() for done in attempts}
        assert outcomes == {"gone", "whole"}
        assert ferry.usage().bundles == 0


def test_pieces_of_small_payloads(namespace: str) -> None:
    engine = open_engine(f"ray://?registry={namespace}")
    for nbytes in (PIECE - 1, PIECE, PIECE + 1, SMALL - 1, SMALL, SMALL + 1):
        payload = payload_of(nbytes)
        reader = engine.open(put(engine, payload, b"m" * 200_000))
        assert reader.manifest == b"m" * 200_000
        ranges = [(0, nbytes), (PIECE - 100, 50), (PIECE - 64, min(100, nbytes - PIECE + 64)), (nbytes - 1, 1), (64, 0)]
        for writable in (True, False):
            got = reader.fetch(ranges, writable=writable)
            assert [part.tobytes() for part in got] == [payload[start : start + size] for start, size in ranges]


def test_more_small_payloads_than_the_registry_holds(namespace: str) -> None:
    def limit(_: Any) -> None:
        from rollferry.engines.ray import actors

        actors.HELD = 250_000

    with rollferry.connect(f"ray://?registry={namespace}") as ferry:
        assert ferry.list() == []
        registry = registry_of(namespace)
        ray.get(registry.__ray_call__.remote(limit))
        batches = [{"x": np.full(100_000, n, np.uint8)} for n in range(5)]
        refs = [ferry.put(batch) for batch in batches]
        for ref, batch in zip(refs, batches, strict=True):
            for readonly in (True, False):
                assert_same(ferry.get(ref, readonly=readonly), batch)
        held = registry.__ray_call__
        assert ray.get(held.remote(lambda self: self._held)) == sum(ref.nbytes for ref in refs[:2])
        assert all(map(ferry.remove, refs))
        assert ray.get(held.remote(lambda self: self._held)) == 0


def test_unreachable_staging_goes_over_the_object_store(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rollferry.engines.ray.staging import Staging

    describe = Staging.describe
    monkeypatch.setattr(Staging, "describe", lambda *args: describe(*args)._replace(identity=(0, 0)))
    engine = open_engine(f"ray://?registry={namespace}&chunk=300kb")
    payload = payload_of(1_000_000)
    assert get(engine, put(engine, payload)).tobytes() == payload
    assert get(engine, put(engine, b"")).tobytes() == b""


def test_readonly_is_zero_copy_and_lives_on(namespace: str) -> None:
    with rollferry.connect(f"ray://?registry={namespace}") as ferry:
        batch = {"rows": [np.arange(300_000), np.arange(200_000)], "texts": ["a", "ü" * 1000], "x": np.ones(3)}
        ref = ferry.put(batch)
        first, second = ferry.get(ref, readonly=True), ferry.get(ref, readonly=True)
        assert_same(first, batch)
        assert first["rows"][0].ctypes.data == second["rows"][0].ctypes.data  # one memory
        assert not first["rows"][0].flags.writeable
        with pytest.raises(ValueError):
            first["rows"][0].setflags(write=True)
        private = ferry.get(ref)
        private["rows"][0][:] = 0
        held = first["rows"]
        del first, second, private
        assert ferry.remove(ref)
        for n in range(60):  # more than the store has
            ferry.remove(ferry.put({"rows": [np.full(4 << 20, n)]}))
        assert_same(held, batch["rows"])


def test_readonly_tensors_are_writable(namespace: str) -> None:
    torch = pytest.importorskip("torch", reason="torch isn't installed: pip install 'rollferry[torch]'")
    with rollferry.connect(f"ray://?registry={namespace}") as ferry:
        batch = {"t": [torch.arange(100_000), torch.arange(4)], "a": [np.arange(5)]}
        got = ferry.get(ferry.put(batch), readonly=True)
        assert_same(got, batch)
        got["t"][0][0] = 9
        assert not got["a"][0].flags.writeable


def test_cut_members(namespace: str) -> None:
    with rollferry.connect(f"ray://?registry={namespace}&chunk=1000") as ferry:
        batch = {"rows": [np.arange(5000, dtype=np.int16), np.arange(3, dtype=np.int16)], "n": list(range(700))}
        ref = ferry.put(batch)
        for readonly in (False, True):
            assert_same(ferry.get(ref, readonly=readonly), batch)


def test_only_the_chunks_that_are_touched_are_read(namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rollferry.engines.ray.session import Session

    read: list[int] = []
    wait = Session.wait

    def counted(self: Session, refs: Any, what: str, nbytes: int = 0) -> Any:
        if "reading" in what:
            read.append(len(refs))
        return wait(self, refs, what, nbytes)

    monkeypatch.setattr(Session, "wait", counted)
    count = 300_000
    batch = {
        "dense": np.arange(count),
        "rows": [np.arange(n % 7, dtype=np.float32) for n in range(count)],
        "texts": [str(n) for n in range(count)],
    }
    rng = np.random.default_rng(0)
    selections: list[Any] = [
        slice(0, 10),
        slice(150_000, 160_000, 3),
        slice(None, None, -50_000),
        rng.integers(0, count, 20),
        rng.random(count) < 0.001,
        [],
    ]
    with (
        rollferry.connect(f"ray://?registry={namespace}&chunk=256kb") as ferry,
        rollferry.connect(f"ray://?registry={namespace}&chunk=64") as other,  # its own puts only
    ):
        ref = ferry.put(batch)
        for rows in selections:
            numbers = np.arange(count)[rows].tolist()
            expected = {
                key: value[rows] if key == "dense" else [value[number] for number in numbers]
                for key, value in batch.items()
            }
            for readonly in (False, True):
                assert_same(other.get(ref, rows=rows, readonly=readonly), expected)
        read.clear()
        assert_same(ferry.get(ref), batch)
        assert read == [-(-ref.nbytes // (256 << 10))]
        read.clear()
        ferry.get(ref, rows=slice(0, 10))
        assert len(read) <= sum(read) <= 6
        read.clear()
        ferry.get(ref, fields=["dense"], rows=slice(140_000, 150_000))
        assert read == [1]


def test_bundle_removed_after_it_was_opened_stays_with_its_reader(namespace: str) -> None:
    engine = open_engine(f"ray://?registry={namespace}&chunk=1mb")
    payload = payload_of(5 << 20)
    key = put(engine, payload)
    reader = engine.open(key)
    assert engine.remove(key)
    for seed in range(20):
        engine.remove(put(engine, payload_of(5 << 20, seed=seed + 1)))
    for start, nbytes in ((3 << 20, 100), (100, 2 << 20), (0, 5 << 20)):
        assert reader.fetch([(start, nbytes)])[0].tobytes() == payload[start : start + nbytes]


def test_round_trip_cases(namespace: str) -> None:
    cases = pytest.importorskip("tests.roundtrip.cases", reason="the cases need torch and pillow").CASES
    with rollferry.connect(f"ray://?registry={namespace}") as ferry:
        for name, make in cases.items():
            ref = ferry.put(make())
            for readonly in (False, True):
                try:
                    assert_same(ferry.get(ref.to_json(), readonly=readonly), make())
                except AssertionError as error:
                    raise AssertionError(f"{name}, readonly={readonly}") from error
            ferry.remove(ref)
        whole = {name: make() for name, make in cases.items()}
        ref = ferry.put(whole)
        assert_same(ferry.get(ref), whole)
        assert_same(ferry.get(ref, readonly=True), whole)


def test_fork_is_refused(namespace: str) -> None:
    with rollferry.connect(f"ray://?registry={namespace}") as ferry:
        ref = ferry.put({"x": 1})
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for action in (
                    lambda: ferry.get(ref),
                    lambda: ferry.put({"x": 1}),
                    lambda: rollferry.connect("ray://"),
                ):
                    try:
                        action()
                    except EngineError as error:
                        assert "fork" in str(error)
                    else:
                        raise AssertionError
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert ferry.get(ref) == {"x": 1}


@pytest.mark.parametrize(
    "url",
    [
        *(
            "ray://?chunk=0",
            "ray://?timeout=x",
            "ray://?timeout=-1",
            "ray:///path",
            "ray://?nope=1",
            "ray://?namespace=a",
        ),
        *("ray://10.77.0.1", "ray://10.77.0.1:", "ray://10.77.0.1:x", "ray://10.77.0.1:70000", "ray://:6379"),
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(EngineError):
        open_engine(url)


def test_another_address_is_refused() -> None:
    with pytest.raises(EngineError, match="attached"):
        open_engine("ray://10.1.2.3:6379")


def connecting(*urls: str, **env: str) -> list[str]:
    """What a fresh process hears that connects with one URL after the other, each time `attached` or an error."""
    code = (
        "import sys, rollferry\n"
        "for url in sys.argv[1:]:\n"
        "    try:\n"
        "        rollferry.connect(url).list()\n"
        "        print('attached')\n"
        "    except rollferry.EngineError as error:\n"
        "        print(error)\n"
    )
    command = [sys.executable, "-c", code, *urls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("first", ["127.0.0.1", "localhost"])
def test_other_names_of_the_address(first: str, session: str) -> None:
    hosts = [first, first, "localhost", "127.0.0.1", session.rpartition(":")[0]]
    urls = [f"ray://{host}:{session.rpartition(':')[2]}" for host in hosts]
    assert connecting(*urls, "ray://") == ["attached"] * 6
    said = connecting(urls[0], "ray://localhost:1", "ray://nowhere.invalid:6379")
    assert said[0] == "attached" and all("is attached to Ray at" in line for line in said[1:])


def test_no_ray_running() -> None:
    (said,) = connecting("ray://", RAY_TMPDIR="/nonexistent", RAY_ADDRESS="127.0.0.1:1")
    assert said.startswith("there is no Ray to attach to at 127.0.0.1:1: ")
    said, unknown = connecting("ray://127.0.0.1:6399", "ray://nowhere.invalid:6379")
    assert said.endswith("(Connection refused). Start one there with `ray start --head --port=6399`")
    assert unknown.startswith("there is no Ray to attach to at nowhere.invalid:6379: ")
    assert ".." not in said + unknown and "--address" not in said + unknown


def test_ray_client_is_refused() -> None:
    said, other = connecting("ray://127.0.0.1:10001", "ray://", RAY_ADDRESS="ray://127.0.0.1:10001")
    assert "10001 is that of Ray Client" in said and "6379" in said
    assert "Ray Client" in other and "unset" in other


def test_tokens(tmp_path: Path) -> None:
    """A cluster that asks for a token, and drivers with it, without it, and with another."""
    pytest.importorskip("ray._private.authentication", reason="this Ray has no tokens")
    (tmp_path / ".ray").mkdir()
    own = tmp_path / ".ray" / "auth_token"
    own.write_text(secrets.token_hex(32))
    other = tmp_path / "other"
    other.write_text(secrets.token_hex(32))
    code = (
        "import ray\n"
        "ray.init(address='local', num_cpus=1, object_store_memory=100 << 20, include_dashboard=False)\n"
        "print(ray.get_runtime_context().gcs_address, flush=True)\n"
        "input()\n"
    )
    home = {"HOME": str(tmp_path), "RAY_AUTH_TOKEN_PATH": str(own)}
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    env = {**os.environ, **home, "RAY_AUTH_MODE": "token"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env) as head:
        assert head.stdin is not None and head.stdout is not None
        url = f"ray://{head.stdout.readline().strip()}"
        try:
            assert connecting(url, url, **home, RAY_AUTH_MODE="token") == ["attached"] * 2
            for cause in (
                {"RAY_AUTH_MODE": "disabled"},
                {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(other)},
                {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "", "HOME": str(tmp_path / "empty")},
            ):
                start = time.monotonic()
                (said,) = connecting(url, **home | cause)
                assert "asks for a token: export RAY_AUTH_MODE=token" in said
                assert time.monotonic() - start < 15  # ray.init tries for 20 seconds
        finally:
            head.stdin.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_example(mode: str, session: str) -> None:
    example = str(ROOT / "examples" / "ray_pipeline.py")
    command = [sys.executable, example, "--mode", mode, "--steps", "4", "--samples", "500", "--address", session]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    stale = 1 if mode == "async" else 0
    assert f"trained on 4000 of 4000 samples, {stale} versions stale at most\n0 bundles left" in done.stdout


def test_example_without_ray() -> None:
    example = str(ROOT / "examples" / "ray_pipeline.py")
    command = [sys.executable, example, "--address", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "--local" in done.stderr


def test_cluster_example(session: str) -> None:
    def run(role: str, url: str, **options: Any) -> Any:
        command = [sys.executable, str(ROOT / "examples" / "cluster.py"), role, "--url", url, "--samples", "100"]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, **options)

    url = f"ray://{session}"
    refs = run("rollout", url).stdout
    done = run("train", url, input=refs)
    assert done.returncode == 0 and done.stdout.count("all as they were sent") == 3, done.stderr
    done = run("train", url, input="")
    assert done.returncode == 1 and "no references came" in done.stderr
    done = run("train", url, input=refs)
    assert done.returncode == 1 and "there is no bundle" in done.stderr and "Traceback" not in done.stderr
    done = run("train", "ray://127.0.0.1:1", input=refs)
    assert done.returncode == 1 and done.stderr.startswith("train: there is no Ray to attach to"), done.stderr


@pytest.mark.parametrize("script", ["ray_two_nodes.py", "ray_shutdown.py", "ray_full.py", "ray_large.py"])
def test_in_a_process_of_its_own(script: str) -> None:
    command = [sys.executable, str(Path(__file__).with_name(script))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    if done.stdout.startswith("skip"):
        pytest.skip(done.stdout)
    assert done.stdout.endswith("ok\n")
