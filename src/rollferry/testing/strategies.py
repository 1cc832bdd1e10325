"""Hypothesis strategies over every type a batch may hold (needs `hypothesis`; torch and PIL only for their own)."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ["arrays", "batches", "images", "keys", "numpy_scalars", "rows", "scalars", "tensors", "texts", "values"]

Array = np.ndarray[Any, np.dtype[Any]]

_NUMBERS = ["?", *(f"{order}{code}" for order in "<>" for code in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4"))]
_NUMBERS += ["i1", "u1", "<f8", ">f8", "<c8", ">c8", "<c16", ">c16", "g", "G", "q", "Q"]
_UNITS = ["", "[Y]", "[M]", "[W]", "[D]", "[h]", "[m]", "[s]", "[ms]", "[us]", "[ns]", "[ps]", "[fs]", "[as]", "[25s]"]
_ROW_CODES = ["<i4", "<i8", "<f4", "<f2", "<f8", "?", "u1", "<u2", ">i4", "<M8[ns]", "S3", "<c8"]
_IMAGE_MODES = ["1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "RGBX", "La"]
_IMAGE_MODES += ["RGBa", "I;16", "I;16B"]
_TORCH_CODES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16"]
_TORCH_CODES += ["float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"]
_TORCH_CODES += ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


# ---- scalars ------------------------------------------------------------------------------------------------------


def texts(max_size: int = 8) -> SearchStrategy[str]:
    """Any text: empty, separators, NUL, lone surrogates, astral characters."""
    odd = st.sampled_from(["", "/", ".", "__", "a/b", "\0", "\ud800", "\udfff\ud800", "é", "\U0001f600", "ﬁ", "None"])
    return odd | st.text(st.characters(), max_size=max_size)


def scalars() -> SearchStrategy[Any]:
    """None and every scalar of Python: any int, any float bits, complex, text, bytes, bytearray, range."""
    small = st.integers(-2, 2) | st.sampled_from([2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64, -(2**63) - 1])
    floats = st.floats() | st.integers(0, 2**64 - 1).map(lambda bits: float(np.uint64(bits).view(np.float64)))
    bounds = st.integers(-(2**65), 2**65)
    ranges = st.builds(range, bounds, bounds, bounds.filter(bool))
    numbers = st.booleans() | small | st.integers() | floats | st.complex_numbers()
    binary = st.binary(max_size=12)
    return st.none() | numbers | texts() | binary | binary.map(bytearray) | ranges


def numpy_scalars() -> SearchStrategy[Any]:
    """NumPy scalars of fixed-size native types; no text with trailing NULs, which numpy itself drops."""
    native = st.sampled_from([code for code in _NUMBERS if not code.startswith(">") and code not in ("q", "Q")])
    times = _times().filter(lambda code: not code.startswith(">"))
    items = (native | times).flatmap(lambda code: _bare(np.dtype(code), (1,))).map(lambda array: array[0])
    words = texts().filter(lambda t: not t.endswith("\0"))
    return items | words.map(np.str_) | st.binary(max_size=4).map(lambda b: np.bytes_(b + b"."))


def keys() -> SearchStrategy[Any]:
    """Hashable keys of dicts and members of sets."""
    simple = st.none() | st.booleans() | st.integers() | st.floats() | texts() | st.binary(max_size=4)
    simple |= st.sampled_from([np.int64(3), np.float32(0.5), np.bool_(True), np.str_("k")])
    return simple | st.lists(simple, max_size=3).map(tuple) | st.frozensets(simple, max_size=2)


# ---- arrays -------------------------------------------------------------------------------------------------------


def _times() -> SearchStrategy[str]:
    """Codes of datetimes and timedeltas; native ones have no byte order mark, like the other native codes."""
    return st.builds("{}{}8{}".format, st.sampled_from(["", ">"]), st.sampled_from("mM"), st.sampled_from(_UNITS))


def _widths() -> SearchStrategy[str]:
    return st.builds("{}{}".format, st.sampled_from(["S", "<U", ">U", "V"]), st.integers(1, 5))


def simple_dtypes() -> SearchStrategy[np.dtype[Any]]:
    """Dtypes without fields."""
    return (st.sampled_from(_NUMBERS) | _times() | _widths()).map(np.dtype)


@st.composite
def struct_dtypes(draw: DrawFn, depth: int = 1) -> np.dtype[Any]:
    """Structured dtypes of at least one byte: aligned, padded, with titles, subarrays and nested structs."""
    formats: list[Any] = []
    for _ in range(draw(st.integers(1, 3))):
        inner: Any = draw(struct_dtypes(depth - 1) if depth and draw(st.integers(0, 4)) == 0 else simple_dtypes())
        formats.append((inner, draw(st.sampled_from([(2,), (1, 2), (0,)]))) if draw(st.integers(0, 3)) == 0 else inner)
    letters = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4)
    names = draw(st.lists(letters, min_size=len(formats), max_size=len(formats), unique=True))
    if draw(st.booleans()):
        found = np.dtype(list(zip(names, formats, strict=True)), align=draw(st.booleans()))
        return found if found.itemsize else np.dtype([*found.descr, ("last", "u1")])
    offset, offsets = 0, []
    for form in formats:
        offset += draw(st.integers(0, 3))
        offsets.append(offset)
        offset += np.dtype(form).itemsize
    spec = {
        "names": names,
        "formats": formats,
        "offsets": offsets,
        "itemsize": max(1, offset + draw(st.integers(0, 5))),
    }
    if draw(st.booleans()):
        spec["titles"] = [f"title {i}" for i in range(len(names))]
    return np.dtype(spec)  # type: ignore[call-overload,no-any-return]


@st.composite
def _bare(draw: DrawFn, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Draw a contiguous array with any bits that are legal for its dtype."""
    if dtype.names is not None:
        array = np.zeros(shape, dtype)
        for name in dtype.names:
            array[name] = draw(_bare(array[name].dtype, array[name].shape))
        return array
    count = int(np.prod(shape))
    if dtype.kind == "U":
        width = dtype.itemsize // 4
        words = draw(st.lists(texts(width).map(lambda t: t[:width]), min_size=count, max_size=count))
        return np.array(words, dtype).reshape(shape)
    if dtype.char in "gG":  # x87 has bit patterns that are no values
        wide = draw(_bare(np.dtype("c16" if dtype.char == "G" else "f8"), shape))
        with np.errstate(all="ignore"):  # signalling NaNs
            return wide.astype(dtype)
    size = count * dtype.itemsize
    data = np.array(bytearray(draw(st.binary(min_size=size, max_size=size))), np.uint8)
    if dtype.kind == "b":
        data &= np.uint8(1)
    return data.view(dtype).reshape(shape) if dtype.itemsize else np.zeros(shape, dtype)


def shapes(max_dims: int = 4) -> SearchStrategy[tuple[int, ...]]:
    """Shapes of 0 to `max_dims` dimensions, empty ones among them, of at most 24 items."""
    return st.lists(st.integers(0, 3), max_size=max_dims).map(tuple).filter(lambda s: int(np.prod(s)) <= 24)


@st.composite
def arrays(draw: DrawFn, dtypes: SearchStrategy[np.dtype[Any]] | None = None) -> Array:
    """Arrays of every dtype, shape and memory order: strided, reversed, Fortran, broadcast, transposed, read-only."""
    dtype = draw(dtypes if dtypes is not None else simple_dtypes() | struct_dtypes())
    array = draw(_bare(dtype, draw(shapes())))
    form = draw(st.sampled_from(["plain", "fortran", "reversed", "strided", "broadcast", "transposed", "read-only"]))
    if form == "fortran":
        return np.asfortranarray(array) if array.ndim else array
    if form == "transposed":
        return array.T
    if form == "broadcast":
        return np.broadcast_to(array, (2, *array.shape))
    if form == "read-only":
        array.flags.writeable = False
    if array.ndim and form == "reversed":
        return array[::-1]
    if array.ndim and form == "strided":
        return np.repeat(array, 2, axis=-1)[..., ::2]
    return array


@st.composite
def object_arrays(draw: DrawFn, elements: SearchStrategy[Any]) -> Array:
    """Object arrays of any shape, filled item by item."""
    array = np.empty(draw(shapes(2)), object)
    for place in np.ndindex(array.shape):
        array[place] = draw(elements)
    return array


# ---- rows ---------------------------------------------------------------------------------------------------------


@st.composite
def _like_rows(draw: DrawFn) -> list[Any]:
    """Rows of one dtype: ragged, of equal length, or of one inner shape."""
    dtype = np.dtype(draw(st.sampled_from(_ROW_CODES)))
    inner = draw(st.sampled_from([(), (2,), (1, 3), (2, 2, 1), (0,)]))
    lengths = draw(st.lists(st.integers(0, 4), max_size=6) | st.integers(0, 6).map(lambda n: [3] * n))
    return [draw(_bare(dtype, (length, *inner))) for length in lengths]


@st.composite
def rows(draw: DrawFn) -> list[Any]:
    """One value per sample: like rows, scalars of one kind, mixed ones, None among them, only None, none at all."""
    kinds: list[SearchStrategy[Any]] = [st.integers(), st.integers(-100, 100), st.floats(), st.booleans(), texts()]
    kinds += [st.binary(max_size=4), st.integers(-(2**63), 2**64 - 1), numpy_scalars(), st.none(), arrays(), scalars()]
    kinds += [st.lists(st.integers(-5, 300), max_size=4), st.lists(st.floats(), max_size=4), st.lists(texts())]
    if _installed("torch"):
        kinds += [tensors()]
    if _installed("PIL"):
        kinds += [images()]
    form = draw(st.integers(0, 5))
    if form <= 1:
        found = draw(_like_rows())
    elif form <= 4:
        found = draw(st.lists(draw(st.sampled_from(kinds)), max_size=6))
    else:
        found = draw(st.lists(st.one_of(kinds), max_size=5))
    if found and draw(st.integers(0, 3)) == 0:
        found[draw(st.integers(0, len(found) - 1))] = None
    return found


# ---- torch and PIL ------------------------------------------------------------------------------------------------


@functools.cache
def _torch_dtypes() -> list[Any]:
    torch = importlib.import_module("torch")
    with warnings.catch_warnings():  # torch warns once per process that complex32 is experimental
        warnings.simplefilter("ignore")
        torch.zeros(1, dtype=torch.complex32)
    return [getattr(torch, code) for code in _TORCH_CODES if hasattr(torch, code)]


@st.composite
def tensors(draw: DrawFn) -> Any:
    """CPU tensors of every dtype and any bits, views among them: transposed, strided, expanded, conjugated."""
    torch = importlib.import_module("torch")
    dtype, shape = draw(st.sampled_from(_torch_dtypes())), draw(shapes(3))
    size = int(np.prod(shape)) * dtype.itemsize
    data = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype is torch.bool:
        data = bytearray(byte & 1 for byte in data)
    tensor = torch.frombuffer(data, dtype=torch.uint8).view(dtype) if size else torch.zeros(0, dtype=dtype)
    tensor = tensor.reshape(shape)
    form = draw(st.sampled_from(["plain", "transposed", "strided", "expanded", "conjugated"]))
    if form == "transposed" and tensor.ndim >= 2:
        return tensor.transpose(0, -1)
    if form == "strided" and tensor.ndim and tensor.shape[-1]:
        return tensor[..., ::2]
    if form == "expanded":
        return tensor.unsqueeze(0).expand(2, *tensor.shape)
    if form == "conjugated" and dtype in (torch.complex64, torch.complex128):
        return tensor.conj()
    return tensor


@st.composite
def nested_tensors(draw: DrawFn) -> Any:
    """Jagged nested tensors of 1 to 4 components, empty ones among them."""
    torch = importlib.import_module("torch")
    lengths = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    dtype = draw(st.sampled_from([torch.float32, torch.int64, torch.bfloat16]))
    inner = draw(st.sampled_from([(), (2,), (2, 1)]))
    parts = [torch.arange(n * int(np.prod(inner)), dtype=dtype).reshape(n, *inner) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


@st.composite
def images(draw: DrawFn) -> Any:
    """PIL images of every common mode, with palette and transparency where the mode has them."""
    module = importlib.import_module("PIL.Image")
    mode = draw(st.sampled_from(_IMAGE_MODES))
    size = (draw(st.integers(1, 5)), draw(st.integers(1, 3)))
    count = len(module.new(mode, size).tobytes())
    image = module.frombytes(mode, size, draw(st.binary(min_size=count, max_size=count)))
    if mode in ("P", "PA"):
        image.putpalette(draw(st.binary(min_size=3, max_size=24).map(lambda b: b[: len(b) // 3 * 3])))
    if mode in ("P", "L", "RGB") and draw(st.booleans()):
        kinds = {"P": st.integers(0, 255) | st.binary(min_size=1, max_size=4), "L": st.integers(0, 255)}
        image.info["transparency"] = draw(kinds.get(mode, st.tuples(*[st.integers(0, 255)] * 3)))
    return image


# ---- whole values and batches -------------------------------------------------------------------------------------


def values(max_leaves: int = 12) -> SearchStrategy[Any]:
    """Nested metadata: lists, tuples, dicts with any keys, sets, over scalars, arrays and tensors."""
    leaves = scalars() | numpy_scalars() | arrays() | st.sets(keys(), max_size=3) | st.frozensets(keys(), max_size=3)
    if _installed("torch"):
        leaves |= tensors() | nested_tensors()
    if _installed("PIL"):
        leaves |= images()

    def extend(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
        lists = st.lists(inner, max_size=3)
        records = st.dictionaries(texts(), inner, max_size=3) | st.dictionaries(keys(), inner, max_size=3)
        return lists | lists.map(tuple) | records | object_arrays(inner)

    return st.recursive(leaves, extend, max_leaves=max_leaves)


def batches(max_fields: int = 4) -> SearchStrategy[dict[Any, Any]]:
    """Batches: keys of any text or int; fields that are rows, arrays, tensors, images or nested metadata."""
    fields = rows() | arrays() | values(6) | st.lists(st.dictionaries(texts(), values(3), max_size=3), max_size=3)
    names = st.sampled_from(["tokens", "loss_masks", "metadata"]) | texts() | st.integers()
    return st.dictionaries(names, fields, max_size=max_fields)
