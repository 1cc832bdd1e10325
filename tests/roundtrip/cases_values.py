"""Cases: keys, scalars, nested metadata, registered classes, shared objects."""

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .models import Flags, Key, Level, Point, Sample, Slotted, Status, Tagged, Turn, Version

Case = Callable[[], dict[Any, Any]]
nan, payload = struct.unpack("<2d", struct.pack("<2Q", 0x7FF8000000000000, 0x7FF8000000000123))

SCALARS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "bools": lambda: [True, False, {"t": True}],
    "ints": lambda: {"a": 0, "b": -1, "c": 2**31, "d": 2**63, "e": -(2**63) - 1, "f": 3**300},
    "floats": lambda: {"a": 0.1, "b": -0.0, "c": float("inf"), "d": nan, "e": payload, "f": 1e308, "g": 5e-324},
    "complex": lambda: {"a": 1j, "b": complex(-0.0, -0.0), "c": complex(nan, payload)},
    "text": lambda: {"a": "", "b": "a\0b", "c": "\U0001f600", "d": "\ud800", "e": '\n\t"\\', "f": "x" * 70_000},
    "bytes": lambda: {
        "a": b"",
        "b": bytes(range(256)),
        "c": bytearray(b""),
        "d": bytearray(b"\0x"),
        "e": b"y" * 70_000,
    },
    "ranges": lambda: {"a": range(0), "b": range(5, 1, -2), "c": range(2**70, 2**71, 2**69), "d": range(1, 1)},
    "sets": lambda: {"a": set(), "b": {1, "a", None, 2.5, (1, 2)}, "c": frozenset(), "d": frozenset({frozenset({1})})},
    "sets of floats": lambda: {"a": {nan, payload, -0.0, 1.5}, "b": {np.float32(1), np.int64(3), b"x", True}},
    "tuples": lambda: [(), (1,), ((1,), [2]), (None, ({"a": (1,)},))],
    "empty containers": lambda: [[], (), {}, set(), frozenset(), "", b"", bytearray(), range(0), np.zeros(0)],
    "numpy scalars": lambda: [
        *(
            np.dtype(c).type(1)
            for c in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
        ),
        *(np.float32("nan"), np.float64(-0.0), np.longdouble(1) / 3, np.clongdouble(1j) / 3),
        *(np.str_("é"), np.str_(""), np.bytes_(b"ab"), np.void(b"ab")),
        *(np.datetime64("2024-01-01T00:00:01.5"), np.datetime64("NaT"), np.timedelta64(3, "W"), np.timedelta64(1)),
        np.zeros(1, [("a", "i4"), ("b", ">f8")])[0],
    ],
}

VALUES: dict[str, Callable[[], Any]] = {
    "namedtuple": lambda: [Point(1, 2), Point(x=np.zeros(2), y=None), Turn("user", [1, 2]), Turn("a", np.ones(1), 0.5)],
    "dataclass": lambda: [
        Sample("p", [1, 2]),
        Sample("q", np.arange(3), {"k": (1,)}),
        Slotted(Point(1, (2,))),
        Key(1, 2),
    ],
    "enum": lambda: [Status.COMPLETED, Status.ABORTED, Level.HIGH, 2, Flags.A, Flags.A | Flags.B, Flags(0)],
    "array subclass": lambda: [Tagged.make([1.5, 2.5], "m"), Tagged.make(np.zeros((2, 0), "i2"), "s"), np.zeros(2)],
    "ordinary class": lambda: {"nested": [OrderedDict(b=1, a=2), OrderedDict()]},
    "dict with classes as keys": lambda: {Status.ABORTED: 1, Key(1, 2): 2, Point(1, 2): 3, Level.LOW: 4},
}


CASES: dict[str, Case] = {}
for name, make in SCALARS.items():
    CASES[f"scalars: {name}"] = lambda make=make: {
        "field": make(),
        "rows": [make(), make()],
        "deep": {"m": [({"v": make()},)]},
    }
for name, make in VALUES.items():
    CASES[f"registered {name}"] = lambda make=make: {
        "field": make(),
        "rows": [make(), None],
        "deep": {"m": [(make(),)]},
    }


def shared() -> dict[str, Any]:
    array, tensor, raw = np.arange(1000), torch.arange(1000), bytes(range(250)) * 4
    return {
        "arrays": [array] * 8,
        "again": array,
        "tensors": [tensor] * 8,
        "raw": [raw] * 8,
        "meta": {"deep": [array, raw]},
    }


def nested(depth: int) -> Any:
    value: Any = {"leaf": np.arange(3)}
    for i in range(depth):
        value = [value] if i % 3 else {"k": value, "t": (i,)}
    return value


def samples(count: int) -> list[dict[str, Any]]:
    """Reward metadata as frameworks make it."""
    return [
        {
            "id": f"sample-{i}",
            "group": i // 8,
            "score": None if i % 7 == 0 else i / 7,
            "tools": [{"name": "search", "args": {"q": "x" * (i % 11), "k": i}, "ok": i % 2 == 0}] * (i % 3),
            "counts": {"turns": np.int64(i), "ratio": np.float32(i) / 3, ("a", i % 4): i},
            "shape": (i, 2),
            "tags": {"a", f"t{i % 5}"},
            **({"error": "aborted"} if i % 13 == 0 else {}),
        }
        for i in range(count)
    ]


KEYS = [
    "/",
    ".",
    "__",
    "a/b",
    "a.b",
    "__class__",
    "",
    " ",
    "\0",
    "é",
    "日本",
    "\U0001f600",
    "\ud800",
    "a" * 5000,
    "0",
    "../x",
]
KEYS += [
    "__rollferry__",
    "manifest",
    "live",
    "fields",
    "%s",
    "{}",
    "\n",
    "self",
    "None",
    "metadata",
    "e\u0301",
    "\u00e9",
]

CASES |= {
    "keys of any text": lambda: {key: i for i, key in enumerate(KEYS)},
    "keys of any text with arrays": lambda: {key: [np.arange(i)] for i, key in enumerate(KEYS)},
    "keys of any text, nested": lambda: {
        "m": {key: [key] for key in KEYS},
        "rows": [{key: np.arange(2)} for key in KEYS],
    },
    "int keys": lambda: {0: [1], -1: np.zeros(2), 2**70: "big", "0": "text", 7: {7: {7: 7}}},
    "other hashable keys": lambda: {
        (1, "a"): 1,
        None: 2,
        True: 3,
        2.5: 4,
        b"x": 5,
        frozenset({1}): 6,
        np.int64(9): 7,
        1j: 8,
    },
    "key types are kept": lambda: {
        "m": [{1: 0}, {True: 0}, {1.0: 0}, {np.int64(1): 0}, {"1": 0}, {b"1": 0}, {(1,): 0}]
    },
    "tuple keys in metadata": lambda: {"m": {(1, 2): {"a": ((1, 2), (3,))}, ("x", None, (1.5,)): [()], (): 0}},
    "NaN keys": lambda: {"m": {nan: 1, payload: 2, -0.0: 3}},
    "key order": lambda: {
        "z": 1,
        "a": 2,
        "m": {"b": 1, "a": 2, 3: 3, "0": 4},
        5: 5,
        "b": [{"y": 1, "x": 2}, {"x": 1, "y": 2}],
    },
    "one thousand fields": lambda: {f"field{i}": np.full(i % 7, i) if i % 3 else [i] for i in range(1000)},
    "verl#4228: nothing at all": lambda: {},
    "verl#4379: containers without fields": lambda: {"batch": {}, "m": {"a": {}}, "l": [{}, {"b": {}}], "t": ({},)},
    "verl#6167: numpy scalars in metadata": lambda: {
        "extra": [{"n": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True)}, {"n": {"deep": [np.uint8(255)]}}]
    },
    "lm-evaluation-harness#3885: numpy scalar fields": lambda: {
        "n": np.int64(3),
        "f": np.float16(0.5),
        "l": [np.float64(1)],
    },
    "tuples and sets inside metadata": lambda: {
        "metadata": [{"t": (1, (2, [3])), "s": {1, 2}, "f": frozenset({"a"})}, {"s": set()}]
    },
    "arrays inside metadata": lambda: {
        "metadata": [{"a": np.arange(i), "b": [np.array(i, "f2"), {"c": np.zeros((0, i), ">i4")}]} for i in range(20)]
    },
    "deep metadata": lambda: {"m": nested(60), "rows": [nested(3), nested(30)]},
    "metadata of 10,000 samples": lambda: {"metadata": samples(10_000), "index": list(range(10_000))},
    "metadata as a dict by id": lambda: {
        "by id": {f"id{i}": s for i, s in enumerate(samples(100))},
        "int": dict(enumerate(samples(9))),
    },
    "conversations": lambda: {
        "messages": [
            [{"role": "user", "content": "q" * i}, {"role": "assistant", "content": None, "n": i}] for i in range(50)
        ]
    },
    "datasets#8507: ragged lists stay": lambda: {"rows": [[1, 2, 3], [4]], "pairs": [[[1, 2], [3, 4]], [[5, 6]]]},
    "Relax#217: shared objects": shared,
    "shared containers": lambda: (lambda part: {"a": [part, part], "b": part})({"k": [1, (2,)]}),
    "shared containers at different depths": lambda: (
        lambda part, empty: {
            "a": [part, [part], {"k": (part, [[part]])}],
            "b": [empty, (empty,), ((empty,), empty)],
            "c": [[], [[]], part],
            "d": {"x": part, "y": {"x": part, "y": [part]}},
        }
    )({"k": [1]}, ()),
    "equal objects that are not shared": lambda: {
        "a": [np.arange(5) for _ in range(4)],
        "b": [bytes([7]) * 9 for _ in range(4)],
    },
    "shared row views": lambda: (lambda a: {"same": [a[:3]] * 2, "overlap": [a[:4], a[2:]], "whole": a})(
        np.arange(6.0)
    ),
    "big text and bytes": lambda: {"t": "é" * 1_000_000, "b": bytes(3_000_000), "ba": bytearray(b"x" * 1_000_001)},
    "hash collisions and equal keys apart": lambda: {"m": [{-1: "a", -2: "b"}, {2**61 - 1: 0, 0: 1}]},
    "ordinary class in a list": lambda: {"v": OrderedDict(a=np.arange(3)), "w": [OrderedDict(z=(1,)), {"z": (1,)}]},
    "logprobs as dicts of int keys": lambda: {"top": [{i * j: -0.5 * j for j in range(3)} for i in range(10)]},
    "scalars beside arrays": lambda: {
        "step": 3,
        "lr": 1e-4,
        "name": "run",
        "done": False,
        "none": None,
        "a": np.zeros((2, 2)),
    },
}
CASES["registered class by encode"] = lambda: {
    "v": [Sample("s", Point(Status.ABORTED, {Key(0, 1): Tagged.make([1], "u")}))]
}
CASES["registered class without __eq__"] = lambda: {
    "v": Version(1, 2),
    "rows": [Version(), Version(3)],
    "m": {"k": (Version(4),)},
}
