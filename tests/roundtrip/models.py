"""Classes that the cases hold, registered with rollferry in whichever process imports this."""

import dataclasses
import enum
import warnings
from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import torch

Point = namedtuple("Point", "x y")


class Turn(NamedTuple):
    role: str
    tokens: Any
    reward: float | None = None


@dataclasses.dataclass
class Sample:
    prompt: str
    tokens: Any
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Key:
    group: int
    index: int


@dataclasses.dataclass(slots=True)
class Slotted:
    value: Any


class Status(enum.Enum):
    COMPLETED = "completed"
    ABORTED = "aborted"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = 1
    B = 2


class Tagged(np.ndarray):
    """An array subclass with something of its own."""

    unit: str

    @classmethod
    def make(cls, values: Any, unit: str) -> "Tagged":
        array = np.asarray(values).view(cls)
        array.unit = unit
        return array


class Version:
    """An ordinary class."""

    def __init__(self, *parts: int) -> None:
        self.parts = parts


class Unregistered:
    """A class that rollferry is never told about."""


UnregisteredPair = namedtuple("UnregisteredPair", "a b")


@dataclasses.dataclass
class UnregisteredRecord:
    a: int


class UnregisteredArray(np.ndarray):
    pass


class UnregisteredStr(str):
    __slots__ = ()


class UnregisteredInt(int):
    pass


class UnregisteredList(list[Any]):
    pass


class UnregisteredDict(dict[Any, Any]):
    pass


class UnregisteredTensor(torch.Tensor):
    pass


class UnregisteredEnum(enum.Enum):
    A = 1


class UnregisteredIntEnum(enum.IntEnum):
    A = 1


def register_all() -> None:
    """Tell rollferry about the classes above, as a framework would at import on both sides."""
    import rollferry

    for cls in (Point, Turn, Sample, Key, Slotted, Status, Level, Flags):
        rollferry.register(cls)
    rollferry.register(
        Tagged,
        encode=lambda array: {"values": np.asarray(array), "unit": array.unit},
        decode=lambda value: Tagged.make(value["values"], value["unit"]),
    )
    rollferry.register(Version, encode=lambda v: v.parts, decode=lambda parts: Version(*parts))
    rollferry.register(OrderedDict, name="tests.OrderedDict", encode=lambda d: list(d.items()), decode=OrderedDict)


def use_up_warnings_of_torch() -> None:
    """Let torch give its once-per-process warnings about experimental types here, not in a test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.zeros(1, dtype=torch.complex32)
        torch.nested.nested_tensor([torch.zeros(1)], layout=torch.strided)
        torch.zeros(1, 1).to_sparse_csr()


use_up_warnings_of_torch()
