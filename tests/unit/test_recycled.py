"""RecycledMemory never lends what somebody still looks at."""

import gc
import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollferry.memory.recycled import RecycledMemory, rounded


@given(st.lists(st.tuples(st.integers(1, 300_000), st.booleans()), max_size=30))
def test_what_is_held_is_never_lent_again(steps: list[tuple[int, bool]]) -> None:
    memory = RecycledMemory(1 << 20)
    held = []
    for number, (nbytes, kept) in enumerate(steps):
        lent = memory.lend(nbytes)
        assert len(lent) == nbytes
        lent[:] = number % 251
        if kept:
            held.append((lent[nbytes // 2 :], number % 251))  # a view keeps it
        del lent
    for view, value in held:
        assert (view == value).all()
    assert memory.nbytes <= 1 << 20


def test_memory_comes_back_and_is_lent_again() -> None:
    memory = RecycledMemory(1 << 24)
    lent = memory.lend(1 << 20)
    address = lent.ctypes.data
    assert memory.nbytes == 0
    del lent
    gc.collect()
    assert memory.nbytes == rounded(1 << 20)
    assert memory.lend(1 << 20).ctypes.data == address
    memory.clear()
    assert memory.nbytes == 0


def test_threads() -> None:
    memory = RecycledMemory(1 << 22)

    def work(value: int) -> None:
        for _ in range(200):
            lent = memory.lend(100_000)
            lent[:] = value
            assert (np.asarray(lent) == value).all()

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < memory.nbytes <= 1 << 22
