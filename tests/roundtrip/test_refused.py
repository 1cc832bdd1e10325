"""What can't be kept is refused at put, by path, and leaves nothing behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry.testing import assert_same

from . import cases  # noqa: F401  registers the classes
from .probe import bundles, files
from .refused import KEPT_OR_REFUSED, NOT_BATCHES, REFUSED


@pytest.fixture(scope="module")
def shm(shared_shm_directory: Path) -> Iterator[Any]:
    with rollferry.connect(f"shm://{shared_shm_directory}") as ferry:
        yield ferry


@pytest.fixture(scope="module")
def inproc() -> Iterator[Any]:
    with rollferry.connect("inproc://") as ferry:
        yield ferry


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_shm(case: str, shm: Any, shared_shm_directory: Path) -> None:
    make, path = REFUSED[case]
    before = files(shared_shm_directory)
    with pytest.raises(rollferry.UnsupportedValueError) as caught:
        shm.put(make())
    assert path in str(caught.value)
    assert files(shared_shm_directory) == before
    assert bundles(shared_shm_directory) == []


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_inproc(case: str, inproc: Any) -> None:
    make, path = REFUSED[case]
    with pytest.raises(rollferry.UnsupportedValueError) as caught:
        inproc.put(make())
    assert path in str(caught.value)


@pytest.mark.parametrize("case", KEPT_OR_REFUSED)
def test_kept_or_refused_but_never_altered(case: str, inproc: Any) -> None:
    make = KEPT_OR_REFUSED[case]
    try:
        ref = inproc.put(make())
    except rollferry.UnsupportedValueError:
        return
    assert_same(inproc.get(ref), make())


@pytest.mark.parametrize("case", NOT_BATCHES)
def test_only_batches_are_put(case: str, shm: Any, shared_shm_directory: Path) -> None:
    with pytest.raises(TypeError):
        shm.put(NOT_BATCHES[case]())
    assert bundles(shared_shm_directory) == []


def test_a_put_after_a_refused_one_works(shm: Any) -> None:
    with pytest.raises(rollferry.UnsupportedValueError):
        shm.put({"rows": [np.zeros(1000), object()]})
    ref = shm.put({"rows": [np.zeros(1000), None]})
    assert_same(shm.get(ref), {"rows": [np.zeros(1000), None]})
    shm.remove(ref)


def test_refused_batches_are_let_go(inproc: Any) -> None:
    """Neither the error nor the engine keeps the producer's arrays alive."""
    import gc
    import weakref

    class Watched(np.ndarray):
        pass

    array = np.zeros(1000)
    watch = weakref.ref(array)
    with pytest.raises(rollferry.UnsupportedValueError):
        inproc.put({"rows": [array, np.zeros(2).view(Watched)]})
    del array
    gc.collect()
    assert watch() is None
