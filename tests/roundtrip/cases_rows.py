"""Cases: row lists, one value per sample."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

Case = Callable[[], dict[Any, Any]]
rng = np.random.default_rng
nan = float("nan")


def ragged(*lengths: int, dtype: str = "i4") -> list[np.ndarray]:
    return [np.arange(i, i + n).astype(dtype) for i, n in enumerate(lengths)]


def rollout(samples: int) -> dict[str, Any]:
    """The batch of DESIGN section 8: a fresh allocation for every row."""
    random = rng(0)
    prompts = [int(n) for n in random.integers(50, 110, samples)]
    return {
        "partition": list(range(samples)),
        "tokens": [random.integers(0, 150_000, 256 + p, dtype=np.int32) for p in prompts],
        "loss_masks": [np.ones(256, np.int32) for _ in prompts],
        "rollout_log_probs": [random.standard_normal(256, dtype=np.float32) for _ in prompts],
        "sample_indices": [8 * i for i in range(samples)],
        "response_lengths": [256] * samples,
        "truncated": [i % 2 for i in range(samples)],
        "total_lengths": [256 + p for p in prompts],
        "rewards": [0.5 * (i % 3) for i in range(samples)],
        "raw_reward": [1.0 / (i + 1) for i in range(samples)],
        "weight_versions": [["v1", "v2"][: 1 + i % 2] for i in range(samples)],
    }


CASES: dict[str, Case] = {
    "rollout shard": lambda: rollout(64),
    "rollout of 3,000 samples": lambda: rollout(3000),
    "rollout as Python lists": lambda: {
        k: [x.tolist() if isinstance(x, np.ndarray) else x for x in v] for k, v in rollout(50).items()
    },
    "lists of different lengths": lambda: {"a": [1, 2, 3], "b": ragged(1), "c": [], "d": ["x"] * 5},
    "empty batch": lambda: {},
    "empty lists": lambda: {"a": [], "b": [], "c": [[]], "d": [[], []], "e": (), "f": ((),)},
    "slime#1976: a field that is None": lambda: {"rollout_log_probs": None, "tokens": ragged(3, 2)},
    "all-None columns": lambda: {"a": [None, None, None], "b": [None], "c": (None, None)},
    "None among rows": lambda: {
        "first": [None, *ragged(2, 3)],
        "last": [*ragged(2, 2), None],
        "middle": [np.zeros(0, "f4"), None, np.zeros(3, "f4")],
        "numbers": [1, None, 3],
        "floats": [1.0, None, nan],
        "text": ["a", None, ""],
        "bytes": [None, b"", b"a"],
        "lists": [[1], None, []],
        "bools": [True, None, False],
        "dicts": [{"a": 1}, None, {}],
    },
    "slime#945: missing, None, empty and zeros are four": lambda: {
        "samples": [{}, {"p": None}, {"p": []}, {"p": np.zeros(0, "f4")}, {"p": [np.array(0.0)] * 3}, {"p": nan}],
        "p1": None,
        "p2": [],
        "p3": [0.0] * 3,
        "p4": {},
    },
    "slime#2157: rewards None, dict or number": lambda: {"rewards": [None, {"teacher": [-0.1]}, 1.0]},
    "mixed types in one list": lambda: {
        "numbers": [1, 2.0, True, 3],
        "int and float": [1, 1.0],
        "bool and int": [True, 1, False, 0],
        "array and list": [np.arange(2), [0, 1]],
        "everything": [1, "a", None, b"b", np.arange(3), [1], (1,), {"k": 1}, {1}, 2.5, 1j, np.int8(1)],
        "dtypes": [np.zeros(2, "i4"), np.zeros(2, "i8"), np.zeros(2, "f4")],
        "byte orders": [np.zeros(2, "<i4"), np.zeros(2, ">i4")],
        "text and bytes": ["a", b"a"],
        "tuples and lists": [(1, 2), [1, 2]],
    },
    "verl#6407: equal-length rows stay rows": lambda: {
        "i8": [np.arange(7) + i for i in range(4)],
        "one row": [np.arange(7)],
        "matrices": [np.ones((2, 3))] + [np.zeros((2, 3))] * 2,
        "lists": [[1, 2], [3, 4]],
        "scalars": [np.array(1), np.array(2)],
    },
    "pymdp#130: rows of one first dimension and other ranks": lambda: {"a": [np.zeros((3, 6)), np.zeros((3, 4, 5))]},
    "rows of 0 to 4 dims": lambda: {
        "mixed": [np.ones((2,) * n, "f4") for n in range(5)],
        "0-d": [np.array(i, "i2") for i in range(3)],
        "2-d": [np.ones((n, 3), "f4") for n in (2, 0, 5)],
        "3-d": [np.ones((n, 2, 2), "i1") for n in (1, 3)],
        "4-d": [np.ones((2, n, 1, 2), "u2") for n in (1, 3)],
    },
    "verl#6675: empty rows": lambda: {
        "a": ragged(5, 0, 3),
        "b": ragged(0, 4),
        "c": ragged(0, 0, 0),
        "d": ragged(),
        "e": [np.zeros((0, 3), "f2"), np.zeros((2, 3), "f2")],
        "f": [np.zeros((0, 3)), np.zeros((0, 4))],
        "lists": [[1, 2], [], [3]],
        "empty lists only": [[], []],
    },
    "bool rows": lambda: {
        "arrays": [np.array([True, False]), np.array([False])],
        "lists": [[True, False], [False]],
        "scalars": [True, False],
        "numpy": [np.bool_(True), np.bool_(False)],
    },
    "ints beyond 64 bits": lambda: {
        "i8 edges": [2**63 - 1, -(2**63)],
        "above": [2**63, 1],
        "u8 edge": [2**64 - 1, 0],
        "below": [-(2**63) - 1],
        "huge": [2**200, -(2**200), 0],
        "nested": [[2**64, 1], [2]],
        "mixed signs": [2**64 - 1, -1],
        "alone": 2**65,
        "very huge": 10**5000,
    },
    "int widths": lambda: {
        f"{sign * 2**bits}": [sign * 2**bits, 0, 1] for bits in (7, 8, 15, 16, 31, 32, 63) for sign in (1, -1)
    },
    "int columns by range": lambda: {
        "tiny": [0, 1, 255],
        "i1": [-128, 127],
        "u2": [65535],
        "nested": [[0, 127], [128], [-1]],
        "deep": [[[1], [2, 300]], [[]], []],
        "deeper": [[[[1]]], [[[]]], [[]]],
        "uneven": [[1], [[2]], 3],
    },
    "float columns": lambda: {
        "floats": [0.1, -0.0, 0.0, float("inf"), -float("inf"), nan, 5e-324],
        "payloads": list(
            struct.unpack("<3d", struct.pack("<3Q", 0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001))
        ),
        "whole": [1.0, 2.0],
        "nested": [[0.1], [], [nan, -0.0]],
        "halves exact": [0.5, 0.25],
        "with int": [0.5, 1],
        "nested with int": [[0.5], [1]],
        "with None inside": [[0.5, None], [1.0]],
    },
    "complex column": lambda: {"a": [1j, complex(-0.0, nan), complex(nan, -0.0)], "b": [[1j], []]},
    "text columns": lambda: {
        "plain": ["a", "bcd", ""],
        "unicode": ["é", "\U0001f600", "日本", "e\u0301"],
        "NUL": ["a\0", "\0", "\0\0b"],
        "empty only": ["", "", ""],
        "nested": [["a", "b"], [], ["c"]],
        "long": ["x" * 100_000, "é" * 50_000],
        "deep": [[["a"], []], []],
    },
    "lone surrogates": lambda: {
        "column": ["\ud800", "ok", "\udfff"],
        "pair kept apart": ["\ud83d\ude00", "\U0001f600"],
        "nested": {"\udc80": ["\udc80\udcff"]},
        "\ud800": "key",
    },
    "Mooncake#2671: bytes stay bytes": lambda: {
        "raw": b"abc",
        "e": b"",
        "ba": bytearray(b"x"),
        "column": [b"", b"a", b"\0\0"],
        "bytearrays": [bytearray(b""), bytearray(b"ab")],
        "mixed": [b"a", bytearray(b"a"), "a"],
        "nested": [[b"a"], []],
    },
    "numpy scalars in columns": lambda: {
        "same": [np.float32(0.5), np.float32(nan)],
        "mixed": [np.int64(1), 1, np.int32(1), 1.0],
        "text": [np.str_("a"), "a", np.bytes_(b"b")],
        "times": [np.datetime64("2024-01-01"), np.timedelta64(3, "s"), np.datetime64("NaT")],
        "nested": [[np.int64(1), 1], [np.bool_(True)]],
    },
    "tuples of rows": lambda: {
        "arrays": tuple(ragged(1, 2)),
        "numbers": (1, 2, 3),
        "text": ("a", "b"),
        "of tuples": ((1, 2), (3,)),
        "list of tuples": [(1, 2), (3, 4)],
        "tuple of lists": ([1], [2, 3]),
        "none": (None,),
    },
    "lists of lists of arrays": lambda: {
        "ragged": [ragged(1, 2), ragged(), ragged(3)],
        "with None": [[None, np.zeros(1)], None],
        "deep": [[[np.zeros(1)], []], [[]]],
    },
    "dict rows": lambda: {
        "same keys": [{"a": i, "b": str(i), "c": np.arange(i)} for i in range(5)],
        "key order differs": [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        "missing keys": [{"a": 1}, {"b": None}, {}, {"a": None}],
        "types differ": [{"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": True}],
        "nested": [{"a": {"b": [{"c": ()}]}}, {"a": {"b": []}}],
        "int keys": [{0: 1}, {1: 0}],
    },
    "one sample": lambda: {"a": ragged(3), "b": [1], "c": ["x"], "d": [None], "e": [[1.5]], "f": np.zeros((1, 2))},
    "long columns": lambda: {
        "ints": list(range(50_000)),
        "floats": [i / 7 for i in range(50_000)],
        "text": [str(i) for i in range(20_000)],
        "rows": [np.full(i % 5, i) for i in range(20_000)],
        "lists": [[i] * (i % 4) for i in range(20_000)],
    },
    "a wrong value hides at the end": lambda: {
        "ints": [1] * 5000 + [True],
        "floats": [1.0] * 5000 + [1],
        "text": ["a"] * 5000 + [b"a"],
        "rows": [*ragged(*[2] * 3000), np.zeros(2, "i8")],
        "lists": [[1]] * 3000 + [[1.0]],
        "None": [1] * 3000 + [None],
    },
    "rows that are views of one array": lambda: {"a": list(np.arange(12.0).reshape(4, 3)), "b": list(np.eye(3).T)},
    "rows of structs and text": lambda: {
        "structs": [np.zeros(n, [("x", "f4"), ("y", "i8")]) for n in (0, 2)],
        "S": [np.array([b"a", b"bc"]), np.array([b"d", b"ef"])],
        "U": [np.array(["a"]), np.array(["bcd"])],
    },
}
