"""mooncake:// between several hosts, and what becomes of it when one of them, or the network, goes.

The times are the contract: whatever goes, a call ends in an error of rollferry's in time.
"""

import json
import signal
import sys
import time

import pytest

from tests.network.hosts import ROOT, Agent, Network, Process, start_master, url

MB = 1 << 20
SMALL, LARGE = 200_000, 200 * MB  # within a chunk; 13 chunks
QUICK = {"timeout": 5}  # instead of 20, to wait less
# Seconds. Mooncake gives up a transfer that can't even connect, and every put, after 60; a put then gives back what it reserved.
BOUND = 80
PUT_BOUND = 120


@pytest.fixture
def master(network: Network) -> Process:
    return start_master(network)


def put(agent: Agent, nbytes: int, seed: int) -> dict:
    """Arguments of a get for what the agent put."""
    return {"ref": agent("put", nbytes=nbytes, seed=seed)["result"], "nbytes": nbytes, "seed": seed}


def failed(answer: dict, *errors: str, names: str = "", bound: float = BOUND) -> None:
    """Check that it was one of these errors, in time, with all other threads running meanwhile."""
    assert answer.get("error") in errors, answer
    assert names in answer["text"]
    assert answer["seconds"] < bound
    assert answer["stopped"] < 5


def id_of(bundle: dict) -> str:
    return json.loads(bundle["ref"])["id"]


def again(agent: Agent, do: str, seconds: float = 60, **arguments: object) -> dict:
    """Do something until it succeeds."""
    deadline = time.monotonic() + seconds
    while True:
        answer = agent(do, **arguments)
        if "result" in answer or time.monotonic() > deadline:
            assert "result" in answer
            return answer
        time.sleep(1)


def shared(producer: Agent, consumer: Agent) -> None:
    """Batches go from one to the other, and leave nothing."""
    for seed, nbytes in enumerate((0, SMALL, LARGE, SMALL)):
        bundle = put(producer, nbytes, seed)
        assert consumer("get", **bundle)["result"]
        assert consumer("remove", ref=bundle["ref"])["result"] is True
        assert producer("remove", ref=bundle["ref"])["result"] is False
        failed(producer("get", **bundle), "BundleNotFoundError", names=id_of(bundle))
        assert producer("usage")["result"] == [0, 0]
    assert consumer("held_are_same")["result"] == 4


@pytest.mark.parametrize("lender", ["producer", "consumer", "storage", "all"])
def test_put_here_get_there(network: Network, master: Process, lender: str) -> None:
    segments = {host: "512mb" if lender in (host, "all") else 0 for host in ("storage", "producer", "consumer")}
    agents = {host: Agent(network, host, segment=segment) for host, segment in segments.items()}
    shared(agents["producer"], agents["consumer"])
    shared(agents["consumer"], agents["producer"])


def test_example(network: Network, master: Process) -> None:
    """The commands of docs/cluster.md."""
    example = str(ROOT / "examples/cluster.py")
    lender = network.start("storage", sys.executable, example, "lend", "--url", url(segment="512mb"))
    assert lender.line() == "lending memory"
    rollout = network.start("producer", sys.executable, example, "rollout", "--url", url(segment=0))
    train = network.start("consumer", sys.executable, example, "train", "--url", url(segment=0))
    for step in range(3):
        train.write(rollout.line())
        assert train.line().startswith(f"step {step}: got 20000 samples")
    assert (rollout.end(), train.end()) == (0, 0)
    lender.signal(signal.SIGTERM)
    assert lender.end() == 0, lender.logged()


def test_producer_is_killed(network: Network, master: Process) -> None:
    """What it lent is gone; what lies elsewhere stays."""
    storage = Agent(network, "storage", segment="512mb", **QUICK)
    writer = Agent(network, "producer", segment=0, **QUICK)
    elsewhere = [put(writer, nbytes, 1) for nbytes in (SMALL, LARGE)]
    writer.process.kill()
    consumer = Agent(network, "consumer", segment=0, **QUICK)
    for bundle in elsewhere:
        assert consumer("get", **bundle)["result"]
    # The next one's bundles don't fit elsewhere.
    writer = Agent(network, "producer", segment="1gb", **QUICK)
    own = put(writer, 400 * MB, 2)
    assert consumer("get", **own)["result"]
    writer.process.kill()
    failed(consumer("get", **own), "EngineError", "BundleNotFoundError", "BundleError", names=id_of(own))
    again(consumer, "get", **elsewhere[0])
    again(consumer, "get", **elsewhere[1])
    time.sleep(12)  # until the master has given it up
    failed(consumer("get", **own), "BundleNotFoundError", "BundleError", names=id_of(own))
    consumer("remove", ref=own["ref"])
    writer = Agent(network, "producer", segment=0, **QUICK)
    last = again(writer, "put", nbytes=LARGE, seed=3)["result"]
    assert consumer("get", ref=last, nbytes=LARGE, seed=3)["result"]
    assert consumer("held_are_same")["result"] == 6
    assert storage("usage")["result"][0] == 3


def during_a_get(network: Network, consumer: Agent, bundle: dict) -> None:
    """Begin a get, and come back when it is at work in the middle of the payload."""
    network.slow("consumer", "100mbit")
    before = network.received("consumer")
    consumer.begin("get", **bundle)
    deadline = time.monotonic() + 60
    while network.received("consumer") - before < 30 * MB:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert consumer.process.waiting()
    assert network.received("consumer") - before < 150 * MB


def test_network_of_the_consumer_is_cut_during_a_get(network: Network, master: Process) -> None:
    Agent(network, "storage", segment="512mb", **QUICK)
    producer, consumer = (Agent(network, host, segment=0, **QUICK) for host in ("producer", "consumer"))
    bundle = put(producer, LARGE, 1)
    during_a_get(network, consumer, bundle)
    network.cut("consumer")
    failed(consumer.finish(), "EngineError", names=id_of(bundle))
    network.slow("consumer", None)
    failed(consumer("get", **bundle), "EngineError", names=id_of(bundle))
    failed(consumer("put", nbytes=SMALL, seed=2), "EngineError")
    failed(consumer("remove", ref=bundle["ref"]), "EngineError", names=id_of(bundle))
    failed(consumer("usage"), "EngineError")
    network.mend("consumer")
    again(consumer, "get", **bundle)  # the same process, the same Ferry
    second = {"ref": again(consumer, "put", nbytes=LARGE, seed=3)["result"], "nbytes": LARGE, "seed": 3}
    assert producer("get", **second)["result"]
    for old in (bundle, second):
        assert consumer("remove", ref=old["ref"])["result"]
    assert producer("usage")["result"] == [0, 0]
    assert consumer("held_are_same")["result"] == 1


def test_network_of_the_lender_is_cut_during_a_get(network: Network, master: Process) -> None:
    """The master sees it too, and forgets what was there. It lends again when it is back."""
    storage = Agent(network, "storage", segment="512mb", **QUICK)
    producer, consumer = (Agent(network, host, segment=0, **QUICK) for host in ("producer", "consumer"))
    bundle = put(producer, LARGE, 1)
    during_a_get(network, consumer, bundle)
    network.cut("storage")
    failed(consumer.finish(), "EngineError", "BundleNotFoundError", names=id_of(bundle))
    network.slow("consumer", None)
    failed(consumer("get", **bundle), "EngineError", "BundleNotFoundError", names=id_of(bundle))
    time.sleep(12)  # until the master has given it up
    failed(consumer("get", **bundle), "BundleNotFoundError", names=id_of(bundle))
    failed(producer("put", nbytes=SMALL, seed=2), "EngineFullError")
    network.mend("storage")
    second = {"ref": again(producer, "put", nbytes=LARGE, seed=3)["result"], "nbytes": LARGE, "seed": 3}
    assert consumer("get", **second)["result"]
    assert storage("get", **second)["result"]
    assert consumer("remove", ref=second["ref"])["result"]
    assert consumer("usage")["result"] == [0, 0]


@pytest.mark.parametrize("host", ["producer", "storage"])
def test_network_is_cut_during_a_put(network: Network, master: Process, host: str) -> None:
    Agent(network, "storage", segment="512mb", **QUICK)
    producer = Agent(network, "producer", segment=0, **QUICK)
    network.slow("storage", "100mbit")
    before = network.received("storage")
    producer.begin("put", nbytes=LARGE, seed=1)
    while network.received("storage") - before < 30 * MB:
        time.sleep(0.02)
    assert producer.process.waiting()
    network.cut(host)
    failed(producer.finish(), "EngineError", "EngineFullError", bound=PUT_BOUND)
    network.slow("storage", None)
    network.mend(host)
    again(producer, "put", nbytes=LARGE, seed=2)
    usage = producer("usage")["result"]
    assert usage[0] == 1
    assert usage[1] < LARGE + MB  # nothing of the first


def test_master_is_killed_and_another_started(network: Network, master: Process) -> None:
    Agent(network, "storage", segment="512mb", **QUICK)
    producer, consumer = (Agent(network, host, segment=0, **QUICK) for host in ("producer", "consumer"))
    bundle = put(producer, LARGE, 1)
    assert consumer("get", **bundle)["result"]
    master.kill()
    failed(consumer("get", **bundle), "EngineError", names=id_of(bundle))
    failed(producer("put", nbytes=SMALL, seed=2), "EngineError")
    failed(consumer("remove", ref=bundle["ref"]), "EngineError", names=id_of(bundle))
    failed(consumer("usage"), "EngineError")
    start_master(network)
    second = {"ref": again(producer, "put", nbytes=LARGE, seed=3)["result"], "nbytes": LARGE, "seed": 3}
    again(consumer, "get", **second)
    failed(consumer("get", **bundle), "BundleNotFoundError", names=id_of(bundle))
    third = {"ref": again(consumer, "put", nbytes=SMALL, seed=4)["result"], "nbytes": SMALL, "seed": 4}
    again(producer, "get", **third)
    assert consumer("held_are_same")["result"] == 2


def test_master_that_gives_no_answer(network: Network, master: Process) -> None:
    Agent(network, "storage", segment="512mb", **QUICK)
    consumer = Agent(network, "consumer", segment=0, **QUICK)
    bundle = put(consumer, SMALL, 1)
    master.signal(signal.SIGSTOP)
    failed(consumer("get", **bundle), "EngineError", names=id_of(bundle))
    failed(consumer("put", nbytes=SMALL, seed=2), "EngineError")
    master.signal(signal.SIGCONT)
    again(consumer, "put", nbytes=SMALL, seed=3)


def test_transfer_that_mooncake_gave_up_writes_to_no_other_bundle(network: Network, master: Process) -> None:
    """After 60 seconds its client gives up waiting for a slow transfer, which goes on all the same."""
    Agent(network, "storage", segment="256mb", **QUICK)
    producer = Agent(network, "producer", segment=0, **QUICK)
    slow = put(producer, LARGE, 1)
    consumer = Agent(network, "consumer", segment="256mb", **QUICK)
    near = put(consumer, 192 * MB, 2)  # fits the memory of the other, and there is no room for it elsewhere
    network.slow("consumer", "20mbit")
    answer = consumer("get", **slow)
    assert answer["error"] == "EngineError"
    assert answer["seconds"] < BOUND
    again(consumer, "get", **near)
    network.slow("consumer", None)
    time.sleep(8)
    assert consumer("held_are_same")["result"] == 1
    again(consumer, "get", **slow)
    assert consumer("held_are_same")["result"] == 2
