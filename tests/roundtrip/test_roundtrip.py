"""Every case through put, a JSON reference, and get: in another process for shm, in this one for inproc."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollferry
from rollferry.testing import assert_same, differences

from .cases import CASES
from .probe import bundles, scribble
from .reader import TESTS, Reader, check


@pytest.fixture(scope="module")
def url(shared_shm_directory: Path) -> str:
    return f"shm://{shared_shm_directory}"


@pytest.fixture(scope="module")
def shm(url: str) -> Iterator[Any]:
    with rollferry.connect(url) as ferry:
        yield ferry


@pytest.fixture(scope="module")
def inproc() -> Iterator[Any]:
    with rollferry.connect("inproc://") as ferry:
        yield ferry


@pytest.fixture(scope="module")
def readers() -> Iterator[list[Reader]]:
    found: list[Reader] = []
    yield found
    for reader in found:
        reader.close()


@pytest.fixture
def reader(readers: list[Reader]) -> Reader:
    if not readers or not readers[-1].alive():
        readers.append(Reader())
    return readers[-1]


def test_there_are_cases_enough() -> None:
    assert len(CASES) >= 150


@pytest.mark.parametrize("case", CASES)
def test_factories_are_deterministic(case: str) -> None:
    assert_same(CASES[case](), CASES[case]())


@pytest.mark.parametrize("case", CASES)
def test_shm_to_another_process(case: str, shm: Any, url: str, reader: Reader, shared_shm_directory: Path) -> None:
    batch = CASES[case]()
    ref = shm.put(batch)
    assert differences(batch, CASES[case]()) == [], "put changed the producer's batch"
    scribble(batch)
    text = ref.to_json()
    assert len(text) < 1024
    problems = reader.problems(url, text, case)
    assert shm.remove(text) is True
    assert problems == []
    assert shm.remove(text) is False
    with pytest.raises(rollferry.BundleNotFoundError):
        shm.get(ref)
    assert bundles(shared_shm_directory) == []


@pytest.mark.parametrize("case", CASES)
def test_inproc(case: str, inproc: Any) -> None:
    batch = CASES[case]()
    ref = inproc.put(batch)
    scribble(batch)
    text = ref.to_json()
    problems = check(inproc, text, case)
    assert inproc.remove(ref) is True
    assert problems == []
    with pytest.raises(rollferry.BundleNotFoundError):
        inproc.get(text)


@pytest.mark.parametrize("case", CASES)
def test_checksums_hold(case: str, url: str) -> None:
    """A full check of the payload passes, and two puts of one batch store as many bytes."""
    with rollferry.connect(url, checksum=True) as checked:
        first, second = checked.put(CASES[case]()), checked.put(CASES[case]())
        try:
            assert first.id != second.id
            assert first.nbytes == second.nbytes
            assert_same(checked.get(first, verify="full"), CASES[case]())
        finally:
            checked.remove(first)
            checked.remove(second)


def test_all_cases_as_one_batch(shm: Any) -> None:
    """Layouts beside each other do not disturb each other."""
    ref = shm.put({case: make() for case, make in CASES.items()})
    result = shm.get(ref)
    shm.remove(ref)
    assert_same(result, {case: make() for case, make in CASES.items()})


def test_all_cases_as_rows(shm: Any) -> None:
    """What holds for fields holds inside a list."""
    ref = shm.put({"rows": [make() for make in CASES.values()]})
    result = shm.get(ref)
    shm.remove(ref)
    assert_same(result, {"rows": [make() for make in CASES.values()]})


BOTTOMLESS = """
import rollferry
from rollferry.testing import assert_same
def nest(make, depth):
    value = 1
    for _ in range(depth):
        value = make(value)
    return value
makes = {"list": lambda v: [v], "dict": lambda v: {"k": v}, "tuple": lambda v: (v,), "mixed": lambda v: [{"k": (v,)}]}
with rollferry.connect("inproc://") as ferry:
    for depth in (30, 90, 110, 990, 3_000, 100_000):
        for name, make in makes.items():
            batch = {"m": nest(make, depth)}
            try:
                ref = ferry.put(batch)
            except rollferry.UnsupportedValueError:
                assert depth > (30 if name == "mixed" else 90), (name, depth)
                continue
            assert_same(ferry.get(ref), batch)
import os
os._exit(0)
"""


def test_bottomless_values_are_kept_or_refused() -> None:
    """Never a RecursionError, never a crash; in a process of its own, which a crash would end."""
    done = subprocess.run([sys.executable, "-c", BOTTOMLESS], cwd=TESTS, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
