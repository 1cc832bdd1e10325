"""Every engine keeps the contract, also where it lends memory in small pieces."""

import secrets
from pathlib import Path

import numpy as np
import pytest

import rollferry
from rollferry.bundle.publish import Terms
from rollferry.engines.base import Engine
from rollferry.engines.registry import open_engine
from rollferry.errors import EngineError
from rollferry.testing.contracts import EngineContract, FaultyEngine


class TestShm(EngineContract):
    @pytest.fixture
    def url(self, shm_directory: Path) -> str:
        return f"shm://{shm_directory}"


class TestShmWithoutPool(EngineContract):
    @pytest.fixture
    def url(self, shm_directory: Path) -> str:
        return f"shm://{shm_directory}?pool=0"


class TestInprocess(EngineContract):
    slack = 1000

    @pytest.fixture(params=["1tb", "64", "1", "100"])
    def url(self, request: pytest.FixtureRequest) -> str:
        return f"inproc://{secrets.token_hex(8)}?chunk={request.param}&capacity=64mb"

    def test_several_chunks(self) -> None:
        with rollferry.connect("inproc://?chunk=64") as ferry:
            ref = ferry.put({"rows": [np.arange(100, dtype=np.uint8)]})
            assert ferry.get(ref)["rows"][0].tolist() == list(range(100))
            ferry.remove(ref)


def test_first_error_is_raised(shm_directory: Path) -> None:
    engine: Engine = FaultyEngine(open_engine(f"shm://{shm_directory}"), publish=1, abort=1)
    ferry = rollferry.Ferry(engine, Terms(namespace="contract"))
    with pytest.raises(EngineError, match="publish fails on purpose"):
        ferry.put({"field": 1})
    assert engine.list() == []
