"""The batches behind the golden bundles: small, the same on every run, together with every kind of column."""

import fractions
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import rollferry
from rollferry import FieldSchema


@dataclass
class Turn:
    """A registered class."""

    role: str
    tokens: Any


rollferry.register(Turn, name="golden:Turn")


class Case(NamedTuple):
    """One golden bundle.

    Parameters
    ----------
    make
        Gives the batch.
    options
        Options of `rollferry.connect` on both sides.
    expected
        Gives what comes back, where a schema makes that something else.
    package
        Package without which the bundle can't be read.
    """

    make: Callable[[], dict[Any, Any]]
    options: dict[str, Any] = {}
    expected: Callable[[], dict[Any, Any]] | None = None
    package: str | None = None


def dense() -> dict[Any, Any]:
    structured = np.zeros(2, np.dtype([("id", "<i4"), ("name", "U3"), ("pair", ">f8", (2,))], align=True))
    structured[1] = (7, "abc", (0.5, -0.5))
    return {
        "float": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
        "big_endian": np.arange(4, dtype=">i8"),
        "bool": np.array([True, False, True]),
        "complex": np.array([1 - 2j, complex("nan")]),
        "time": np.array(["2026-01-02T03:04:05", "NaT"], "datetime64[s]"),
        "span": np.array(-5, "timedelta64[25us]"),
        "text": np.array([["a", "bcd"], ["", "é\U0001f600"]]),
        "bytes": np.array([b"a\0", b"bc"], "S4"),
        "structured": structured,
        "empty": np.empty((0, 3), np.uint16),
        "zero_width": np.zeros((2, 2), "V0"),
    }


def ragged() -> dict[Any, Any]:
    rows = [np.arange(n, dtype=np.int32) for n in (3, 0, 5)]
    return {
        "rows": rows,
        "tuple": tuple(row.astype(np.float16) for row in rows),
        "inner": [np.full((n, 2), n, np.uint8) for n in (1, 0, 2)],
        "shapes": [np.full((n, 3 - n), n, ">i2") for n in (0, 1, 2)],
        "scalars": [np.array(n, np.float64) for n in (1.5, -0.0, float("inf"))],
        "mixed": [rows[0], None, rows[0].astype(np.int64), np.zeros((2, 2))],
    }


def numbers() -> dict[Any, Any]:
    return {
        "ints": [0, 200, 255],
        "signed": [-1, 127],
        "wide": [2**64 - 1, 0],
        "huge": [2**64, -(10**30), 5],
        "floats": [0.5, -0.0, float("nan"), 1e300],
        "narrow_floats": [0.5, 2.0],
        "bools": (True, False),
        "rows": [[1, 2], [], [70_000]],
        "tuples": [(1.5,), (), (2.5, 3.5)],
        "one": 5,
        "complex": [1 + 2j, complex(0.0, -0.0)],
        "ranges": [range(3), range(10, 0, -2)],
    }


def text() -> dict[Any, Any]:
    return {
        "str": ["", "plain", "grüße", "\U0001f680", "lone \ud800"],
        "bytes": [b"", b"\0\xff"],
        "bytearray": [bytearray(b"mutable")],
        "rows": [["a", "b"], [], ["c"]],
        "versions": (("v1",), ("v2", "v3")),
        "one": "value",
    }


def tree() -> dict[Any, Any]:
    return {
        "records": [{"id": i, "score": i / 4, "tags": ["x"] * i} for i in range(3)],
        "optional": [{"a": 1}, {}, {"b": "two", "a": 2}, {"a": None}],
        "maps": [{(i, "k"): i} for i in range(2)] + [{None: 1.5, b"k": []}],
        "none": [None, None, None],
        "nothing": [],
        "nested": {"x": [{"y": ({"z": [[[1]]]},)}], "w": {}},
        "sets": [{1}, {"a"}, frozenset({(1, 2)})],
        "mixed": [1, "one", 1.0, True, None, [1], (1,), {"k": 1}],
    }


def shared() -> dict[Any, Any]:
    prompt = np.arange(6, dtype=np.int16)
    long_text = "the same long prompt, again and again, " * 3
    turn = Turn("user", prompt)
    return {
        "prompts": [prompt, prompt, np.arange(2), prompt],
        "again": [prompt, None, prompt],
        "texts": [long_text, "short", long_text, long_text],
        "objects": [np.array([prompt, "x", None], object), np.empty((2, 0), object), np.array({"k": 1}, object)],
        "turns": [turn, Turn("tool", None)],
    }


def scalars() -> dict[Any, Any]:
    return {
        "float32": [np.float32(0.5), np.float32("nan")],
        "mixed": [np.int8(-1), np.uint64(2**63), np.bool_(True), np.datetime64(5, "D"), np.complex64(1j)],
        "text": [np.str_("a"), np.bytes_(b"b\0")],
    }


def images() -> dict[Any, Any]:
    from PIL import Image

    palette = Image.new("P", (3, 2), 1)
    palette.putpalette([255, 0, 0, 0, 255, 0])
    palette.info["transparency"] = 1
    bits = Image.new("1", (9, 2))
    bits.putpixel((8, 1), 1)
    rgb = Image.frombytes("RGB", (2, 2), bytes(range(12)))
    return {"images": [rgb, palette, bits, Image.new("L", (0, 3))], "rows": [[rgb], [], [Image.new("F", (1, 1), 0.5)]]}


def tensors() -> dict[Any, Any]:
    import torch

    return {
        "bfloat16": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "float8": torch.arange(4, dtype=torch.float32).to(torch.float8_e4m3fn),
        "rows": [torch.arange(n) for n in (2, 0, 3)],
        "shapes": [torch.ones(n, 2 * n, dtype=torch.float16) for n in (1, 2)],
        "scalars": [torch.tensor(1.5), torch.tensor(True)],
        "jagged": torch.nested.nested_tensor([torch.zeros(2), torch.ones(3)], layout=torch.jagged),
        "values": [torch.Size([1, 2]), torch.int32, torch.device("cpu")],
    }


def jagged() -> dict[Any, Any]:
    import torch

    values, offsets = torch.arange(12, dtype=torch.int32), torch.tensor([0, 5, 5, 12])
    make = torch.nested.nested_tensor_from_jagged
    return {
        "one": make(values, offsets),
        "same offsets": make(values / 2, offsets),
        "gaps": make(values, offsets, torch.tensor([2, 0, 7])),
        "axis": make(values.reshape(2, 6), torch.tensor([0, 2, 6]), jagged_dim=2),
        "rows": [make(values, offsets), None],
    }


def tensordicts() -> dict[Any, Any]:
    import torch
    from tensordict import TensorDict

    inner = TensorDict({"x": torch.arange(4.0).reshape(2, 2)}, batch_size=[2])
    return {"td": TensorDict({"a": torch.arange(2), "inner": inner}, batch_size=[2])}


SCHEMA = {
    "narrowed": FieldSchema("ragged", dtype="int16"),
    "as_array": FieldSchema("numbers", dtype="float32", returns="ndarray"),
    "as_rows": FieldSchema("numbers", dtype="int64", returns="ndarray"),
}


def typed() -> dict[Any, Any]:
    return {"narrowed": [np.arange(3), np.arange(2)], "as_array": [1.5, 2.5], "as_rows": [[1], [2, 3]]}


def typed_back() -> dict[Any, Any]:
    rows = [np.array([1]), np.array([2, 3])]
    return {**typed(), "as_array": np.array([1.5, 2.5], np.float32), "as_rows": rows}


def rollout() -> dict[Any, Any]:
    lengths = (7, 3, 5, 4)
    return {
        "partition": [0] * 4,
        "tokens": [np.arange(n, dtype=np.int32) * 3 for n in lengths],
        "loss_masks": [np.ones(n, np.int32) for n in lengths],
        "rollout_log_probs": [np.linspace(-2, 0, n, dtype=np.float32) for n in lengths],
        "rewards": [0.0, 1.0, 0.25, 1.0],
        "weight_versions": [["7"], ["7", "8"], ["8"], ["8"]],
        "truncated": [0, 1, 0, 0],
        "metadata": [{"source": "math", "tools": [{"name": "python", "args": None}]}, None, {"source": "code"}, {}],
    }


def blocks() -> dict[Any, Any]:
    """A member of two blocks, one of none, and one of one."""
    return {"two": (np.arange(17_000) % 251).astype(np.uint8), "none": np.empty((0, 3)), "one": np.arange(3.0)}


CASES: dict[str, Case] = {
    "dense": Case(dense),
    "ragged": Case(ragged),
    "numbers": Case(numbers),
    "text": Case(text),
    "tree": Case(tree),
    "shared": Case(shared),
    "scalars": Case(scalars),
    "images": Case(images, package="PIL"),
    "tensors": Case(tensors, package="torch"),
    "jagged": Case(jagged, package="torch"),
    "tensordicts": Case(tensordicts, package="tensordict"),
    "pickled": Case(lambda: {"fractions": [fractions.Fraction(1, 3), None]}, {"allow_pickle": True}),
    "typed": Case(typed, {"schema": SCHEMA}, typed_back),
    "rollout": Case(rollout, {"checksum": True}),
    "blocks": Case(blocks, {"checksum": True}),
    "odd_keys": Case(lambda: {b"bytes": 1, ("a", 2): [2, 3], "\ud800": None, 3: "three"}),
    "empty": Case(dict),
}
