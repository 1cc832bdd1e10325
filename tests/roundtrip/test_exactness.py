"""What looks equal to numpy or Python and yet is not; what has more state than its class shows."""

import dataclasses
import enum
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rollferry
from rollferry import UnsupportedValueError
from rollferry.layouts import optional
from rollferry.layouts.tree import registered
from rollferry.testing import assert_same

PLAIN = np.dtype([("a", "i4")])
RECORD = np.dtype((np.record, PLAIN))
PADDED = {"names": ["a", "b"], "formats": ["i1", "i4"]}


class Real(np.float64):
    pass


class Text(np.str_):
    pass


class Pair(namedtuple("Pair", "left right")):
    pass


class Slotted:
    __slots__ = ("hidden",)


@dataclasses.dataclass
class Dressed(Slotted):
    shown: int = 0


class Answer(enum.Enum):
    A = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        member = object.__new__(cls)
        member._name_, member._value_ = "A", value
        return member


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    for package in optional.MODULES:  # what they register stays
        optional.load(package)
    saved = dict(registered.BY_CLASS), dict(registered.BY_NAME)
    for cls in (Pair, Dressed, Answer):
        rollferry.register(cls)
    yield
    for table, before in zip((registered.BY_CLASS, registered.BY_NAME), saved, strict=True):
        table.clear()
        table.update(before)


@pytest.fixture
def ferry() -> Iterator[rollferry.Ferry]:
    with rollferry.connect("inproc://exactness") as ferry:
        yield ferry
        assert ferry.list() == []


def carried(ferry: rollferry.Ferry, batch: dict[Any, Any], **options: Any) -> dict[Any, Any]:
    ref = ferry.put(batch)
    result = ferry.get(ref, **options)
    ferry.remove(ref)
    return result


EQUAL_TO_NUMPY = {
    "record": [np.zeros(1, PLAIN), np.zeros(1, RECORD)],
    "aligned": [np.zeros(1, np.dtype(PADDED)), np.zeros(1, np.dtype(PADDED, align=True))],
    "units": [np.zeros(1, "M8[s]"), np.zeros(1, "M8[1000ms]")],
    "units reversed": [np.zeros(1, "M8[1000ms]"), np.zeros(1, "M8[s]")],
    "scalars of units": [np.timedelta64(1, "s"), np.timedelta64(1, "m"), np.timedelta64(60, "s")],
    "scalars of structs": [np.zeros(1, PLAIN)[0], np.zeros(1, RECORD)[0]],
}


@pytest.mark.parametrize("name", EQUAL_TO_NUMPY)
def test_dtypes_that_numpy_calls_equal_stay_apart(ferry: rollferry.Ferry, name: str) -> None:
    rows = EQUAL_TO_NUMPY[name]
    for value, expected in zip(carried(ferry, {"rows": rows})["rows"], rows, strict=True):
        assert (value.dtype.str, value.dtype.type, value.dtype.isalignedstruct) == (
            expected.dtype.str,
            expected.dtype.type,
            expected.dtype.isalignedstruct,
        )
        assert value.tobytes() == expected.tobytes()


def with_extra() -> Pair:
    pair = Pair(1, 2)
    pair.extra = 3  # type: ignore[attr-defined]
    return pair


def with_hidden() -> Dressed:
    dressed = Dressed(1)
    dressed.hidden = 2
    return dressed


def deep_dtype() -> Any:
    dtype = np.dtype("i4")
    for _ in range(20):
        dtype = np.dtype([("f", dtype)])
    return dtype


REFUSED = {
    "float subclass": lambda: Real(1.0),
    "text subclass": lambda: Text("a"),
    "unstructured record": lambda: np.zeros(1, np.dtype((np.record, 8))),
    "namedtuple with an attribute": with_extra,
    "dataclass with a slot of its base": with_hidden,
    "deep dtype": lambda: np.zeros(1, deep_dtype()),
    "endless dimension": lambda: np.zeros((0, 1 << 60), np.int8),
    "two arrays too large together": lambda: [np.broadcast_to(np.zeros(1, np.uint8), (1 << 62,))] * 3,
    "tensor whose storage is gone": lambda: freed(),
}


def freed() -> torch.Tensor:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_lose_something_is_refused(ferry: rollferry.Ferry, name: str) -> None:
    with pytest.raises(UnsupportedValueError, match=r"m\.inner|^m: "):
        ferry.put({"before": 1, "m": {"inner": REFUSED[name]()}})


def test_enum_members_that_are_not_listed(ferry: rollferry.Ferry) -> None:
    odd = Answer(7)
    assert odd is not Answer.A
    result = carried(ferry, {"odd": odd, "even": Answer.A})
    assert result["odd"]._value_ == 7
    assert result["even"] is Answer.A


def test_classes_over_builtin_ones_have_no_default_form() -> None:
    with pytest.raises(TypeError, match="encode and decode"):
        rollferry.register(dataclasses.dataclass(type("Items", (list,), {"__annotations__": {"a": int}})))


def test_tensors_are_on_the_cpu_whatever_the_default_device_is(ferry: rollferry.Ferry) -> None:
    batch = {"empty": torch.zeros(0, 3), "rows": [torch.zeros(0), torch.zeros(0)]}
    torch.set_default_device("meta")
    try:
        result = carried(ferry, batch)
    finally:
        torch.set_default_device(None)
    assert_same(result, batch)


def test_unusual_keys_with_surrogates(ferry: rollferry.Ferry) -> None:
    batch = {"\ud800": 1, ("\udfff",): [2]}
    assert_same(carried(ferry, batch), batch)


def test_object_arrays_too_are_read_only(ferry: rollferry.Ferry) -> None:
    array = carried(ferry, {"a": np.array([1, "x"], object)}, readonly=True)["a"]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 2


def test_a_lock_of_the_engine_may_be_taken_twice(shm_directory: Path) -> None:
    """As by a signal handler that puts while a put is going on."""
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        done = threading.Event()

        def twice() -> None:
            with ferry._engine._mappings._lock:  # type: ignore[attr-defined]
                ferry.remove(ferry.put({"a": 1}))
            done.set()

        threading.Thread(target=twice, daemon=True).start()
        assert done.wait(20)


def test_odd_things_under_names_of_ours_do_not_disturb(shm_directory: Path) -> None:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        (shm_directory / "tmp" / ("0" * 32)).mkdir()
        (shm_directory / "tmp" / ("1" * 32)).symlink_to("/dev/null")
        (shm_directory / "pool" / ("10000-" + "0" * 32)).mkdir()
        for _ in range(3):
            ferry.remove(ferry.put({"a": np.ones(1000)}))
