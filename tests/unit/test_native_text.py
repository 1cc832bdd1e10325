"""text.c must do what its pure-Python twin does, touch no caller's string, and survive hostile offsets and handlers."""

import codecs
import gc
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollferry import _native
from tests.reference import text as twin

# Every code point, lone surrogates included.
STR = st.text(st.characters(codec="ascii")) | st.text(st.integers(0, sys.maxunicode).map(chr))
ITEMS = {"str": STR, "bytes": st.binary(), "bytearray": st.binary().map(bytearray)}
KIND_AND_LIST = st.sampled_from(sorted(ITEMS)).flatmap(lambda kind: st.tuples(st.just(kind), st.lists(ITEMS[kind])))


def gathered(spans: Any) -> bytes:
    dest = bytearray(spans.nbytes)
    spans.gather(dest, 0, 1)
    return bytes(dest)


def as_int64(values: list[int]) -> Any:
    return np.array(values, np.int64)


@given(KIND_AND_LIST, st.data())
@example(("str", ["", "\0", "\x7f", "\x80", "\ud800", "\udfff\ud800", "é", "\U0010ffff"]), None)
def test_every_list_scans_and_comes_back(kind_and_list: tuple[Any, list[Any]], data: Any) -> None:
    kind, values = kind_and_list
    spans, offsets = _native.text_scan(values)
    payload, expected = twin.text_scan(values)
    assert gathered(spans) == payload

    assert offsets.dtype == np.int64
    assert offsets.tolist() == expected
    back = _native.text_list(payload, offsets, kind)
    assert back == values == twin.text_list(payload, expected, kind)
    assert [type(item) for item in back] == [type(item) for item in values]
    cuts = data.draw(st.lists(st.integers(0, len(values)))) if data else [2, 2, 5]
    cuts = [0, *sorted(cuts), len(values)]
    for row_type in (list, tuple):
        rows = _native.text_rows(payload, offsets, as_int64(cuts), kind, row_type)
        assert rows == twin.text_rows(payload, expected, cuts, kind, row_type)
        assert {type(row) for row in rows} == {row_type}


def test_no_encoded_copy_stays_inside_a_string() -> None:
    for text in ("x" * 1000, "é" * 1000, "\ud800" * 1000):
        text = text + "y"
        before = sys.getsizeof(text)
        _native.text_scan([text])
        assert sys.getsizeof(text) == before


def test_sources_are_kept_alive_and_locked() -> None:
    values: list[Any] = [bytearray(b"abc"), bytearray()]
    spans, _ = _native.text_scan(values)
    with pytest.raises(BufferError):
        values[0].append(1)
    values[1].append(1)
    del spans
    values[0].append(1)
    strings = ["".join(("a", str(i))) for i in range(9)]
    spans, _ = _native.text_scan(strings)
    strings.clear()
    gc.collect()
    assert gathered(spans) == b"a0a1a2a3a4a5a6a7a8"


class Str(str):
    pass


@pytest.mark.parametrize(
    "values", [[1], ["a", b"a"], [b"a", bytearray(b"a")], [Str("a")], ["a", Str("a")], [None], ("a",)]
)
def test_scan_refuses_other_and_mixed_types(values: Any) -> None:
    with pytest.raises(TypeError):
        _native.text_scan(values)


@pytest.mark.parametrize("data", [b"\xff", b"\xc3", b"a\xed\xa0", b"\xf4\x90\x80\x80", b"\xc0\x80"])
def test_invalid_utf8(data: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        _native.text_list(data, as_int64([0, len(data)]), "str")
    with pytest.raises(UnicodeDecodeError):
        _native.text_rows(b"ok" + data, as_int64([0, 2, 2 + len(data)]), as_int64([0, 1, 2]), "str", tuple)
    assert gc.isenabled()


HOSTILE = [[], [0], [1, 4], [0, 5], [0, 3, 2, 4], [0, -1, 4], [0, 1 << 62, 4], [-(1 << 63), 4], [0, 4, 4, 3]]


@pytest.mark.parametrize("offsets", [*map(as_int64, HOSTILE), None, [0, 4], np.array([0, 4], "<i4")])
@pytest.mark.parametrize("kind", sorted(ITEMS))
def test_hostile_offsets(offsets: Any, kind: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        _native.text_list(b"abcd", offsets, kind)
    with pytest.raises((ValueError, TypeError)):
        _native.text_rows(b"abcd", offsets, as_int64([0, 1]), kind, list)
    with pytest.raises((ValueError, TypeError)):
        _native.text_rows(b"abcd", as_int64([0, 1, 2, 3, 4]), offsets, kind, list)


@pytest.mark.parametrize("kind", ["", "Str", "é" * 40, "memoryview"])
def test_unknown_kinds(kind: Any) -> None:
    with pytest.raises(ValueError, match="kind"):
        _native.text_list(b"", as_int64([0]), kind)


@pytest.mark.parametrize("row_type", [set, None, Str, "list"])
def test_row_type_is_list_or_tuple(row_type: Any) -> None:
    with pytest.raises(TypeError):
        _native.text_rows(b"ab", as_int64([0, 1, 2]), as_int64([0, 2]), "bytes", row_type)


@pytest.mark.parametrize("which", ["offsets", "cuts"])
def test_an_error_handler_that_writes_to_the_offsets(which: str) -> None:
    arrays = {"offsets": as_int64([0, 3, 6, 7]), "cuts": as_int64([0, 1, 2, 3])}
    original = codecs.lookup_error("surrogatepass")

    def handler(error: UnicodeError) -> tuple[str | bytes, int]:
        arrays[which][2:] = 1 << 40
        return original(error)

    codecs.register_error("surrogatepass", handler)
    try:
        with pytest.raises(ValueError, match="changed"):
            _native.text_rows("\ud800\ud801x".encode("utf-8", "surrogatepass"), *arrays.values(), "str", list)
    finally:
        codecs.register_error("surrogatepass", original)


def test_nothing_leaks() -> None:
    strings, raw, arrays = ["ab" * 20, "é" * 20, ""], [b"xyz" * 9], [bytearray(b"abc")]
    cuts = as_int64([0, 1, 1, 3])
    counted = (*strings[:2], raw[0], arrays[0], strings, raw, arrays, cuts)

    def work() -> None:
        for values in (strings, raw, arrays):
            spans, offsets = _native.text_scan(values)
            _native.text_list(gathered(spans), offsets, type(values[0]).__name__)
        _native.text_rows(b"abc", as_int64([0, 1, 2, 3]), cuts, "bytes", tuple)
        with pytest.raises(TypeError):
            _native.text_scan([strings[0], raw[0]])
        with pytest.raises(UnicodeDecodeError):
            _native.text_rows(b"ab\xff", as_int64([0, 1, 2, 3]), cuts, "str", list)

    work()
    before = [sys.getrefcount(item) for item in counted]
    for _ in range(200):
        work()
    assert [sys.getrefcount(item) for item in counted] == before
