"""Batches that put must refuse, with the path its message must name; and those it may keep or refuse, never alter."""

import array
import collections
import datetime
import decimal
import fractions
import pathlib
import types
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict

from . import cases_images, cases_tensors, cases_values, models
from .cases_arrays import objects
from .models import Point, Sample, Unregistered

Factory = Callable[[], dict[Any, Any]]
TABLES = [cases_tensors.CASES, cases_values.CASES, cases_images.CASES]


def at(place: Callable[[Any], dict[Any, Any]], make: Callable[[], Any]) -> Factory:
    return lambda: place(make())


def cyclic_list() -> list[Any]:
    ring: list[Any] = [1]
    ring.append({"again": [ring]})
    return ring


def cyclic_dict() -> dict[str, Any]:
    ring: dict[str, Any] = {"a": 1}
    ring["self"] = ring
    return ring


def cyclic_array() -> Any:
    ring = objects(1, None)
    ring[1] = ring
    return ring


def cyclic_record() -> Sample:
    sample = Sample("p", None)
    sample.tokens = (1, [sample])
    return sample


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def masked() -> Any:
    return np.ma.array([1, 2], mask=[0, 1])


VALUES: dict[str, Callable[[], Any]] = {
    "object of an unknown class": Unregistered,
    "bare object": object,
    "function": lambda: len,
    "lambda": lambda: lambda: None,
    "class": lambda: Unregistered,
    "builtin class": lambda: int,
    "module": lambda: types,
    "generator": lambda: (i for i in ()),
    "exception": lambda: ValueError("x"),
    "memoryview": lambda: memoryview(b"abc"),
    "deque": lambda: collections.deque([1]),
    "defaultdict": lambda: collections.defaultdict(list),
    "Counter": lambda: collections.Counter("aab"),
    "mappingproxy": lambda: types.MappingProxyType({}),
    "dict view": lambda: {}.keys(),
    "array.array": lambda: array.array("i", [1]),
    "unregistered namedtuple": lambda: models.UnregisteredPair(1, 2),
    "unregistered dataclass": lambda: models.UnregisteredRecord(1),
    "unregistered enum": lambda: models.UnregisteredEnum.A,
    "unregistered int enum": lambda: models.UnregisteredIntEnum.A,
    "unregistered str subclass": lambda: models.UnregisteredStr("a"),
    "unregistered int subclass": lambda: models.UnregisteredInt(1),
    "unregistered list subclass": lambda: models.UnregisteredList([1]),
    "unregistered dict subclass": lambda: models.UnregisteredDict(a=1),
    "unregistered array subclass": lambda: np.zeros(2).view(models.UnregisteredArray),
    "masked array": masked,
    "record array": lambda: np.zeros(1, [("a", "i4")]).view(np.recarray),
    "requires_grad tensor": lambda: torch.zeros(2, requires_grad=True),
    "result of a graph": lambda: torch.zeros(2, requires_grad=True) * 2,
    "0-d requires_grad tensor": lambda: torch.tensor(1.0, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.zeros(2), requires_grad=False),
    "tensor subclass": lambda: torch.zeros(2).as_subclass(models.UnregisteredTensor),
    "tensor on another device": lambda: torch.zeros(2, device="meta"),
    "sparse tensor": lambda: torch.eye(2).to_sparse(),
    "sparse CSR tensor": lambda: torch.eye(2).to_sparse_csr(),
    "quantized tensor": quantized,
    "cyclic list": cyclic_list,
    "cyclic dict": cyclic_dict,
    "cyclic object array": cyclic_array,
    "cyclic dataclass": cyclic_record,
    "TensorDict with requires_grad": lambda: TensorDict({"a": torch.zeros(2, requires_grad=True)}, [2]),
    "TensorDict with an unknown object": lambda: TensorDict({"a": NonTensorData(Unregistered())}, []),
    "nested tensor with requires_grad": lambda: torch.nested.nested_tensor(
        [torch.zeros(2), torch.zeros(1)], layout=torch.jagged, requires_grad=True
    ),
}

PLACES: dict[str, tuple[Callable[[Any], dict[Any, Any]], str]] = {
    "as a field": (lambda v: {"fine": np.zeros(3), "field": v}, "field"),
    "as a row": (lambda v: {"rows": [np.zeros(2), None, v]}, "rows[2]"),
    "deep": (lambda v: {"metadata": [{}] * 17 + [{"tools": [v]}]}, "metadata[17].tools[0]"),
}

REFUSED: dict[str, tuple[Factory, str]] = {
    f"{name} {where}": (at(place, make), path)
    for name, make in VALUES.items()
    for where, (place, path) in PLACES.items()
}
REFUSED |= {
    "below a namedtuple": (lambda: {"m": [Point(1, [Unregistered()])]}, "m[0].y[0]"),
    "below a dataclass": (lambda: {"m": Sample("p", 1, {"k": (0, Unregistered())})}, "m.extra.k[1]"),
    "below an odd key": (lambda: {"m": {"odd key": [Unregistered()]}}, "m['odd key'][0]"),
    "below an int key": (lambda: {"m": {3: {"a": Unregistered()}}}, "m[3].a"),
    "below an odd top key": (lambda: {"a/b": {"x": Unregistered()}}, "a/b"),
    "below an int top key": (lambda: {7: [Unregistered()]}, "7"),
    "in an object array": (lambda: {"m": {"a": objects(1, Unregistered())}}, "m.a[1]"),
    "in an object array of two dimensions": (lambda: {"a": objects(1, 2, 3, Unregistered()).reshape(2, 2)}, "a[1"),
    "in a set": (lambda: {"m": [{"tags": {1, Unregistered()}}]}, "m[0].tags"),
    "as a key": (lambda: {"m": [{Unregistered(): 1}]}, "m[0]"),
    "in a tuple key": (lambda: {"m": [{(1, Unregistered()): 1}]}, "m[0]"),
    "in a tuple": (lambda: {"t": (1, (2, Unregistered()))}, "t[1][1]"),
    "last of many rows": (lambda: {"rows": [np.zeros(3)] * 5000 + [Unregistered()]}, "rows[5000]"),
    "last of many numbers": (lambda: {"n": [*range(5000), Unregistered()]}, "n[5000]"),
    "last of many texts": (lambda: {"n": ["a"] * 5000 + [Unregistered()]}, "n[5000]"),
    "row that requires grad among tensors": (
        lambda: {"t": [torch.zeros(2)] * 300 + [torch.zeros(2, requires_grad=True)]},
        "t[300]",
    ),
    "row that is a subclass among arrays": (
        lambda: {"t": [np.zeros(2)] * 300 + [np.zeros(2).view(models.UnregisteredArray)]},
        "t[300]",
    ),
    "beside a lazy stack that can't be stacked": (
        lambda: {
            "m": [{"td": LazyStackedTensorDict(*(TensorDict({"a": torch.zeros(n)}) for n in (2, 3)))}, {"b": object()}]
        },
        "m[1].b",
    ),
    "beside a jagged tensor": (
        lambda: {
            "m": [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), {"b": object()}]
        },
        "m[1].b",
    ),
    "beside every kind of value": (
        lambda: {"m": [make() for table in TABLES for make in table.values()] + [object()]},
        f"m[{sum(map(len, TABLES))}]",
    ),
    "last field of large ones": (
        lambda: {"big": np.zeros(1_000_000), "rows": [np.zeros(9)] * 99, "bad": object()},
        "bad",
    ),
}


def deep_list(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


KEPT_OR_REFUSED: dict[str, Factory] = {
    "struct of objects": lambda: {"a": np.array([(1, [2])], [("n", "i4"), ("o", "O")])},
    "struct of objects, rows": lambda: {"a": [np.array([("x",)], [("o", "O")])]},
    "struct without fields": lambda: {"a": np.zeros(2, []), "b": [np.zeros(1, [("e", "i4", (0,))])]},
    "struct with a lone surrogate in a name": lambda: {"a": np.zeros(2, [("\ud800", "i4")])},
    "dtype of records": lambda: {"a": np.zeros(2, np.dtype((np.record, [("a", "i4")])))},
    "StringDType": lambda: {"a": np.array(["a", "long" * 20], np.dtypes.StringDType()), "rows": [np.array(["b"], "T")]},
    "longlong scalars": lambda: {"a": np.longlong(1), "b": [np.ulonglong(2)], "c": {"k": np.longlong(3)}},
    "numpy text with trailing NUL": lambda: {"a": np.str_("a\0"), "b": [np.bytes_(b"a\0\0")]},
    "big-endian struct scalars": lambda: {"a": np.zeros(2, [(("t", "a"), ">i4")])[0]},
    "Ellipsis": lambda: {"a": ..., "b": [NotImplemented]},
    "slice": lambda: {"a": slice(1, None), "b": [slice(2)]},
    "torch dtype and device": lambda: {"a": torch.bfloat16, "b": [torch.device("cpu")]},
    "datetime": lambda: {"a": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), "b": [datetime.timedelta(1)]},
    "Decimal and Fraction": lambda: {"a": decimal.Decimal("1.0"), "b": [fractions.Fraction(1, 3)]},
    "UUID and path": lambda: {"a": uuid.UUID(int=1), "b": [pathlib.PurePosixPath("a/b")]},
    "float4 tensor": lambda: {"a": torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)},
    "nested tensor of non-contiguous dimension": lambda: {
        "a": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged).transpose(1, 2)
    },
    "image with other info": lambda: {"a": Image.new("L", (2, 2))},
    "deep lists": lambda: {"a": deep_list(101)},
    "int enum in a set": lambda: {"a": {models.UnregisteredIntEnum.A}},
    "bool subclass look-alikes": lambda: {"a": [True, np.True_, 1]},
}

NOT_BATCHES: dict[str, Callable[[], Any]] = {
    "list": lambda: [1, 2],
    "None": lambda: None,
    "str": lambda: "abc",
    "array": lambda: np.zeros(3),
    "pairs": lambda: [("a", 1)],
    "class": lambda: dict,
}
