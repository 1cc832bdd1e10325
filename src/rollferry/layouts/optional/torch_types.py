"""torch: tensors as an array library, nested tensors and torch's small value types."""

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rollferry import _native
from rollferry.errors import UnsupportedValueError
from rollferry.layouts.arrays import LIBRARIES, encode_arrays
from rollferry.layouts.base import Int64Array, Spec
from rollferry.layouts.choose import Handler
from rollferry.layouts.dtypes import NumpyDType
from rollferry.layouts.lazy import LazyRows
from rollferry.layouts.library import ArrayRows, LossyCastError, StridedSource
from rollferry.layouts.rows import Rows, offsets_of
from rollferry.layouts.tree.jagged import Jagged
from rollferry.layouts.tree.registered import BY_NAME, Codec, Registered, register_builtin
from rollferry.layouts.tree.union import Union
from rollferry.memory.plan import Source, SpanSource

__all__ = ["TorchLibrary", "handler"]

INTEGERS = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"]
FLOATS8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
NAMES = INTEGERS + FLOATS + FLOATS8
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in NAMES if hasattr(torch, name)}
EXCHANGE: object = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
CODES = {dtype: name for name, dtype in DTYPES.items()}


class TorchLibrary:
    """CPU tensors of exactly the class torch.Tensor. `NumpyLibrary` documents the methods."""

    name = "torch"

    def collect(self, values: list[torch.Tensor]) -> ArrayRows | None:
        found = borrow(values)
        if found is False:
            return self.collect_one_by_one(values)
        if found is None:
            return None
        spans, ndim, offsets, shapes, equal_inner = found
        source = StridedSource(values, self) if spans is None else SpanSource(spans)
        return ArrayRows(source, CODES[values[0].dtype], ndim, offsets, shapes, equal_inner)

    def collect_one_by_one(self, values: list[torch.Tensor]) -> ArrayRows | None:
        """Do as `collect` in Python, where a tensor is unusual or torch lacks DLPack's exchange API; says what is refused."""
        for value in values:
            if value.layout != torch.strided or value.requires_grad or not value.is_cpu or value.dtype not in CODES:
                check_tensor(value)
        dtype, ndim = values[0].dtype, values[0].ndim
        if any(value.dtype != dtype or value.ndim != ndim for value in values):
            return None
        offsets = shapes = None
        equal_inner = True
        if ndim:
            offsets = offsets_of([len(value) for value in values])
        if ndim > 1:
            shapes = np.array([value.shape for value in values], np.int64)
            equal_inner = bool((shapes[:, 1:] == shapes[:1, 1:]).all())
        return ArrayRows(self._source(values), CODES[dtype], ndim, offsets, shapes, equal_inner)

    def _source(self, values: list[torch.Tensor]) -> Source:
        if not all(value.is_contiguous() and not value.is_conj() and not value.is_neg() for value in values):
            return StridedSource(values, self)
        addresses = [value.data_ptr() for value in values]
        return SpanSource(_native.spans_of_addresses(values, addresses, [value.nbytes for value in values]))

    def key(self, value: torch.Tensor) -> tuple[Any, ...]:
        return value.dtype, value.dim()

    def shape(self, value: torch.Tensor) -> list[int]:
        return list(value.shape)

    def nbytes(self, value: torch.Tensor) -> int:
        return int(value.numel() * value.element_size())

    def copy_into(self, value: torch.Tensor, dest: npt.NDArray[np.uint8]) -> None:
        if value.numel():
            torch.from_numpy(dest).view(value.dtype).view(value.shape).copy_(value)

    def cast(self, value: torch.Tensor, dtype: str) -> torch.Tensor:
        if dtype not in DTYPES:
            raise LossyCastError(f"torch has no dtype {dtype!r} that can be stored", value)
        if value.dtype == DTYPES[dtype]:
            return value
        cast = value.to(DTYPES[dtype])
        if not torch.equal(as_bytes(cast.to(value.dtype)), as_bytes(value)):
            raise LossyCastError(f"a value of dtype {value.dtype} does not survive {dtype}", value)
        return cast

    def restore(self, values: torch.Tensor, dtype: NumpyDType) -> torch.Tensor:
        return values.to(dtype_named(dtype))

    def load(self, data: npt.NDArray[np.uint8], dtype: NumpyDType) -> torch.Tensor:
        target = dtype_named(dtype)
        if len(data) == 0:
            return torch.empty(0, dtype=target, device="cpu")
        if len(data) % target.itemsize:
            raise ValueError(f"{len(data)} bytes are no whole number of {dtype} items")
        return torch.from_numpy(data).view(target)

    def join(self, rows: list[torch.Tensor]) -> torch.Tensor | None:
        first = rows[0]
        if any(row.dtype != first.dtype or row.ndim == 0 or row.shape[1:] != first.shape[1:] for row in rows):
            return None
        return torch.cat(rows)

    def split_rows(self, values: torch.Tensor, offsets: Int64Array) -> list[torch.Tensor]:
        lengths = np.diff(offsets)
        if offsets[0] != 0 or offsets[-1] != len(values) or (len(lengths) and lengths.min() < 0):
            raise ValueError("offsets must rise from 0 to the number of values")
        # Not `split`: its results count as views of one base, which autograd then treats as a whole.
        return list(torch.unsafe_split_with_sizes(values, lengths.tolist()))

    def split_shapes(self, values: torch.Tensor, shapes: Int64Array) -> list[torch.Tensor]:
        if shapes.size and shapes.min() < 0:
            raise ValueError("a shape is negative")
        sizes = [math.prod(shape) for shape in shapes.tolist()]
        if sum(sizes) != len(values):
            raise ValueError("the shapes do not fit the values")
        rows = torch.unsafe_split_with_sizes(values, sizes)
        return [row.view(tuple(shape)) for row, shape in zip(rows, shapes.tolist(), strict=True)]

    def counterpart(self, dtype: NumpyDType) -> NumpyDType:
        return np.dtype(str(dtype)).name

    def dtype_name(self, dtype: NumpyDType) -> str:
        return str(dtype)

    def itemsize(self, dtype: NumpyDType) -> int:
        return int(dtype_named(dtype).itemsize)


def borrow(values: list[torch.Tensor]) -> Any:
    """Collect tensors natively; False where that can't be done."""
    if EXCHANGE is None or values[0].dtype not in CODES:
        return False
    try:
        return _native.collect_tensors(values, EXCHANGE)
    except (BufferError, RuntimeError, ValueError, TypeError, NotImplementedError):
        return False


def dtype_named(code: NumpyDType) -> torch.dtype:
    """Give a dtype by the name in a spec."""
    if not isinstance(code, str) or code not in DTYPES:
        raise ValueError(f"this torch has no dtype {code!r:.40}")
    return DTYPES[code]


def as_bytes(value: torch.Tensor) -> torch.Tensor:
    """Give the bits of a tensor as flat uint8."""
    return value.contiguous().reshape(-1).view(torch.uint8)


def check_tensor(value: torch.Tensor) -> None:
    """Raise UnsupportedValueError, which says why a tensor is not plain CPU memory without history."""
    if value.device.type != "cpu":
        raise UnsupportedValueError(f"a tensor on {value.device}; move it to the CPU first (.cpu())", value)
    if value.requires_grad:
        raise UnsupportedValueError("a tensor that requires grad; detach it first (.detach())", value)
    raise UnsupportedValueError(f"a tensor of layout {value.layout} and dtype {value.dtype}", value)


def encode_tensors(values: list[torch.Tensor], encoder: Any) -> Spec:
    """Encode tensors, strided nested ones apart from the others."""
    nested = [value.is_nested for value in values]
    if not any(nested):
        return encode_arrays(values, TORCH, encoder, encode_tensors)
    if not all(nested):
        return Union.by_key(
            values, lambda value: value.is_nested, encoder, lambda group: encode_tensors(group, encoder)
        )
    for value in values:
        if value.device.type != "cpu" or value.requires_grad:
            raise UnsupportedValueError("a nested tensor that requires grad or is not on the CPU", value)
        if value.size(0) == 0:
            raise UnsupportedValueError("a strided nested tensor without rows; use layout=torch.jagged", value)
    return Registered.encode_as("torch.nested", [list(value.unbind()) for value in values], encoder)


def decode_nested(rows: list[torch.Tensor]) -> torch.Tensor:
    """Rebuild a strided nested tensor, which copies its rows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
        return torch.nested.as_nested_tensor(rows, device=torch.device("cpu"))


def encode_jagged(value: Any) -> tuple[Any, ...]:
    """Take a jagged nested tensor apart."""
    if value.device.type != "cpu" or value.requires_grad:
        raise UnsupportedValueError("a nested tensor that requires grad or is not on the CPU", value)
    return value.values(), value.offsets(), value.lengths(), value._ragged_idx  # noqa: SLF001  # torch has no other way


def decode_jagged(parts: tuple[Any, ...]) -> torch.Tensor:
    """Rebuild a jagged nested tensor over its values."""
    values, offsets, lengths, axis = parts
    for part in (offsets, lengths):
        if type(part) is torch.Tensor:
            part.copy_(part.clone())  # pages that are written to are this process's alone: what is checked stays so
    check_jagged(values, offsets, lengths, axis)
    return torch.nested.nested_tensor_from_jagged(values, offsets, lengths, jagged_dim=axis)


def check_jagged(values: Any, offsets: Any, lengths: Any, axis: Any) -> None:
    """Raise ValueError unless parts make a jagged tensor; torch itself reads where its offsets say."""
    if type(values) is not torch.Tensor or values.layout != torch.strided:
        raise ValueError("a jagged tensor consists of tensors")
    if type(axis) is not int or not 1 <= axis <= values.dim():
        raise ValueError("the ragged dimension of a jagged tensor is none of its own")
    spans = jagged_spans(offsets, lengths)
    if spans.max(initial=0) > values.size(axis - 1) or int(offsets[-1]) > values.size(axis - 1):
        raise ValueError("the offsets of a jagged tensor do not fit its values")


def jagged_spans(offsets: Any, lengths: Any) -> Int64Array:
    """Give start and stop of each component of a jagged tensor, shape (components, 2). Raises ValueError where they fall."""
    bounds = check_indices(offsets)
    sizes = np.diff(bounds) if lengths is None else check_indices(lengths)
    if bounds[-1] < 0 or len(sizes) != len(bounds) - 1 or (sizes < 0).any() or (bounds[:-1] < 0).any():
        raise ValueError("the offsets of a jagged tensor are none")
    spans = np.stack([bounds[:-1], bounds[:-1] + sizes], axis=1)
    if (spans[:, 1] < spans[:, 0]).any():
        raise ValueError("the lengths of a jagged tensor are none")
    return spans


def check_indices(part: Any) -> Int64Array:
    """Give a one-dimensional tensor of indices as an array. Raises ValueError where it is none."""
    if (
        type(part) is not torch.Tensor
        or part.layout != torch.strided
        or part.dtype not in (torch.int32, torch.int64)
        or part.dim() != 1
    ):
        raise ValueError("offsets and lengths of a jagged tensor are one-dimensional int tensors")
    indices: Int64Array = part.numpy().astype(np.int64)
    return indices


def jagged_of(values: Any, offsets: Int64Array, axis: int) -> torch.Tensor:
    """Make a jagged nested tensor of values and offsets."""
    return decode_jagged((values, torch.from_numpy(offsets), None, axis))


def take(values: torch.Tensor, indices: Int64Array, axis: int) -> torch.Tensor:
    """Give a copy of a tensor's items along an axis."""
    return values.index_select(axis, torch.from_numpy(indices))


def take_components(value: Any, indices: Int64Array) -> torch.Tensor:
    """Give a copy of components of a jagged nested tensor."""
    axis = value._ragged_idx  # noqa: SLF001  # torch has no other way
    spans = jagged_spans(value.offsets(), value.lengths())[indices]
    items = Rows(spans[:, 0], spans[:, 1]).joined().indices()
    return jagged_of(take(value.values(), items, axis - 1), offsets_of(spans[:, 1] - spans[:, 0]), axis)


def packed_components(value: Any) -> LazyRows | None:
    """Give the components of a nested tensor as values and offsets; None where they differ in another dimension."""
    if value.layout != torch.jagged or value._ragged_idx != 1:  # noqa: SLF001  # likewise
        return None
    offsets = value.offsets().numpy().astype(np.int64)
    if value.lengths() is not None or offsets[0] != 0 or offsets[-1] != len(value.values()):
        return packed_components(take_components(value, np.arange(len(offsets) - 1)))
    return LazyRows(value.values(), offsets)


def is_jagged(cls: type) -> bool:
    """Whether a class is that of jagged nested tensors. By name: importing it takes a second."""
    return (cls.__module__, cls.__qualname__) == ("torch.nested._internal.nested_tensor", "NestedTensor")


def handler(cls: type) -> Handler | None:
    """Give the handler of a class of torch's, if it has one."""
    if cls is torch.Tensor:
        return Handler(encode_tensors, shares=True)
    return Handler(Jagged.encode, shares=True) if is_jagged(cls) else None


TORCH = TorchLibrary()
LIBRARIES["torch"] = TORCH
# As earlier versions stored them.
BY_NAME["torch.jagged"] = Codec("torch.jagged", encode_jagged, decode_jagged, tuple)
register_builtin(torch.Size, "torch.Size", tuple, torch.Size, tuple)
register_builtin(torch.dtype, "torch.dtype", lambda value: str(value).partition(".")[2], dtype_named, str)
register_builtin(torch.device, "torch.device", str, torch.device, str)
BY_NAME["torch.nested"] = Codec("torch.nested", list, decode_nested, list)
