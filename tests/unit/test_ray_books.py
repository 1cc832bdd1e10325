"""The accounts of the registry of ray://, without Ray."""

import pytest

from rollferry.engines.ray import books as module
from rollferry.engines.ray.books import Books
from rollferry.errors import EngineFullError


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0)
    return set()


@pytest.fixture
def books(dead: set[bytes]) -> Books:
    return Books(lambda: 100, dead.__contains__)


def test_a_guarantee_ends_with_its_holder(books: Books, dead: set[bytes]) -> None:
    books.guarantee("g", "one", 60, b"holder")
    with pytest.raises(EngineFullError, match=r"two\.a") as caught:
        books.begin("two.a", 41, b"putter")
    assert (caught.value.needed, caught.value.free) == (41, 40)
    dead.add(b"holder")
    books.begin("two.a", 41, b"putter")
    assert books.held().guaranteed == {}


def test_what_a_dead_producer_had_set_aside_is_free(books: Books, dead: set[bytes]) -> None:
    books.guarantee("g", "one", 50, b"holder")
    books.begin("two.a", 50, b"putter")
    assert books.reserve("two.a", 50, 60, b"putter", queue=False)
    assert not books.reserve("two.b", 50, 60, b"other", queue=False)
    with pytest.raises(EngineFullError):
        books.publish("two.b", 1)
    dead.add(b"putter")
    assert books.reserve("two.b", 50, 60, b"other", queue=False)
    books.publish("two.b", 50)
    assert books.held() == ({"two.b": 50}, {"two": 50}, {"one": 50}, 50)


def test_peaks_stay(books: Books) -> None:
    for key in ("one.a", "one.b", "two.a"):
        books.publish(key, 10)
    books.remove("one.a")
    assert books.held() == ({"one.b": 10, "two.a": 10}, {"one": 20, "two": 10}, {}, 80)
