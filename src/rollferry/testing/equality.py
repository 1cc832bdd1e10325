"""Strict comparison by the equality contract: types, order, dtypes, shapes and bits at every depth.

`differences` walks two values side by side with its own stack, so that neither deep nor cyclic values overflow it.
Two NaNs are the same when their bits are, 0.0 and -0.0 never are, and 1, True, 1.0 and np.int64(1) are four values.
Left out on purpose: memory order and alignment flags of arrays, `info` of images other than transparency, aliasing.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

__all__ = ["assert_same", "differences"]

Path: TypeAlias = "tuple[Path, str, Any] | None"
Pair: TypeAlias = tuple[Path, Any, Any]

_EXACT = frozenset({int, str, bytes, bool, type(None), bytearray})
_PLAIN_KINDS = frozenset("biufcSUmM")
_MISSING = object()


def assert_same(actual: object, expected: object) -> None:
    """Raise AssertionError, naming up to 20 places, unless both values are the same by the equality contract."""
    __tracebackhide__ = True
    found = differences(actual, expected, limit=20)
    if found:
        raise AssertionError("values differ:\n  " + "\n  ".join(found))


def differences(actual: object, expected: object, *, limit: int = 100) -> list[str]:
    """Describe where two values differ, at most `limit` places, each as `path: what`; empty when they are the same."""
    walk = _Walk(limit)
    walk.todo.append((None, actual, expected))
    while walk.todo and len(walk.found) < limit:
        path, left, right = walk.todo.pop()
        children = walk.compare(path, left, right)
        if children:
            walk.todo.extend(reversed(children))
    return walk.found


class _Walk:
    """State of one comparison: what is left to do, what was found, which pairs of containers were entered."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.todo: list[Pair] = []
        self.found: list[str] = []
        self.entered: dict[tuple[int, int], Pair] = {}  # keeps both values alive, so that ids stay theirs

    def report(self, path: Path, message: str) -> None:
        self.found.append(f"{_render(path)}: {message}")

    def fact(self, path: Path, name: str, actual: object, expected: object) -> bool:
        """Report a plain property that differs; true when it is equal."""
        if actual == expected:
            return True
        self.report(path, f"{name} {actual!r}, expected {expected!r}")
        return False

    def compare(self, path: Path, actual: Any, expected: Any) -> list[Pair] | None:
        if actual is expected:
            return None
        pil = sys.modules.get("PIL.Image")
        if pil is not None and isinstance(expected, pil.Image) and type(actual) in (pil.Image, type(expected)):
            return self.images(path, actual, expected)
        if type(actual) is not type(expected):
            self.report(path, f"type {_name(actual)}, expected {_name(expected)}")
            return None
        key = (id(actual), id(expected))
        if key in self.entered:
            return None
        if isinstance(expected, np.generic):
            self.numpy_scalars(path, actual, expected)
        elif type(expected) in _EXACT or isinstance(expected, enum.Enum | float | complex | range):
            self.scalars(path, actual, expected)
        else:
            self.entered[key] = (path, actual, expected)
            return self.composite(path, actual, expected)
        return None

    def scalars(self, path: Path, actual: Any, expected: Any) -> None:
        """Compare two Python values of one type that have no parts."""
        if isinstance(expected, enum.Enum):  # members are singletons
            self.report(path, f"{actual!r}, expected {expected!r}")
        elif isinstance(expected, float | complex):
            self.fact(path, "bits", _bits(actual).hex(), _bits(expected).hex())
        elif isinstance(expected, range):
            self.fact(path, "range", _bounds(actual), _bounds(expected))
        elif actual != expected:
            self.report(path, f"{_short(actual)}, expected {_short(expected)}")

    def composite(self, path: Path, actual: Any, expected: Any) -> list[Pair]:
        """Compare two values of one type that have parts."""
        if isinstance(expected, np.ndarray):
            return self.arrays(path, actual, expected)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(expected, torch.Tensor):
            return self.tensors(path, actual, expected)
        tensordict = sys.modules.get("tensordict")
        if tensordict is not None and tensordict.is_tensor_collection(expected):
            return self.collections(path, actual, expected)
        pairs: list[Pair] = []
        if dataclasses.is_dataclass(expected):
            names = [field.name for field in dataclasses.fields(expected)]
            pairs += [((path, ".", n), getattr(actual, n, _MISSING), getattr(expected, n, _MISSING)) for n in names]
            return pairs + self.attributes(path, actual, expected, besides=names)
        if isinstance(expected, dict):
            pairs = self.mappings(path, actual, expected)
        elif isinstance(expected, list | tuple):
            pairs = self.sequences(path, actual, expected)
        elif isinstance(expected, set | frozenset):
            self.sets(path, actual, expected)
        else:
            return self.others(path, actual, expected)
        return pairs + self.attributes(path, actual, expected)

    def attributes(self, path: Path, actual: Any, expected: Any, besides: Iterable[str] = ()) -> list[Pair]:
        """Pair what subclasses keep in `__dict__`."""
        left, right = (dict(getattr(v, "__dict__", None) or {}) for v in (actual, expected))
        for name in besides:
            left.pop(name, None), right.pop(name, None)
        return [((path, ".", n), left.get(n, _MISSING), right.get(n, _MISSING)) for n in {**right, **left}]

    def sequences(self, path: Path, actual: Any, expected: Any) -> list[Pair]:
        if not self.fact(path, "length", len(actual), len(expected)):
            return []
        fields = getattr(expected, "_fields", None)
        if fields is not None:
            return [((path, ".", n), a, e) for n, a, e in zip(fields, actual, expected, strict=True)]
        return [
            ((path, "[", i), a, e)
            for i, (a, e) in enumerate(zip(actual, expected, strict=True))
            if not _surely_same(a, e)
        ]

    def mappings(self, path: Path, actual: Mapping[Any, Any], expected: Mapping[Any, Any]) -> list[Pair]:
        if _same_keys(actual, expected):
            items = zip(expected, actual.values(), expected.values(), strict=True)
            return [((path, "key", k), a, e) for k, a, e in items if not _surely_same(a, e)]
        left, right = ({_token(k): (k, v) for k, v in m.items()} for m in (actual, expected))
        missing = [right[t][0] for t in right if t not in left]
        unexpected = [left[t][0] for t in left if t not in right]
        if missing:
            self.report(path, f"missing keys {_short(missing)}")
        if unexpected:
            self.report(path, f"unexpected keys {_short(unexpected)}")
        if not missing and not unexpected:
            self.report(path, f"key order {_short(list(actual))}, expected {_short(list(expected))}")
        return [((path, "key", right[t][0]), left[t][1], right[t][1]) for t in right if t in left]

    def sets(self, path: Path, actual: Iterable[Any], expected: Iterable[Any]) -> None:
        left, right = Counter(map(_token, actual)), Counter(map(_token, expected))
        if left != right:
            self.report(path, f"members {_short(list(left - right))} instead of {_short(list(right - left))}")

    def numpy_scalars(self, path: Path, actual: Any, expected: Any) -> None:
        if isinstance(expected, str | bytes):  # np.asarray would drop their trailing NULs
            self.fact(path, "value", actual[:], expected[:])
        else:
            self.todo += reversed(self.arrays(path, np.asarray(actual), np.asarray(expected)))

    def arrays(self, path: Path, actual: Any, expected: Any) -> list[Pair]:
        same = self.fact(path, "dtype", _layout(actual.dtype), _layout(expected.dtype))
        if not self.fact(path, "shape", actual.shape, expected.shape) or not same:
            return []
        pairs: list[Pair] = []
        if isinstance(expected, np.ma.MaskedArray):
            pairs += [((path, ".", "mask"), np.ma.getmaskarray(actual), np.ma.getmaskarray(expected))]
        elif type(expected) is not np.ndarray:
            pairs += self.attributes(path, actual, expected)
        return self.items(path, np.asarray(actual), np.asarray(expected)) + pairs

    def items(self, path: Path, actual: Any, expected: Any) -> list[Pair]:
        """Compare the items of two plain arrays of one dtype and shape; padding bytes do not count."""
        dtype = expected.dtype
        if expected.size == 0:
            return []
        if dtype.names is not None:
            pairs = []
            for name in dtype.names:
                pairs += self.items((path, "key", name), actual[name], expected[name])
            return pairs
        if dtype.kind in "OT":
            places = [w for w in np.ndindex(expected.shape) if not _surely_same(actual[w], expected[w])]
            return [((path, "item", w), actual[w], expected[w]) for w in places]
        left, right = _item_bytes(actual), _item_bytes(expected)
        wrong = np.flatnonzero((left != right).any(axis=1))
        if wrong.size:
            first = tuple(int(i) for i in np.unravel_index(int(wrong[0]), expected.shape))
            a, e = left[wrong[0]].tobytes().hex(), right[wrong[0]].tobytes().hex()
            where = f"first at {first}: {actual[first]!r} ({a}), expected {expected[first]!r} ({e})"
            self.report(path, f"{wrong.size} of {expected.size} items differ, {where}")
        return []

    def tensors(self, path: Path, actual: Any, expected: Any) -> list[Pair]:
        names = ["dtype", "device", "layout", "requires_grad", "is_nested", "is_quantized"]
        if not all(self.fact(path, n, getattr(actual, n), getattr(expected, n)) for n in names):
            return []
        torch = sys.modules["torch"]
        if expected.is_nested:
            ragged = getattr(actual, "_ragged_idx", None), getattr(expected, "_ragged_idx", None)
            self.fact(path, "ragged dimension", *ragged)
            return [((path, ".", "unbind()"), list(actual.unbind()), list(expected.unbind()))]
        if not self.fact(path, "shape", tuple(actual.shape), tuple(expected.shape)):
            return []
        if expected.layout is not torch.strided or expected.is_quantized or expected.device.type == "meta":
            if expected.layout is not torch.strided:
                actual, expected = actual.to_dense(), expected.to_dense()
            if expected.device.type != "meta" and not torch.equal(actual, expected):
                self.report(path, "values differ")
            return []
        if expected.numel() == 0:
            return []
        left, right = _tensor_bytes(actual), _tensor_bytes(expected)
        if not torch.equal(left, right):
            wrong = (left != right).any(dim=1).nonzero()
            first = int(wrong[0])
            a, e = (bytes(x[first].tolist()).hex() for x in (left, right))
            self.report(path, f"{len(wrong)} of {len(right)} items differ, first at flat {first}: {a}, expected {e}")
        return []

    def collections(self, path: Path, actual: Any, expected: Any) -> list[Pair]:
        """Compare TensorDicts, lazy stacks, tensorclasses and non-tensor data."""
        for name in ("batch_size", "device", "names", "stack_dim"):
            self.fact(path, name, getattr(actual, name, None), getattr(expected, name, None))
        if hasattr(expected, "tensordicts"):
            return [((path, ".", "tensordicts"), list(actual.tensordicts), list(expected.tensordicts))]
        if getattr(type(expected), "_is_non_tensor", False):
            return [((path, ".", "data"), actual.data, expected.data)]
        left, right = (_members(value) for value in (actual, expected))
        return self.mappings(path, left, right)

    def images(self, path: Path, actual: Any, expected: Any) -> list[Pair]:
        facts = [self.fact(path, n, getattr(actual, n), getattr(expected, n)) for n in ("mode", "size")]
        if not all(facts):
            return []
        if 0 not in expected.size and actual.tobytes() != expected.tobytes():
            self.report(path, "pixels differ")
        for image in (actual, expected):
            image.load()
        if expected.mode in ("P", "PA"):
            self.fact(path, "palette mode", actual.im.getpalettemode(), expected.im.getpalettemode())
            self.fact(path, "palette", actual.getpalette("RGBA"), expected.getpalette("RGBA"))
        left, right = (image.info.get("transparency", _MISSING) for image in (actual, expected))
        return [((path, ".", "transparency"), left, right)]

    def others(self, path: Path, actual: Any, expected: Any) -> list[Pair]:
        """Compare values of types unknown here: by their own equality and repr, or else by their attributes."""
        kind: Any = type(expected)
        if kind.__eq__ is object.__eq__:
            pairs = self.attributes(path, actual, expected)
            if not pairs:
                self.report(path, f"{_name(expected)} cannot be compared")
            return pairs
        if actual != expected or (kind.__repr__ is not object.__repr__ and repr(actual) != repr(expected)):
            self.report(path, f"{_short(actual)}, expected {_short(expected)}")
        return []


def _surely_same(actual: Any, expected: Any) -> bool:
    """Whether two values are the same, for the common leaves; false means unknown."""
    kind = type(expected)
    if type(actual) is not kind:
        return False
    if kind in _EXACT:
        return bool(actual == expected)
    if kind is float:
        return struct.pack("d", actual) == struct.pack("d", expected)
    if kind is np.ndarray and actual.dtype is expected.dtype and actual.shape == expected.shape:
        plain = actual.dtype.kind in _PLAIN_KINDS and actual.dtype.char not in "gG"
        return plain and actual.tobytes() == expected.tobytes()
    return False


def _same_keys(actual: Mapping[Any, Any], expected: Mapping[Any, Any]) -> bool:
    if len(actual) != len(expected):
        return False
    if all(type(k) is str for k in expected) and all(type(k) is str for k in actual):
        return list(actual) == list(expected)
    return [_token(k) for k in actual] == [_token(k) for k in expected]


def _token(value: Any) -> Hashable:
    """Give a stand-in for a hashable value that is equal exactly when type and bits are."""
    kind = type(value)
    if isinstance(value, np.generic) and not isinstance(value, str | bytes):
        array = np.asarray(value)
        return (kind, _layout(array.dtype), _item_bytes(array).tobytes() if array.dtype.names is None else value.item())
    if isinstance(value, enum.Enum):
        return (kind, value.name)
    if isinstance(value, float | complex):
        return (kind, _bits(value))
    if isinstance(value, tuple):
        return (kind, tuple(map(_token, value)))
    if isinstance(value, frozenset):
        return (kind, frozenset(Counter(map(_token, value)).items()))
    if isinstance(value, range):
        return (kind, _bounds(value))
    if dataclasses.is_dataclass(value):
        return (kind, tuple(_token(getattr(value, field.name)) for field in dataclasses.fields(value)))
    return (kind, value)


def _bits(value: Any) -> bytes:
    """Give the bits of a Python float or complex."""
    return struct.pack("<2d", value.real, value.imag) if isinstance(value, complex) else struct.pack("<d", value)


def _bounds(value: range) -> tuple[int, int, int]:
    return (value.start, value.stop, value.step)


def _layout(dtype: np.dtype[Any]) -> Hashable:
    """Everything about a dtype that must survive: byte order, units, names, titles, offsets, item size."""
    if dtype.subdtype is not None:
        return ("subarray", _layout(dtype.subdtype[0]), dtype.subdtype[1])
    if dtype.names is None:
        return dtype.str if dtype.kind != "T" else repr(dtype)
    fields: Mapping[str, Any] = dtype.fields or {}
    members = tuple((name, _layout(fields[name][0]), *fields[name][1:]) for name in dtype.names)
    return (dtype.type.__name__, dtype.itemsize, members)


def _item_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Give the significant bytes of the items of an array, shape (items, bytes)."""
    flat = np.ascontiguousarray(array).reshape(-1)
    size = flat.dtype.itemsize
    if size == 0:
        return np.zeros((flat.size, 0), np.uint8)
    found = flat.view(np.uint8).reshape(flat.size, size)
    if flat.dtype.char in "gG" and np.finfo(np.longdouble).nmant == 63:  # x87: 10 bytes of value, then padding
        parts = found.reshape(flat.size, -1, np.dtype(np.longdouble).itemsize)
        parts = parts[:, :, :10] if flat.dtype.isnative else parts[:, :, -10:]
        return parts.reshape(flat.size, -1)
    return found


def _tensor_bytes(tensor: Any) -> Any:
    """Give the bytes of the items of a dense CPU tensor, shape (items, bytes)."""
    torch = sys.modules["torch"]
    plain = tensor.detach().resolve_conj().resolve_neg()
    flat = plain.clone(memory_format=torch.contiguous_format).reshape(-1)  # one item may have any stride
    return flat.view(torch.uint8).reshape(flat.numel(), flat.element_size())


def _members(collection: Any) -> dict[Any, Any]:
    keys = list(collection.keys())  # iterating the collection itself would walk its batch
    return dict(zip(keys, map(collection.get, keys), strict=True))


def _name(value: object) -> str:
    kind = type(value)
    return "nothing" if value is _MISSING else f"{kind.__module__}.{kind.__qualname__}"


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # ints of more than 4,300 digits
        text = f"{_name(value)} too long to write"
    return text if len(text) <= 120 else f"{text[:100]}... ({len(text)} characters)"


def _steps(path: Path) -> Iterator[tuple[str, Any]]:
    found = []
    while path is not None:
        path, kind, step = path
        found.append((kind, step))
    return reversed(found)


def _render(path: Path) -> str:
    """Write a path as `metadata[17].tools[0]`; identifiers are attribute-like, other keys in brackets."""
    text = ""
    for kind, step in _steps(path):
        if kind == "." or (kind == "key" and type(step) is str and step.isidentifier()):
            text += f".{step}" if text else str(step)
        elif kind == "item":
            text += f"[{', '.join(map(str, step))}]"
        else:
            text += f"[{_short(step)}]"
    return text or "value"
