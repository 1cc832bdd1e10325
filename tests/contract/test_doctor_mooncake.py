"""`rollferry doctor mooncake://...`, with a real master."""

import os
import socket
from collections.abc import Iterator

import pytest

import rollferry
from rollferry.checks import Finding, attempt, ok
from rollferry.engines.mooncake import surroundings
from rollferry.engines.mooncake.options import options_of
from rollferry.engines.registry import checks_of, parse_url
from rollferry.errors import EngineError
from tests.contract.mooncake_master import Master, free_port
from tests.doctor import Report


@pytest.fixture(scope="module")
def master() -> Iterator[Master]:
    with Master() as master:
        yield master


def look(url: str, name: str) -> Finding:
    """Make one check here."""
    return attempt(next(step for step in checks_of(parse_url(url), lambda _: ok("")) if step.name == name))


def test_new_master_whose_segments_are_those_of_its_clients(master: Master) -> None:
    report = Report(master.url())
    assert report.named("ok") == list(report.checks), report.said
    assert "nobody lends memory yet" in report.checks["room"]["found"]


def test_nobody_lends(master: Master) -> None:
    report = Report(master.url(segment=0))
    assert report.named("fail") == ["room"]
    assert "segment=8gb" in report.checks["room"]["advice"]
    assert report.states["round trip"] == "skipped"


def test_lenders_are_used_and_nothing_is_left(master: Master) -> None:
    with rollferry.connect(master.url(segment="64mb")) as lender:
        report = Report(master.url())
        assert report.named("ok") == list(report.checks), report.said
        assert "of 64.0 MiB free, segments: 1" in report.checks["room"]["found"]
        assert look(master.url(segment=0, chunk="128mb"), "room").state == "warn"
        assert look(master.url(replicas=3), "room").state == "warn"
        assert lender._engine._client.all_keys() == []


def test_no_master() -> None:
    report = Report(f"mooncake://127.0.0.1:{free_port()}")
    assert "master" in report.named("fail")
    assert "mooncake_master --rpc_port" in report.checks["master"]["advice"]
    assert {"room", "round trip"} <= set(report.named("skipped"))


def test_port_of_something_else(master: Master) -> None:
    report = Report(f"mooncake://127.0.0.1:{master.metrics}?metrics={master.metrics}", "--timeout", "6")
    assert report.named("fail") == ["round trip"], report.said
    assert report.checks["round trip"]["found"] == "no answer within 6 s"
    assert "--rpc_port" in report.checks["round trip"]["advice"]


def test_wrong_metrics_port(master: Master) -> None:
    report = Report(f"mooncake://127.0.0.1:{master.port}?metrics={free_port()}")
    assert (report.status, report.named("warn")) == (0, ["metrics port", "room", "round trip"]), report.said
    assert "?metrics=PORT" in report.checks["metrics port"]["advice"]
    with rollferry.connect(master.url(segment="64mb")):
        report = Report(f"mooncake://127.0.0.1:{master.port}?metrics={free_port()}&segment=0")
        assert report.named("warn") == ["metrics port", "room"], report.said


def test_port_that_is_no_metrics_port(master: Master) -> None:
    assert look(f"mooncake://127.0.0.1:{master.port}?metrics={master.port}", "metrics port").state == "warn"


@pytest.mark.skipif(
    os.path.isdir(surroundings.INFINIBAND) and bool(os.listdir(surroundings.INFINIBAND)),
    reason="this machine has RDMA devices",
)
def test_rdma_without_devices(master: Master) -> None:
    report = Report(master.url(protocol="rdma"))
    assert "RDMA" in report.named("fail")
    assert "?protocol=tcp" in report.checks["RDMA"]["advice"]
    assert report.states["round trip"] == "skipped"


def test_rdma_and_too_little_lockable_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "mooncake://127.0.0.1:1?segment=8000tb&protocol="
    monkeypatch.setattr(surroundings, "may_lock_all", lambda: False)
    monkeypatch.setattr(surroundings.resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    assert look(f"{url}tcp", "lockable memory").state == "ok"
    found = look(f"{url}rdma", "lockable memory")
    assert (found.state, "ulimit -l unlimited" in found.advice) == ("fail", True)
    assert "ulimit" not in " ".join(look(f"{url}rdma", "RDMA"))  # said once
    monkeypatch.setattr(surroundings, "may_lock_all", lambda: True)
    assert look(f"{url}rdma", "lockable memory").state == "ok"


def test_rdma_and_too_little_lockable_memory_while_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of(parse_url("mooncake://127.0.0.1:1?protocol=rdma"))
    monkeypatch.setattr(surroundings, "check_devices", lambda _: None)
    monkeypatch.setattr(surroundings.resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    for may, message in ((False, "RDMA locks .* may lock 1,048,576"), (True, "there is no Mooncake master")):
        monkeypatch.setattr(surroundings, "may_lock_all", lambda may=may: may)
        with pytest.raises(EngineError, match=message):
            surroundings.check_surroundings(options)


def own_address() -> str:
    """An address of this machine that is not of loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        return probe.getsockname()[0]


def test_address_that_others_reach() -> None:
    address = own_address()
    with socket.create_server((address, 0)) as server:
        url = f"mooncake://{address}:{server.getsockname()[1]}"
        assert look(url, "address") == ok(f"others reach this process at {address}")
        assert look(f"{url}?hostname={address}:12345", "address").state == "ok"
        assert look(f"{url}?hostname=127.0.0.1", "address").state == "warn"
        assert look(f"{url}?hostname=nosuch.invalid", "address").state == "fail"
