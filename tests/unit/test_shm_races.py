"""shm:// in the worst moments: others look, close or fork between two steps."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry import FerryClosedError
from rollferry.engines.shm import descriptors
from rollferry.engines.shm.reader import ShmReader
from rollferry.engines.shm.writer import ShmWriter

MB = 1 << 20


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_who_sweeps_does_not_hide_a_bundle_published_meanwhile(
    ferry: rollferry.Ferry, shm_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweeper has opened a segment in tmp/; its writer publishes it; the sweeper goes on; a reader comes."""
    ferry.remove(ferry.put({"a": np.ones(MB, np.uint8)}))
    publish, open_file, names = ShmWriter.publish, descriptors.open_file, descriptors.names
    steps = []

    def publish_under_a_sweep(writer: ShmWriter, manifest: bytes) -> None:
        def open_then_publish(path: Any, flags: int) -> int | None:
            fd = open_file(path, flags)
            if Path(path).parent.name == "tmp":
                publish(writer, manifest)
                steps.append("published")
            return fd

        def read_then_name(path: Path, fd: int) -> bool:
            monkeypatch.setattr(descriptors, "names", names)
            ShmReader(writer._directory, writer._key).close()
            steps.append("read")
            return names(path, fd)

        monkeypatch.setattr(descriptors, "open_file", open_then_publish)
        monkeypatch.setattr(descriptors, "names", read_then_name)
        writer._pool.sweep()

    monkeypatch.setattr(ShmWriter, "publish", publish_under_a_sweep)
    ref = ferry.put({"a": np.full(MB, 5, np.uint8)})
    monkeypatch.undo()
    assert steps == ["published", "read"]
    assert (ferry.get(ref)["a"] == 5).all()
    assert ferry.usage().pooled_nbytes == 0


def test_closing_while_others_put(shm_directory: Path, restless: None) -> None:
    url = f"shm://{shm_directory}"
    errors = []

    def work(ferry: rollferry.Ferry) -> None:
        number = 0
        try:
            while True:
                number += 1
                value = np.full(2000 + number % 50 * 4096, number % 250, np.uint8)
                ref = ferry.put({"a": value})
                assert np.array_equal(ferry.get(ref)["a"], value)
                ferry.remove(ref)
        except FerryClosedError:
            pass
        except BaseException as error:
            errors.append(error)

    for _ in range(40):
        ferry = rollferry.connect(url)
        threads = [threading.Thread(target=work, args=(ferry,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            ferry.put({"a": 1})
        try:
            ferry.close()
        except BaseException as error:
            errors.append(error)
        for thread in threads:
            thread.join()
    assert errors == []


def test_threads_that_switch_all_the_time(ferry: rollferry.Ferry, restless: None) -> None:
    """put, get and remove of own and shared bundles: always whole, never lost, nothing left."""
    errors = []
    shared: list[Any] = [ferry.put({"a": np.full(3000, 1, np.uint8)})]

    def work(number: int) -> None:
        try:
            for step in range(150):
                value = np.full(1000 + step * 97 % 30_000, number * 20 + step % 20, np.uint8)
                ref = ferry.put({"a": value})
                assert np.array_equal(ferry.get(ref)["a"], value)
                shared.append(ref)
                old = shared.pop(0)
                result = ferry.get(old)["a"]
                assert ferry.remove(old)
                assert (result == result[0]).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert ferry.list() == [ref.id for ref in shared]


def test_every_step_of_a_put_may_fail(
    ferry: rollferry.Ferry, stored: Callable[[str], dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing system call anywhere: an error, nothing visible, nothing left, and the next put works."""
    import os

    for recycled in (False, True):
        for call in ("link", "rename", "ftruncate"):
            real = getattr(os, call)

            def failing(*arguments: Any, real: Any = real, **options: Any) -> Any:
                if call == "rename" and "/live/" not in str(arguments[1]):
                    return real(*arguments, **options)
                raise OSError(5, "Input/output error")

            if recycled:
                ferry.remove(ferry.put({"a": np.ones(MB, np.uint8)}))
            monkeypatch.setattr(os, call, failing)
            try:
                ferry.remove(ferry.put({"a": np.ones(MB, np.uint8)}))
            except rollferry.EngineError as error:
                assert "Input/output" in str(error)
            monkeypatch.undo()
            assert (stored("live"), stored("tmp"), ferry.list()) == ({}, {}, [])
            ref = ferry.put({"a": np.full(MB, 3, np.uint8)})
            assert (ferry.get(ref)["a"] == 3).all()
            ferry.remove(ref)
