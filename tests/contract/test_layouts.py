"""Every kind of column keeps the contract of layouts."""

import fractions
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image

from rollferry.layouts.arrays import Dense, Ragged
from rollferry.layouts.kinds import AnySpec
from rollferry.layouts.media import Media
from rollferry.layouts.numbers import Numbers
from rollferry.layouts.pickled import Pickled
from rollferry.layouts.text import Text
from rollferry.layouts.tree.jagged import Jagged
from rollferry.layouts.tree.null import Null
from rollferry.layouts.tree.objects import Objects
from rollferry.layouts.tree.record import Map, Record
from rollferry.layouts.tree.registered import Registered
from rollferry.layouts.tree.scalars import Scalars
from rollferry.layouts.tree.sequence import Sequence
from rollferry.layouts.tree.shared import Shared
from rollferry.layouts.tree.union import Union
from rollferry.testing.contracts import LayoutContract


class TestDense(LayoutContract):
    kind = Dense

    @staticmethod
    def columns() -> list[list[Any]]:
        structured = np.array([(1, b"ab"), (2, b"c")], [("id", ">i4"), ("name", "S3")])
        arrays = [np.arange(6).reshape(2, 3).T, np.array(1.5), np.empty((0, 2)), structured, np.array(["é", "ab"])]
        tensors = [torch.arange(4, dtype=torch.bfloat16), torch.tensor(True), torch.empty(0, 3), torch.ones(2, 2).t()]
        return [[array] for array in [*arrays, *tensors]]


class TestRagged(LayoutContract):
    kind = Ragged

    @staticmethod
    def columns() -> list[list[Any]]:
        shapes = [(2, 3), (0, 3), (1, 1)]
        return [
            [np.arange(n, dtype=np.int32) for n in (3, 0, 1)],
            [np.arange(10)[::3], np.arange(2)],
            [np.full((n, 2), n, np.float16) for n in (1, 0, 2)],
            [np.ones(shape) for shape in shapes],
            [np.array(1), np.array(2)],
            [torch.arange(n) for n in (3, 0, 1)],
            [torch.ones(shape) for shape in shapes],
            [torch.tensor(1.5), torch.tensor(float("nan"))],
        ]


class TestNumbers(LayoutContract):
    kind = Numbers

    @staticmethod
    def columns() -> list[list[Any]]:
        floats = [0.1, float("nan"), -0.0]
        return [[0, 255], [-1, 300], [2**64 - 1], [True, False], floats, [0.5, 1.5], [[1, 2], []], [(1.5,), ()]]


class TestText(LayoutContract):
    kind = Text

    @staticmethod
    def columns() -> list[list[Any]]:
        return [["", "abc", "ü\U0001f680\ud800"], [b"", b"\0\xff"], [bytearray(b"abc")], [["a"], [], ["b", "c"]]]


class TestMedia(LayoutContract):
    kind = Media

    @staticmethod
    def columns() -> list[list[Any]]:
        palette = Image.new("P", (3, 2), 1)
        palette.putpalette([1, 2, 3, 4, 5, 6])
        return [[Image.frombytes("RGB", (2, 1), b"abcdef"), palette], [Image.new("1", (9, 2)), Image.new("L", (0, 2))]]


class TestPickled(LayoutContract):
    kind = Pickled
    allow_pickle = True

    @staticmethod
    def columns() -> list[list[Any]]:
        return [[fractions.Fraction(1, 3), fractions.Fraction(2)]]


class TestNull(LayoutContract):
    kind = Null

    @staticmethod
    def columns() -> list[list[Any]]:
        return [[None] * 9, [], [None, 1], [[None, None], []]]


class TestSequence(LayoutContract):
    kind = Sequence

    @staticmethod
    def columns() -> list[list[Any]]:
        return [[[1, "a"], []], [(1, 2), ()], [[[None]], [[], [1]]], [[np.arange(2)], []]]


class TestRecord(LayoutContract):
    kind = Record

    @staticmethod
    def columns() -> list[list[Any]]:
        return [[{"a": 1}, {"a": 2}], [{}, {}], [{"a": 1, 2: "x"}, {2: None, "a": 3}, {}], [{"a": {"b": []}}]]


class TestMap(LayoutContract):
    kind = Map

    @staticmethod
    def columns() -> list[list[Any]]:
        return [[{(1, 2): 3, None: "x"}, {}], [{f"k{i}": i} for i in range(40)], [{1: 1, "\ud800": 2}]]


class TestUnion(LayoutContract):
    kind = Union

    @staticmethod
    def columns() -> list[list[Any]]:
        many = [np.zeros(1, f"S{n + 1}") for n in range(300)]
        return [[1, "a", None, 1.5, True], [np.arange(2), np.ones(2)], many]


class TestShared(LayoutContract):
    kind = Shared

    @staticmethod
    def columns() -> list[list[Any]]:
        array, text = np.arange(3), "x" * 100
        return [[array, np.ones(2, int), array], [text, "y", text], [[array], [array, array]], [array, [array]]]


class TestObjects(LayoutContract):
    kind = Objects

    @staticmethod
    def columns() -> list[list[Any]]:
        return [[np.array([1, "a", None], object), np.empty((0, 2), object), np.array({"k": []}, object)]]


class TestScalars(LayoutContract):
    kind = Scalars

    @staticmethod
    def columns() -> list[list[Any]]:
        return [[np.float32(0.5), np.float32("nan")], [np.int8(1), np.datetime64("NaT", "s")], [np.bool_(True)]]


class TestRegistered(LayoutContract):
    kind = Registered

    @staticmethod
    def columns() -> list[list[Any]]:
        values = [[2**70, -(2**64)], [1j], [range(3)], [{1, "a"}], [frozenset()], [np.str_("a\0")], [torch.Size([1])]]
        return [*values, [np.zeros(2, "V0")], [torch.int8, torch.device("cpu")]]


class TestJagged(LayoutContract):
    kind = Jagged

    @staticmethod
    def columns() -> list[list[Any]]:
        parts = [torch.ones(2), torch.ones(0), torch.ones(3)]
        jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
        values, offsets = torch.arange(12).reshape(2, 6), torch.tensor([0, 2, 2, 6])
        gaps = torch.nested.nested_tensor_from_jagged(values, offsets, torch.tensor([1, 0, 3]), jagged_dim=2)
        return [[jagged], [jagged, gaps, torch.nested.nested_tensor_from_jagged(values[0] * 2, offsets)]]


def test_every_kind_is_tested() -> None:
    tested = {value.kind for value in globals().values() if isinstance(value, type) and hasattr(value, "kind")}
    assert tested == set(get_args(AnySpec))
