"""Pieces of a payload: what they cover, where they lie, and how chunks cut them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollferry.memory.leases import allocate
from rollferry.memory.pieces import Pieces

SIZE = 3000
PAYLOAD = np.frombuffer(np.random.default_rng(0).bytes(SIZE), np.uint8)


@st.composite
def wanted(draw: st.DrawFn) -> list[tuple[int, int]]:
    offsets = draw(st.lists(st.integers(0, SIZE), max_size=12))
    return [(offset, draw(st.integers(0, min(SIZE - offset, 300)))) for offset in offsets]


@given(ranges=wanted(), near=st.sampled_from([0, 1, 63, 500]), chunk=st.sampled_from([64, 100, 1024, SIZE]))
def test_ranges_come_from_their_pieces(ranges: list[tuple[int, int]], near: int, chunk: int) -> None:
    pieces = Pieces.of(ranges, near)
    memory = allocate(pieces.nbytes)
    for number, offset, nbytes, place in pieces.cut(chunk):
        assert 0 < nbytes <= chunk - offset
        start = number * chunk + offset
        memory[place : place + nbytes] = PAYLOAD[start : start + nbytes]
    views = pieces.views(memory, ranges)
    assert [view.tobytes() for view in views] == [PAYLOAD[start : start + n].tobytes() for start, n in ranges]
    for (start, nbytes), view in zip(ranges, views, strict=True):
        assert not nbytes or view.ctypes.data % 64 == start % 64


@given(ranges=wanted(), near=st.sampled_from([0, 1, 63, 500]))
def test_pieces_hold_what_is_near_and_no_more(ranges: list[tuple[int, int]], near: int) -> None:
    covered = np.zeros(SIZE, bool)
    for start, nbytes in ranges:
        covered[start : start + nbytes] = True
    places = np.flatnonzero(covered)
    for low, high in zip(places[:-1].tolist(), places[1:].tolist(), strict=True):
        if high - low - 1 <= near:
            covered[low:high] = True
    found = np.zeros(SIZE, bool)
    end = place_end = 0
    for start, stop, place in Pieces.of(ranges, near):
        assert end <= start < stop
        assert place_end <= place
        found[start:stop] = True
        end, place_end = stop, place + stop - start
    assert (found == covered).all()
    assert place_end <= Pieces.of(ranges, near).nbytes


def test_whole() -> None:
    whole = Pieces.whole(1000)
    assert list(whole) == [(0, 1000, 0)]
    assert list(whole.cut(400)) == [(0, 0, 400, 0), (1, 0, 400, 400), (2, 0, 200, 800)]
    assert Pieces.whole(0).nbytes == Pieces.of([], 0).nbytes == Pieces.of([(7, 0)], 0).nbytes == 0
