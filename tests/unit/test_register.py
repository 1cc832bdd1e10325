"""Registered classes, and pickling."""

import enum
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import rollferry
from rollferry import BundleError, UnsupportedValueError, register
from rollferry.layouts import optional
from rollferry.layouts.tree import registered
from rollferry.testing import assert_same


class Point(NamedTuple):
    x: float
    y: Any = None


Pair = namedtuple("Pair", "left right")  # noqa: PYI024


@dataclass
class Sample:
    tokens: Any
    note: str = ""
    derived: int = field(init=False, default=-1)

    def __post_init__(self) -> None:
        self.derived = len(self.tokens)


@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: Any = ()

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("negative")


class Color(enum.Enum):
    RED = "r"
    GREEN = ("g", 2)
    ROUGE = "r"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = 1
    B = 2
    C = 4


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Plain and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Registrations end with the test."""
    for package in optional.MODULES:  # what they register stays
        optional.load(package)
    saved = dict(registered.BY_CLASS), dict(registered.BY_NAME)
    yield
    for table, before in zip((registered.BY_CLASS, registered.BY_NAME), saved, strict=True):
        table.clear()
        table.update(before)


DEFAULT_FORMS: list[Any] = [
    Point(1.5, [1]),
    Pair("l", Pair(1, None)),
    Sample([1, 2], "n"),
    Frozen(1, (Frozen(2),)),
    Color.RED,
    Color.GREEN,
    Color.ROUGE,
    Level.HIGH,
    Flags.A,
    Flags.A | Flags.C,
    Flags(0),
]


@pytest.mark.parametrize("value", DEFAULT_FORMS, ids=repr)
def test_default_forms(value: Any, ferry: rollferry.Ferry) -> None:
    with pytest.raises(UnsupportedValueError, match="register"):
        ferry.put({"x": value})
    assert register(type(value)) is type(value)
    batch = {"x": value, "list": [value, None, value], "nested": {"deep": [(value,)]}}
    result = ferry.get(ferry.put(batch))
    assert result == batch
    assert type(result["x"]) is type(value)
    assert type(result["list"][2]) is type(value)
    if isinstance(value, enum.Enum) and not isinstance(value, enum.Flag):
        assert result["x"] is value


def test_a_dataclass_is_rebuilt_as_it_was_without_its_init(ferry: rollferry.Ferry) -> None:
    register(Sample)
    register(Frozen)
    sample = Sample(np.arange(3))
    sample.derived = 77
    negative = Frozen(1)
    object.__setattr__(negative, "a", -5)
    result = ferry.get(ferry.put({"s": sample, "f": negative}))
    assert_same(result["s"].tokens, np.arange(3))
    assert (result["s"].derived, result["f"].a) == (77, -5)
    sample.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedValueError, match=r"^samples\[1\]: .*extra"):
        ferry.put({"samples": [Sample([1]), sample]})
    assert len(ferry.list()) == 1


def test_encode_and_decode(ferry: rollferry.Ferry) -> None:
    register(OrderedDict, encode=lambda value: list(value.items()), decode=OrderedDict)
    register(Counter, encode=dict, decode=Counter)
    register(Plain, name="plain", encode=lambda value: value.value, decode=Plain)
    batch = {
        "o": OrderedDict(b=[1], a=OrderedDict()),
        "c": [Counter("aab"), Counter()],
        "p": [Plain(np.arange(3).tolist()), Plain(Plain(None))],
    }
    result = ferry.get(ferry.put(batch))
    assert result == batch
    assert [type(value) for value in (result["o"], result["o"]["a"], result["c"][1])] == [
        OrderedDict,
        OrderedDict,
        Counter,
    ]
    assert list(result["o"]) == ["b", "a"]


def test_failing_encode_and_decode(ferry: rollferry.Ferry) -> None:
    register(Plain, encode=lambda value: 1 / value.value, decode=lambda part: 1 / (part - 1))
    with pytest.raises(UnsupportedValueError, match=r"^a\[1\]: .*ZeroDivisionError"):
        ferry.put({"a": [Plain(2), Plain(0)]})
    ref = ferry.put({"a": [Plain(1)]})
    with pytest.raises(BundleError, match="division"):
        ferry.get(ref)
    register(Plain, encode=lambda value: object(), decode=Plain)
    with pytest.raises(UnsupportedValueError, match="object"):
        ferry.put({"a": Plain(1)})


def test_registration_mistakes() -> None:
    for cls in (dict, list, int, np.ndarray, complex, set):
        with pytest.raises(ValueError, match="without registration"):
            register(cls, encode=str, decode=str)
    with pytest.raises(TypeError, match="give encode and decode"):
        register(Plain)
    for half in ({"encode": str}, {"decode": str}):
        with pytest.raises(TypeError, match="together"):
            register(Point, **half)  # type: ignore[arg-type]
    register(Point, name="mine")
    register(Point, name="mine")  # again is fine, as after a reload
    with pytest.raises(ValueError, match="taken by Point"):
        register(Pair, name="mine")


def test_decorators_and_subclasses(ferry: rollferry.Ferry) -> None:
    @register
    @dataclass
    class Local:
        a: int

    class Child(Point):
        pass

    register(Point)
    assert ferry.get(ferry.put({"x": Local(5)})) == {"x": Local(5)}
    with pytest.raises(UnsupportedValueError, match="Child"):
        ferry.put({"x": Child(1)})


READER = """
import sys, rollferry
with rollferry.connect(sys.argv[1]) as ferry:
    try:
        ferry.get(sys.argv[2])
    except rollferry.BundleError as error:
        print(error)
"""


def test_a_reader_without_the_class_is_told_what_to_do(
    ferry: rollferry.Ferry, shm_directory: Path, python: Any
) -> None:
    register(Point)
    said = python(READER, f"shm://{shm_directory}", ferry.put({"x": [Point(1)]}).to_json())
    assert "Point" in said
    assert "rollferry.register()" in said


def test_fields_that_differ_between_the_sides(ferry: rollferry.Ferry) -> None:
    register(Sample, name="shape")
    ref = ferry.put({"x": Sample([1])})
    del registered.BY_CLASS[Sample]
    del registered.BY_NAME["shape:"]
    register(Frozen, name="shape")
    with pytest.raises(BundleError, match="Frozen differ"):
        ferry.get(ref)


def test_pickling_needs_both_sides(ferry: rollferry.Ferry, shm_directory: Path) -> None:
    batch = {"x": [Plain(1), None, Plain([2])], "y": {"deep": (Plain(3),)}, "z": [Pair(1, 2), 5]}
    with pytest.raises(UnsupportedValueError, match=r"^x\[0\]: .*Plain.*allow_pickle"):
        ferry.put(batch)
    with rollferry.connect(f"shm://{shm_directory}", allow_pickle=True) as trusting:
        ref = trusting.put(batch)
        assert trusting.get(ref) == batch
        with pytest.raises(UnsupportedValueError, match="trust"):
            ferry.get(ref)
        plain = trusting.put({"a": [1, "x", np.arange(3)]})  # nothing in it needs pickling
        assert_same(ferry.get(plain), {"a": [1, "x", np.arange(3)]})
        with pytest.raises(UnsupportedValueError, match=r"^f\[1\]: can't be pickled"):
            trusting.put({"f": [None, lambda: 0]})
        register(Plain, encode=lambda value: value.value, decode=Plain)
        assert ferry.get(trusting.put({"x": Plain(1)})) == {"x": Plain(1)}  # registration comes before pickling


def test_the_main_module_of_a_spawned_process_is_that_of_its_parent() -> None:
    spawned = enum.Enum("Spawned", "A B", module="__mp_main__")
    register(spawned)
    assert registered.BY_CLASS[spawned].name == "__main__:Spawned"
    with pytest.raises(TypeError, match="not an instance"):
        register(spawned.A)
