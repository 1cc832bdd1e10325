"""Native functions read each offset once: another process writes to the offsets all the while."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rollferry import _native

ROWS = 20_000
WIDTH = 3
ROUNDS = 150


@pytest.fixture
def unsteady() -> Iterator[Callable[[Any], Any]]:
    """A function that gives numbers in memory in which a child process replaces them by others, and puts them back."""
    children = []

    def shared(right: Any) -> Any:
        memory = np.frombuffer(_shared_memory(right.nbytes), np.int64).reshape(right.shape)
        memory[:] = right
        child = os.fork()
        if child == 0:
            flat, back, bad = memory.reshape(-1), right.reshape(-1), [-1, 0, 1 << 20, 1 << 40, -(1 << 62)]
            step = 0
            while True:
                step += 1
                start = 1 + (step * 7919) % (len(flat) - 2)
                flat[start : start + 1 + step % 500] = bad[step % len(bad)]
                flat[:] = back
        children.append(child)
        return memory

    yield shared
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _shared_memory(nbytes: int) -> Any:
    """Memory that a forked child shares."""
    fd = os.memfd_create("rollferry-test")
    os.ftruncate(fd, nbytes)
    lease = _native.map_shared(fd, nbytes)
    os.close(fd)
    return lease


def offsets() -> Any:
    return np.arange(ROWS + 1, dtype=np.int64) * WIDTH


def check_views(rows: list[Any], values: Any) -> None:
    first, last = values.ctypes.data, values.ctypes.data + values.nbytes
    for row in rows:
        start = row.__array_interface__["data"][0]
        assert first <= start <= start + row.nbytes <= last, "a row lies outside of the values"


def attempts(read: Callable[[], Any], check: Callable[[Any], None]) -> None:
    """Read again and again; it has to be noticed sometimes, and never to give what isn't there."""
    refused = 0
    for _ in range(ROUNDS):
        try:
            found = read()
        except ValueError:
            refused += 1
        else:
            check(found)
    assert refused


def test_split_rows(unsteady: Any) -> None:
    values, cuts = np.zeros((ROWS * WIDTH, 2), np.int16), unsteady(offsets())
    attempts(lambda: _native.split_rows(values, cuts), lambda rows: check_views(rows, values))


def test_split_shapes(unsteady: Any) -> None:
    values = np.zeros(ROWS * WIDTH * 2, np.int16)
    shapes = unsteady(np.tile(np.array([WIDTH, 2], np.int64), (ROWS, 1)))
    attempts(lambda: _native.split_shapes(values, shapes), lambda rows: check_views(rows, values))


@pytest.mark.parametrize("row_type", [list, tuple])
def test_group_rows(row_type: type, unsteady: Any) -> None:
    items, cuts = [1] * (ROWS * WIDTH), unsteady(offsets())
    attempts(lambda: _native.group_rows(items, cuts, row_type), lambda rows: None)


def test_number_rows(unsteady: Any) -> None:
    values, cuts = np.full(ROWS * WIDTH, 7, np.int32), unsteady(offsets())

    def check(rows: list[Any]) -> None:
        assert {number for row in rows for number in row} <= {7}

    attempts(lambda: _native.number_rows(values, "<i4", "int", cuts, list), check)


@pytest.mark.parametrize("kind", ["str", "bytes", "bytearray"])
def test_texts(kind: Any, unsteady: Any) -> None:
    data, cuts = b"x" * (ROWS * WIDTH), unsteady(offsets())
    item = {"str": str, "bytes": bytes, "bytearray": bytearray}[kind]

    def check(rows: list[Any]) -> None:
        assert all(type(text) is item and set(text) <= {"x", ord("x")} for text in rows)

    attempts(lambda: _native.text_list(data, cuts, kind), check)
    steady, groups = offsets(), unsteady(np.arange(ROWS + 1, dtype=np.int64))
    attempts(
        lambda: _native.text_rows(data, steady, groups, kind, list),
        lambda rows: check([item for row in rows for item in row]),
    )


def test_a_str_is_made_of_one_reading(unsteady: Any) -> None:
    """CPython takes text for ASCII that was it a moment ago, if it may."""
    right = np.frombuffer(b"x" * 8 * ROWS, np.int64)
    data = unsteady(right)
    cuts = np.array([0, 8 * ROWS], np.int64)
    for _ in range(ROUNDS):
        try:
            [text] = _native.text_list(data, cuts, "str")
        except ValueError:  # UnicodeDecodeError
            continue
        assert not text.isascii() or max(text) < "\x80"
