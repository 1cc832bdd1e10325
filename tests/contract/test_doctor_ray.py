"""`rollferry doctor ray://...`, with a Ray that is really started."""

import os
import signal
import socket
from collections.abc import Iterator

import pytest

import rollferry
from tests.doctor import SOURCE, Report

ray = pytest.importorskip("ray", reason="Ray isn't installed: pip install 'rollferry[ray]'")
from rollferry.engines.ray.session import REGISTRY_NAME

# As in test_engine_ray.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
LATER = ["registry", "object store", "/dev/shm", "round trip"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A Ray of this module's own; its address."""
    os.environ["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])])
    ray.init(address="local", num_cpus=1, object_store_memory=256 << 20, include_dashboard=False, log_to_driver=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


def actors() -> list[dict]:
    return ray.util.list_named_actors(all_namespaces=True)


def test_healthy_cluster_stays_as_it_is(address: str) -> None:
    report = Report(f"ray://{address}?registry=nobody")
    assert report.status == 0, report.said
    assert report.named("warn") == ["object store"]  # 256 MiB are few
    assert "--object-store-memory" in report.checks["object store"]["advice"]
    assert report.checks["registry"]["found"].startswith("none yet")
    assert actors() == []


def test_registry_and_name_of_the_host(address: str) -> None:
    with rollferry.connect("ray://?registry=mine") as ferry:
        ref = ferry.put({"x": [1, 2]})
        report = Report(f"ray://localhost:{address.rpartition(':')[2]}?registry=mine")
        assert report.status == 0, report.said
        assert report.checks["registry"]["found"].startswith("alive; 1 bundles")
        assert ferry.list() == [ref.id]
        assert [actor["namespace"] for actor in actors()] == ["mine"]


def test_registry_that_hangs(address: str) -> None:
    with rollferry.connect("ray://?registry=mine") as ferry:
        ferry.list()
        actor = ray.get_actor(REGISTRY_NAME, namespace="mine")
        process = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=60)
        os.kill(process, signal.SIGSTOP)
        try:
            report = Report(f"ray://{address}?registry=mine&timeout=10")
        finally:
            os.kill(process, signal.SIGCONT)
    assert report.named("fail") == ["registry"], report.said
    assert "ray.kill(" in report.checks["registry"]["advice"]
    assert report.states["round trip"] == "ok"


def test_address_from_the_environment(address: str) -> None:
    report = Report("ray://", RAY_ADDRESS=address)
    assert report.status == 0, report.said


def test_ray_client_is_refused() -> None:
    report = Report("ray://", RAY_ADDRESS="ray://127.0.0.1:10001")
    assert (report.named("fail"), report.named("skipped")) == (["address"], ["cluster", *LATER])
    assert "Ray Client" in report.checks["address"]["found"]
    assert "RAY_ADDRESS" in report.checks["address"]["advice"]


def test_nobody_there() -> None:
    report = Report("ray://127.0.0.1:1")
    assert (report.named("fail"), report.named("skipped")) == (["address"], ["cluster", *LATER])
    assert report.checks["address"]["advice"] == "on 127.0.0.1: ray start --head --port=1"


def test_somebody_else_there() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        report = Report(f"ray://127.0.0.1:{server.getsockname()[1]}", "--timeout", "10")
    assert (report.named("fail"), report.named("skipped")) == (["cluster"], LATER), report.said
    assert report.checks["cluster"]["found"] == "no answer within 10 s"
    assert "10001" in report.checks["cluster"]["advice"]
