"""The comparer must tell every near miss apart, and take faithful copies of the same values as the same."""

import copy
import dataclasses
import enum
import struct
from collections import OrderedDict, namedtuple

import numpy as np
import pytest

from rollferry.testing import assert_same, differences

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")
tensordict = pytest.importorskip("tensordict")

Point = namedtuple("Point", "x y")
Other = namedtuple("Other", "x y")
Colour = enum.Enum("Colour", "RED BLUE")
Level = enum.IntEnum("Level", "LOW HIGH")


@dataclasses.dataclass(frozen=True)
class Sample:
    tokens: object
    score: float = 0.0


class Column(np.ndarray):
    """An array subclass without anything of its own."""


def nan(bits: int) -> float:
    return struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000 | bits))[0]


def typed(values: object, dtype: object) -> np.ndarray:
    return np.array(values, dtype=dtype)


def objects(*values: object, shape: tuple[int, ...] | None = None) -> np.ndarray:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array if shape is None else array.reshape(shape)


def struct_dtype(**changes: object) -> np.dtype:
    return np.dtype({"names": ["a", "b"], "formats": ["<i4", "<f4"], "offsets": [0, 4], "itemsize": 8, **changes})


def padded(fill: int) -> np.ndarray:
    return np.full(12, fill, np.uint8).view({"names": ["a"], "formats": ["u1"], "offsets": [3], "itemsize": 12})


def palette(mode: str = "P", colours: list[int] | None = None, transparency: object = None) -> Image.Image:
    image = Image.new(mode, (2, 2))
    image.putpalette(colours or [1, 2, 3, 4, 5, 6])
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


def jagged(*lengths: int, dtype: object = torch.float32) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(n, 2, dtype=dtype) for n in lengths], layout=torch.jagged)


def td(values: dict, batch_size: list[int], **options: object) -> object:
    return tensordict.TensorDict(values, batch_size=batch_size, **options)


t = torch.tensor
x87 = np.finfo(np.longdouble).nmant == 63

# Each pair is different; each side is the same as a copy of itself.
NEAR_MISSES = {
    "int and bool": (1, True),
    "int and float": (1, 1.0),
    "int and numpy int": (1, np.int64(1)),
    "float and numpy float": (1.0, np.float64(1.0)),
    "str and numpy str": ("a", np.str_("a")),
    "bool and numpy bool": (True, np.bool_(True)),
    "int64 and longlong": (np.int64(1), np.longlong(1)),
    "numpy str NUL": (np.str_("a\0"), np.str_("a")),
    "big ints": (2**70, 2**70 + 1),
    "huge ints": (10**5000, 10**5000 + 1),
    "huge keys": ({10**5000: {1: 0}}, {10**5000: {1: 1}}),
    "huge members": ({10**5000}, {10**5000 + 1}),
    "zeros": (0.0, -0.0),
    "NaN payloads": (nan(0), nan(1)),
    "NaN and None": (nan(0), None),
    "complex zeros": (complex(0, 0.0), complex(0, -0.0)),
    "numpy float payload": (np.float64(nan(0)), np.float64(nan(2))),
    "numpy zeros": (np.float32(0.0), np.float32(-0.0)),
    "datetime units": (np.datetime64(0, "s"), np.datetime64(0, "ms")),
    "datetime multiples": (np.datetime64(0, "25s"), np.datetime64(0, "s")),
    "NaT kinds": (np.datetime64("NaT"), np.timedelta64("NaT")),
    "bytes and bytearray": (b"a", bytearray(b"a")),
    "bytes and str": (b"a", "a"),
    "bytearrays": (bytearray(b"a"), bytearray(b"b")),
    "surrogates": ("\ud800", "\udc00"),
    "None and empty list": (None, []),
    "empty list and dict": ([], {}),
    "list and tuple": ([1], (1,)),
    "tuple and namedtuple": ((1, 2), Point(1, 2)),
    "namedtuples": (Point(1, 2), Other(1, 2)),
    "tuple and Size": ((2, 3), torch.Size([2, 3])),
    "set and frozenset": ({1}, frozenset({1})),
    "set members' types": ({1}, {True}),
    "set zeros": ({0.0}, {-0.0}),
    "set of tuples": ({(1, 2)}, {(1, 2.0)}),
    "set of sets": ({frozenset({1})}, {frozenset({1.0})}),
    "set of numpy": ({np.int8(1)}, {np.int16(1)}),
    "NaNs in sets": ({nan(0)}, {nan(1)}),
    "number of NaNs in sets": ({nan(0), nan(0)}, {nan(0)}),
    "range values": (range(0), range(1, 1)),
    "range and list": (range(2), [0, 1]),
    "enums": (Colour.RED, Colour.BLUE),
    "enum and int": (Level.LOW, 1),
    "dataclass fields": (Sample(1, 0.0), Sample(1, -0.0)),
    "dataclass nested": (Sample([1]), Sample([1.0])),
    "list length": ([1, 2], [1]),
    "list NaN": ([nan(0), 1.0], [nan(1), 1.0]),
    "nested last": ([[0] * 50, {"a": (1, [2])}], [[0] * 50, {"a": (1, [2.0])}]),
    "dict order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "dict keys bool": ({1: 0}, {True: 0}),
    "dict keys float": ({1: 0}, {1.0: 0}),
    "dict keys numpy": ({1: 0}, {np.int64(1): 0}),
    "dict keys str": ({1: 0}, {"1": 0}),
    "dict keys tuple": ({(1, 2): 0}, {(1, 2.0): 0}),
    "dict keys NaN": ({nan(0): 0}, {nan(1): 0}),
    "dict keys dataclass": ({Sample(1): 0}, {Sample(True): 0}),
    "dict missing": ({"a": None}, {}),
    "dict and OrderedDict": ({"a": 1}, OrderedDict(a=1)),
    "OrderedDict order": (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    "array and list": (typed([1], "i8"), [1]),
    "array dtypes": (typed([1], "i4"), typed([1], "i8")),
    "array signs": (typed([1], "i4"), typed([1], "u4")),
    "array byte order": (typed([1], "<i4"), typed([1], ">i4")),
    "array byte order swapped": (typed([1], "<i4"), typed([1], "<i4").byteswap().view(">i4")[::-1]),
    "array of bool and u1": (typed([1], "?"), typed([1], "u1")),
    "array shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "array 0-d": (np.zeros(()), np.zeros(1)),
    "array zero sizes": (np.zeros((0, 3)), np.zeros((3, 0))),
    "array zero-size dtypes": (np.zeros(0, "i4"), np.zeros(0, "f4")),
    "array zeros": (typed([0.0], "f2"), typed([-0.0], "f2")),
    "array NaN": (typed([nan(0)], "f8"), typed([nan(1)], "f8")),
    "array last": (np.zeros(1000), np.eye(1, 1000, 999)[0]),
    "longdouble": (np.zeros(3, "g"), np.zeros(3, "g") + np.finfo("g").tiny),
    "longdouble big-endian": (np.zeros(2, ">f16"), np.zeros(2, ">f16") + np.finfo("g").tiny),
    "longdouble zeros": (np.zeros(1, "g"), -np.zeros(1, "g")),
    "clongdouble": (np.zeros(3, "G"), np.zeros(3, "G") + 1j * np.finfo("g").tiny),
    "S width": (typed([b"a"], "S1"), typed([b"a"], "S2")),
    "U width": (typed(["a"], "U1"), typed(["a"], "U2")),
    "U byte order": (typed(["a"], "<U1"), typed(["a"], ">U1")),
    "U and object": (typed(["a"], "U1"), objects("a")),
    "M8 units": (typed([0], "M8[s]"), typed([0], "M8[ms]")),
    "M8 and m8": (typed([0], "M8[s]"), typed([0], "m8[s]")),
    "M8 NaT": (typed(["NaT"], "M8[s]"), typed([0], "M8[s]")),
    "struct names": (np.zeros(1, struct_dtype()), np.zeros(1, struct_dtype(names=["a", "c"]))),
    "struct order": (np.zeros(1, struct_dtype()), np.zeros(1, [("b", "<f4"), ("a", "<i4")])),
    "struct offsets": (np.zeros(1, struct_dtype(itemsize=12)), np.zeros(1, struct_dtype(itemsize=12, offsets=[0, 8]))),
    "struct itemsize": (np.zeros(1, struct_dtype()), np.zeros(1, struct_dtype(itemsize=16))),
    "struct titles": (np.zeros(1, struct_dtype()), np.zeros(1, struct_dtype(titles=["A", "B"]))),
    "struct byte order": (np.zeros(1, struct_dtype()), np.zeros(1, struct_dtype(formats=["<i4", ">f4"]))),
    "struct subarray": (np.zeros(1, [("a", "i4", (2, 3))]), np.zeros(1, [("a", "i4", (3, 2))])),
    "struct nested": (np.zeros(1, [("a", [("b", "i4")])]), np.zeros(1, [("a", [("c", "i4")])])),
    "struct values": (typed([(1, 0.0)], struct_dtype()), typed([(1, -0.0)], struct_dtype())),
    "struct objects": (typed([(1,)], [("o", "O")]), typed([(1.0,)], [("o", "O")])),
    "void scalars": (np.zeros(1, struct_dtype())[0], np.zeros(1, struct_dtype(titles=["A", "B"]))[0]),
    "void bytes": (np.void(b"ab"), np.void(b"ac")),
    "void arrays": (np.zeros(2, "V3"), np.ones(6, "u1").view("V3")),
    "record arrays": (np.zeros(1, struct_dtype()), np.zeros(1, struct_dtype()).view(np.recarray)),
    "record dtype": (np.zeros(1, struct_dtype()), np.zeros(1, np.dtype((np.record, struct_dtype())))),
    "array subclass": (np.zeros((1, 1)), np.zeros((1, 1)).view(Column)),
    "mask": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[0, 0])),
    "string dtype": (typed(["a"], np.dtypes.StringDType()), typed(["b"], np.dtypes.StringDType())),
    "object items": (objects(1, "a"), objects(1, b"a")),
    "object item types": (objects(1), objects(True)),
    "object rows": (objects(np.zeros(3), np.zeros(3)), np.zeros((2, 3)).astype(object)),
    "object shape": (objects(1, 2, shape=(2, 1)), objects(1, 2, shape=(1, 2))),
    "object nested arrays": (objects(np.zeros(2, "i4")), objects(np.zeros(2, "i8"))),
    "rows": ([np.zeros(3), np.zeros(2)], [np.zeros(3), np.zeros(3)]),
    "rows None": ([None, np.zeros(2)], [np.zeros(0), np.zeros(2)]),
    "rows became dense": ([np.zeros(3), np.zeros(3)], np.zeros((2, 3))),
    "tensor and array": (torch.zeros(2), np.zeros(2, "f4")),
    "tensor dtypes": (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    "tensor halves": (torch.zeros(2, dtype=torch.float16), torch.zeros(2, dtype=torch.bfloat16)),
    "tensor float8": (torch.zeros(2, dtype=torch.float8_e4m3fn), torch.zeros(2, dtype=torch.float8_e5m2)),
    "tensor bf16 bits": (t([0.0]).bfloat16(), t([-0.0]).bfloat16()),
    "tensor NaN bits": tuple(t([bits], dtype=torch.int16).view(torch.bfloat16) for bits in (0x7FC0, 0x7FC1)),
    "tensor shape": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "tensor 0-d": (torch.zeros(()), torch.zeros(1)),
    "tensor empty": (torch.zeros(0, 2), torch.zeros(2, 0)),
    "tensor uint16": (t([65535], dtype=torch.uint16), t([-1], dtype=torch.int16)),
    "tensor conjugate": (t([1 + 1j]).conj(), t([1 + 1j])),
    "tensor last value": (torch.zeros(1000), torch.cat([torch.zeros(999), torch.ones(1)])),
    "requires_grad": (torch.zeros(1), torch.zeros(1, requires_grad=True)),
    "parameter": (torch.zeros(1), torch.nn.Parameter(torch.zeros(1), requires_grad=False)),
    "sparse": (torch.zeros(2, 2), torch.zeros(2, 2).to_sparse()),
    "meta": (torch.zeros(2), torch.zeros(2, device="meta")),
    "nested and dense": (jagged(2, 2), torch.ones(2, 2, 2)),
    "nested lengths": (jagged(2, 1), jagged(1, 2)),
    "nested empty row": (jagged(2, 0), jagged(2)),
    "nested dtypes": (jagged(2, 1), jagged(2, 1, dtype=torch.float64)),
    "nested values": (jagged(2, 1), jagged(2, 1) * 2),
    "td and dict": (td({"a": torch.zeros(2)}, [2]), {"a": torch.zeros(2)}),
    "td batch size": (td({"a": torch.zeros(2, 2)}, [2]), td({"a": torch.zeros(2, 2)}, [2, 2])),
    "td names": (td({}, [2]), td({}, [2], names=["time"])),
    "td device": (td({}, [2]), td({}, [2], device="cpu")),
    "td order": (td({"a": t([1]), "b": t([2])}, [1]), td({"b": t([2]), "a": t([1])}, [1])),
    "td nested": (td({"n": {"a": t([1])}}, [1]), td({"n": {"a": t([2])}}, [1])),
    "td nested batch": (td({"n": td({"a": t([1])}, [])}, []), td({"n": td({"a": t([1])}, [1])}, [])),
    "td non-tensor": (td({"s": "a"}, []), td({"s": "b"}, [])),
    "td non-tensor type": (td({"s": tensordict.NonTensorData(1)}, []), td({"s": tensordict.NonTensorData(True)}, [])),
    "td stack": (
        tensordict.LazyStackedTensorDict(td({"a": t([1])}, []), td({"a": t([1, 2])}, [])),
        tensordict.LazyStackedTensorDict(td({"a": t([1])}, []), td({"a": t([1, 3])}, [])),
    ),
    "image mode": (Image.new("L", (2, 2)), Image.new("P", (2, 2))),
    "image size": (Image.new("L", (2, 3)), Image.new("L", (3, 2))),
    "image pixels": (Image.new("RGB", (2, 2)), Image.new("RGB", (2, 2), (0, 0, 1))),
    "image palette": (palette(), palette(colours=[1, 2, 3, 4, 5, 7])),
    "image transparency": (palette(transparency=0), palette(transparency=1)),
    "image transparency type": (palette(transparency=0), palette(transparency=b"\0")),
    "image transparency missing": (palette(transparency=0), palette()),
    "image and array": (Image.new("L", (2, 2)), np.zeros((2, 2), "u1")),
}


def copied(value: object) -> object:
    return copy.deepcopy(value)


@pytest.mark.parametrize("name", NEAR_MISSES)
@pytest.mark.parametrize("wrap", ["bare", "in a list", "in a dict", "in an object array"])
def test_near_misses_are_different(name: str, wrap: str) -> None:
    wraps = {"bare": lambda v: v, "in a list": lambda v: [0, v], "in a dict": lambda v: {"k": v}}
    left, right = map(wraps.get(wrap, objects), NEAR_MISSES[name])
    assert differences(left, right)
    assert differences(right, left)
    with pytest.raises(AssertionError, match="values differ"):
        assert_same(left, right)


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_copies_are_the_same(name: str) -> None:
    for value in NEAR_MISSES[name]:
        assert differences(copied(value), value) == []
        assert_same([value, {"a": (value,)}], [copied(value), {"a": (copied(value),)}])


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        ({"metadata": [{"tools": [1]}]}, {"metadata": [{"tools": [2]}]}, "metadata[0].tools[0]: 1, expected 2"),
        ({"a": {"odd key": 1}}, {"a": {"odd key": 2}}, "a['odd key']: 1, expected 2"),
        ({"a": {3: 1}}, {"a": {3: 2}}, "a[3]: 1, expected 2"),
        ({"/": 1}, {"/": 2}, "['/']: 1, expected 2"),
        ({"a": Point(1, 2)}, {"a": Point(1, 3)}, "a.y: 2, expected 3"),
        ({"a": objects(1, 2, shape=(1, 2))}, {"a": objects(1, 3, shape=(1, 2))}, "a[0, 1]: 2, expected 3"),
        ({"a": 1}, {"a": None}, "a: type builtins.int, expected builtins.NoneType"),
        ({"a": 1}, {"b": 1}, "value: missing keys ['b']"),
        ({"a": {"b": 1, "c": 1}}, {"a": {"c": 1, "b": 1}}, "a: key order ['b', 'c'], expected ['c', 'b']"),
    ],
)
def test_paths_and_messages(actual: object, expected: object, message: str) -> None:
    assert differences(actual, expected)[0] == message


def test_padding_of_structs_and_memory_order_do_not_count() -> None:
    left, right = padded(1), padded(2)
    left["a"] = right["a"]
    assert_same(left, right)
    assert_same(np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(6).reshape(2, 3))
    if x87:
        bits = np.full(16, 7, np.uint8)
        bits[:10] = np.frombuffer(np.longdouble(1.5).tobytes(), np.uint8)[:10]
        assert_same(bits.view("g"), np.array([1.5], "g"))


@pytest.mark.parametrize("dtype", [torch.int16, torch.bfloat16, torch.bool, torch.complex128])
def test_strides_of_tensors_do_not_count(dtype: object) -> None:
    for shape in [(), (1,), (4,), (0,), (3, 2)]:
        spread = torch.ones((*shape, 2), dtype=dtype)[..., 0]
        assert_same(spread, torch.ones(shape, dtype=dtype))
        assert_same(torch.from_numpy(np.ones(shape)), torch.ones(shape, dtype=torch.float64))


def test_image_files_come_back_as_plain_images(tmp_path: object) -> None:
    Image.new("RGB", (2, 2), "red").save(f"{tmp_path}/a.png")
    with Image.open(f"{tmp_path}/a.png") as image:
        assert_same(image.convert("RGB").copy(), image)


def test_deep_and_cyclic_values_do_not_overflow() -> None:
    deep: list[object] = [1]
    other: list[object] = [2]
    for _ in range(100_000):
        deep, other = [deep], [other]
    assert len(differences(deep, other)) == 1
    ring, loop = [1], [1]
    ring.append(ring)
    loop.append(loop)
    assert_same(ring, loop)
    while deep:  # free it without recursion
        deep, other = (deep.pop(), other.pop()) if isinstance(deep[0], list) else ([], [])


def test_shared_parts_are_compared_once() -> None:
    left: object = [0.0]
    right: object = [0.0]
    for _ in range(200):
        left, right = [left, left], [right, right]
    assert_same(left, right)


def test_the_limit_is_kept() -> None:
    assert len(differences(list(range(1000)), list(range(1, 1001)), limit=7)) == 7


def test_many_rows_compare_in_one_pass() -> None:
    rows = [np.full(int(n), n, np.int32) for n in np.random.default_rng(0).integers(0, 300, 39_221)]
    same = [row.copy() for row in rows]
    assert_same({"tokens": same}, {"tokens": rows})
    same[-1] = same[-1].astype(np.int64)
    assert len(differences(same, rows)) == 1
