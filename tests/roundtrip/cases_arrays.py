"""Cases: NumPy arrays of every dtype, shape and memory order."""

from collections.abc import Callable
from typing import Any

import numpy as np

Case = Callable[[], dict[Any, Any]]
CASES: dict[str, Case] = {}
rng = np.random.default_rng


def objects(*values: Any) -> np.ndarray:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def of_bits(code: str, shape: tuple[int, ...] = (3, 4)) -> np.ndarray:
    """Random bits, NaN payloads included, read as a dtype."""
    dtype = np.dtype(code)
    data = rng(7).integers(0, 256, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    return data.view(dtype).reshape(shape)


NUMBERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "q", "Q"]
for code in NUMBERS:
    CASES[f"vllm#16860: dtype {code}"] = lambda c=code: {
        "dense": of_bits(c),
        "rows": [of_bits(c, (n,)) for n in (2, 3)],
    }
for code in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "M8[ns]", "m8[us]", "U3"):
    CASES[f"big-endian {code}"] = lambda c=code: {
        "dense": np.arange(12).reshape(3, 4).astype(c).astype(f">{c}"),
        "rows": [np.arange(n).astype(c).astype(f">{c}") for n in (0, 2, 5)],
    }
for unit in ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "25s"):
    CASES[f"datetime units: {unit}"] = lambda u=unit: {
        "M": np.array([0, 5, -3, np.iinfo("i8").min]).view(f"M8[{u}]"),
        "m": [np.array([1]).view(f"m8[{u}]"), np.array([], "i8").view(f"m8[{u}]")],
    }

CASES |= {
    "datetime without unit": lambda: {"M": np.array(["NaT"], "M8"), "m": np.array([3], "m8")},
    "bool array": lambda: {"a": np.array([[True, False], [False, True]]), "rows": [np.array([True]), np.zeros(0, "?")]},
    "longdouble": lambda: {"g": np.array([1, np.nan, -0.0], "g") / 3, "G": [np.array([1j], "G") / 3], "n": np.nan},
    "prime-rl#3051: uint16 routes": lambda: {"experts": (np.arange(7 * 4 * 8) % 512).astype("u2").reshape(7, 4, 8)},
    "verl#7880: uint8 routes above 127": lambda: {
        "dense": np.arange(128, 256, dtype="u1").reshape(4, 32),
        "rows": [np.arange(128, 256, dtype="u1"), np.array([255], "u1")],
    },
    "NeMo-RL#3113: minus one in narrow ints": lambda: {
        "i1": np.array([-1, 127, -128], "i1"),
        "i2": np.array([[-1, 0], [511, -1]], "i2"),
        "rows": [np.array([-1], "i1"), np.array([-1, 5], "i1")],
        "small values stay wide": np.array([1, 2, 3], "i8"),
    },
    "NaN payloads and signed zeros": lambda: {
        "f8": np.array([0x7FF8000000000001, 0xFFF0DEADBEEF0001, 1 << 63], "u8").view("f8"),
        "f4": np.array([0x7FC00001, 0xFFC12345, 1 << 31], "u4").view("f4"),
        "f2": np.array([0x7E01, 0xFE02, 1 << 15], "u2").view("f2"),
    },
    "fixed-width text": lambda: {
        "S": np.array([b"a", b"", b"abc\0d"], "S6"),
        "U": np.array(["é", "", "\U0001f600", "\ud800"], "U3"),
        "S of one width": np.zeros((2, 0), "S4"),
        "rows": [np.array([b"ab"]), np.array([b"abc", b"d"])],
    },
    "void": lambda: {"V": np.arange(12, dtype="u1").view("V4"), "scalar": np.void(b"\x00\x01")},
    "0-d arrays": lambda: {
        "i8": np.array(3),
        "f2": np.array(0.5, "f2"),
        "M8": np.array("2024-01-01", "M8[D]"),
        "U": np.array("text"),
        "O": np.array({"a": 1}, object),
        "big": np.array(7, ">u4"),
        "rows": [np.array(1), np.array(2)],
    },
    "zero-size arrays": lambda: {
        "a": np.zeros(0, "i4"),
        "b": np.zeros((0, 5), "f2"),
        "c": np.zeros((3, 0, 2), "c8"),
        "d": np.zeros((0,), [("x", "i4")]),
        "e": np.empty((2, 0), object),
    },
    "pytorch#1878: no payload bytes at all": lambda: {"a": np.zeros(0, "i4"), "b": [np.zeros(0, "f4")] * 3, "c": b""},
    "only an empty array": lambda: {"a": np.zeros((0, 3), "f8")},
    "safetensors#825: Fortran order": lambda: {
        "a": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "rows": [np.asfortranarray(np.arange(6).reshape(2, 3)), np.asfortranarray(np.arange(8).reshape(2, 4))],
        "3-d": np.asfortranarray(np.arange(24, dtype="i2").reshape(2, 3, 4)),
    },
    "muscle3#77: transposed": lambda: {"a": np.arange(12).reshape(3, 4).T, "b": np.arange(24).reshape(2, 3, 4).T},
    "distributed#876: strided": lambda: {
        "columns": np.arange(24).reshape(4, 6)[:, ::2],
        "rows": [np.arange(20)[::3], np.arange(9.0).reshape(3, 3)[:, 1], np.arange(5)[1:1:2]],
        "field": np.zeros(3, [("x", "i4"), ("y", "f8")])["y"],
        "real": np.array([1 + 2j, 3 + 4j]).imag,
    },
    "sipyco#5: reversed": lambda: {"a": np.arange(5)[::-1], "b": np.arange(6).reshape(2, 3)[::-1, ::-1], "c": ["x"]},
    "broadcast": lambda: {"a": np.broadcast_to(np.arange(3), (4, 3)), "b": np.broadcast_to(np.float32(2), (2, 2))},
    "unaligned": lambda: {
        "a": np.arange(33, dtype="u1")[1:].view("i8"),
        "b": [np.arange(9, dtype="u1")[1:].view("f8")],
    },
    "read-only input": lambda: {"a": np.frombuffer(bytes(range(16)), "i4"), "b": [np.frombuffer(b"abcd", "u1")] * 2},
    "many dimensions": lambda: {"a": np.arange(2**10).reshape((2,) * 10), "b": np.zeros((1,) * 64, "i1")},
    "structured": lambda: {
        "plain": np.array([(1, 2.0), (3, -0.0)], [("a", "i4"), ("b", "f8")]),
        "aligned": np.array([(1, 2)], np.dtype([("a", "i1"), ("b", "i8")], align=True)),
        "rows": [np.zeros(n, [("a", "i4"), ("b", "u1")]) for n in (1, 2)],
        "big-endian": np.array([(1, 2.5)], [("a", ">i4"), ("b", ">f8")]),
        "0-d": np.array((1, b"x"), [("a", "i2"), ("b", "S3")]),
    },
    "structured layouts": lambda: {
        "offsets": np.ones(2, {"names": ["a", "b"], "formats": ["u1", "f4"], "offsets": [7, 1], "itemsize": 12}),
        "overlap": np.ones(2, {"names": ["a", "b"], "formats": ["i4", "u1"], "offsets": [0, 1]}),
        "titles": np.ones(2, {"names": ["a"], "formats": ["i4"], "titles": ["the a"]}),
        "odd names": np.ones(1, [("é/.", "i4"), ("a b", "f4"), ("\U0001f600", "i1")]),
        "subarray": np.ones(2, [("m", "f4", (2, 3)), ("e", "i2", (0,))]),
        "nested": np.ones(2, [("p", [("x", "f4"), ("y", ">f4")]), ("t", "M8[ms]"), ("s", "U2")]),
        "part of fields": np.ones(2, [("a", "i4"), ("b", "f8"), ("c", "i2")])[["a", "c"]],
    },
    "numpy#28812: object array of equal rows": lambda: {
        "two": objects(np.arange(3), np.arange(3)),
        "one": objects(np.arange(3)),
        "empty rows": objects(np.zeros(0, "i8"), np.zeros(0, "i8")),
    },
    "verl#2741: object arrays ragged and equal": lambda: {
        "ragged": objects(np.arange(2), np.arange(3)),
        "equal": objects(np.arange(2), np.arange(2)),
        "lists": objects([1, 2], [3, 4]),
    },
    "object arrays": lambda: {
        "mixed": objects(1, "a", None, 2.5, b"x", [1], {"k": (1,)}, np.int8(3)),
        "2-d": objects(1, "a", None, [2]).reshape(2, 2),
        "nested": objects(objects(1, 2), objects()),
        "none": objects(),
        "text": np.array(["a", "bc"], object),
        "fortran": np.asfortranarray(objects(1, 2, 3, 4, 5, 6).reshape(2, 3)),
        "in a list": [objects(1), objects("x", None)],
    },
    "two dense fields of different first dimension": lambda: {
        "a": np.arange(12.0).reshape(4, 3),
        "b": np.arange(10, dtype="i4").reshape(2, 5),
        "c": np.array(1),
    },
    "larger dense array": lambda: {"a": rng(1).integers(0, 2**62, (1000, 1000)), "b": rng(2).random((3, 100_003))},
    "field dtypes beside each other": lambda: {f"f{i}": of_bits(c, (5,)) for i, c in enumerate(NUMBERS)},
    "odd sizes next to each other": lambda: {f"n{n}": np.arange(n, dtype="u1") for n in range(70)},
}
