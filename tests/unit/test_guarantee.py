"""Bytes of the engine that are kept for a namespace."""

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry import EngineError, EngineFullError
from rollferry.testing import assert_same

MB = 1 << 20


def batch(nbytes: int, fill: int = 1) -> dict[str, Any]:
    return {"a": np.full(nbytes, fill, np.uint8)}


def burst(ferry: rollferry.Ferry, nbytes: int = MB) -> list[rollferry.TransferRef]:
    """Put as much as there is room for."""
    refs = []
    with pytest.raises(EngineFullError):
        while len(refs) < 100:
            refs.append(ferry.put(batch(nbytes)))
    return refs


@pytest.fixture(params=["shm", "inproc"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "shm":
        return f"shm://{request.getfixturevalue('small')}"
    return f"inproc://{secrets.token_hex(8)}?capacity=8mb"


def test_a_burst_leaves_what_is_guaranteed_to_others(url: str) -> None:
    with (
        rollferry.connect(url, namespace="train", guarantee="3.5mb") as train,
        rollferry.connect(url, namespace="burst") as other,
    ):
        refs = burst(other)
        assert len(refs) in (3, 4)
        own = [train.put(batch(MB, n)) for n in range(3)]
        for number, ref in enumerate(own):
            assert_same(train.get(ref), batch(MB, number))
        with pytest.raises(EngineFullError):
            other.put(batch(MB))
        for ref in own:  # what it no longer takes is kept for it again, also what lies in the pool
            train.remove(ref)
        with pytest.raises(EngineFullError, match="guaranteed|free"):
            other.put(batch(MB))
        own = [train.put(batch(MB, n)) for n in range(3)]
    with rollferry.connect(url, namespace="burst") as other:  # it ended with the Ferry that asked for it
        for ref in own:
            assert other._engine.remove(ref.key)
        assert len(burst(other)) >= 3
        assert other.usage().namespaces["burst"].guaranteed_nbytes == 0


def test_more_than_there_is_can_not_be_guaranteed(url: str) -> None:
    with rollferry.connect(url, guarantee="4mb"):
        with pytest.raises(EngineFullError, match=r"'b'.* left"):
            rollferry.connect(url, namespace="b", guarantee="6mb")
        with rollferry.connect(url, namespace="b", guarantee="2mb") as b:
            held = b.usage().namespaces
            assert (held["default"].guaranteed_nbytes, held["b"].guaranteed_nbytes) == (4 * MB, 2 * MB)
    with pytest.raises(ValueError, match="guarantee"):
        rollferry.connect(url, guarantee=0)


def test_inproc_without_a_capacity_has_nothing_to_guarantee() -> None:
    with pytest.raises(EngineError, match="capacity"):
        rollferry.connect("inproc://unbounded", guarantee=1)


@pytest.mark.parametrize("full", ["block", "evict-oldest"])
def test_who_finds_no_room_beside_a_guarantee_does_as_told(full: Any, url: str) -> None:
    with (
        rollferry.connect(url, namespace="train", guarantee="4mb"),
        rollferry.connect(url, namespace="other", full=full, patience=20) as other,
    ):
        refs = [other.put(batch(MB, n)) for n in range(3)]
        put: list[rollferry.TransferRef] = []
        thread = threading.Thread(target=lambda: put.append(other.put(batch(MB, 9))))
        thread.start()
        if full == "block":
            time.sleep(0.1)
            assert put == []
            other.remove(refs[0])
        thread.join(20)
        assert set(other.list()) == {ref.id for ref in (*refs[1:], *put)}
        assert_same(other.get(put[0]), batch(MB, 9))


# ---- processes -------------------------------------------------------------------------------------------------------

HOLD = """
import sys, rollferry
ferry = rollferry.connect(sys.argv[1], namespace="train", guarantee=sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_guarantee_of_a_killed_process_ends(small: Path, start: Callable[..., Any]) -> None:
    url = f"shm://{small}"
    with rollferry.connect(url, namespace="burst") as ferry:
        child = start(HOLD, url, "6mb")
        with pytest.raises(EngineFullError, match="guaranteed"):
            ferry.put(batch(4 * MB))
        assert ferry.usage().namespaces["train"].guaranteed_nbytes == 6 * MB
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert_same(ferry.get(ferry.put(batch(4 * MB))), batch(4 * MB))
        assert [path.name for path in (small / "guarantees").iterdir()] == ["lock"]


def test_a_child_of_a_fork_neither_keeps_nor_ends_it(small: Path) -> None:
    url = f"shm://{small}"
    with rollferry.connect(url, namespace="burst") as other:
        ferry = rollferry.connect(url, namespace="train", guarantee="6mb")
        pids = [os.fork() for _ in range(2)]
        if 0 in pids:
            if pids[0] == 0:
                ferry.close()
                os._exit(0)
            time.sleep(5)
            os._exit(0)
        os.waitpid(pids[0], 0)
        with pytest.raises(EngineFullError):
            other.put(batch(4 * MB))
        ferry.close()
        other.put(batch(4 * MB))
        os.kill(pids[1], signal.SIGKILL)
        os.waitpid(pids[1], 0)


BURST = """
import sys, numpy as np, rollferry
ferry = rollferry.connect(sys.argv[1], namespace=sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
done = refused = 0
held = []
for number in range(300):
    try:
        held.append(ferry.put({"a": np.full(300_000 + 1000 * (number % 50), 1, np.uint8)}))
        done += 1
    except rollferry.EngineFullError:
        refused += 1
        for ref in held[::2]:
            ferry.remove(ref)
        held = held[1::2]
print(done, refused, flush=True)
"""


def test_bursts_of_several_processes_never_take_it(small: Path, start: Callable[..., Any]) -> None:
    """Its owner puts and removes all the while, and always finds room."""
    url = f"shm://{small}?pool=2mb"
    with rollferry.connect(url, namespace="train", guarantee="3mb") as train:
        children = [start(BURST, url, f"burst{number % 2}") for number in range(3)]
        for child in children:
            child.stdin.write("\n")
            child.stdin.flush()
        rounds = 0
        while any(child.poll() is None for child in children):
            refs = [train.put(batch(600_000, rounds % 256)) for _ in range(4)]
            assert_same(train.get(refs[3]), batch(600_000, rounds % 256))
            for ref in refs:
                train.remove(ref)
            rounds += 1
        for child in children:
            done, refused = map(int, child.communicate()[0].split())
            assert child.returncode == 0
            assert done > 10
            assert refused > 0
        assert rounds > 5
    assert [path.name for path in (small / "guarantees").iterdir()] == ["lock"]
