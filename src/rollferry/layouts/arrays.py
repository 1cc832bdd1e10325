"""dense and ragged: arrays of one dtype, alone or as rows, with their values in one contiguous member."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import numpy as np

from rollferry.errors import BundleError, UnsupportedValueError
from rollferry.layouts.base import MAX_NDIM, MAX_SIDE, Count, Int64Array, Spec, Taken
from rollferry.layouts.dtypes import NumpyDType
from rollferry.layouts.lazy import LazyRows
from rollferry.layouts.library import ArrayLibrary, ArrayRows, LossyCastError
from rollferry.layouts.numpy_arrays import NumpyLibrary
from rollferry.layouts.optional import load
from rollferry.layouts.rows import Rows
from rollferry.layouts.tree.union import Union

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["LIBRARIES", "NUMPY", "ArraySpec", "Dense", "Ragged", "encode_arrays", "library_named"]

NUMPY = NumpyLibrary()
RETURNED = {"ndarray": "numpy", "tensor": "torch"}  # library of what a schema has returned
LIBRARIES: dict[str, ArrayLibrary] = {"numpy": NUMPY}


class ArraySpec(Spec, frozen=True, kw_only=True):
    """What dense and ragged columns have in common.

    Parameters
    ----------
    library
        Whose arrays they are.
    dtype
        dtype of the member `values`.
    values
        Member with all elements.
    original
        dtype to convert to on reading, where a schema had them stored in another one.
    returns
        ``ndarray`` or ``tensor`` where the schema asks for it, whatever was put.
    """

    library: Literal["numpy", "torch"]
    dtype: NumpyDType
    values: int
    original: NumpyDType | None = None
    returns: Literal["ndarray", "tensor"] | None = None

    def members(self) -> Iterable[int]:
        return (self.values,)

    def load(self, source: "Decoder") -> Any:
        """Give all elements as one flat array."""
        library = self.target()
        data = source.bytes(self.values)
        if library is NUMPY:  # tensors can't be read-only
            data = source.freeze(data)
        values = library.load(data, self.dtype if library.name == self.library else library.counterpart(self.dtype))
        return values if self.original is None else library.restore(values, self.original)

    def target(self) -> ArrayLibrary:
        """Give the library whose arrays come back."""
        return library_named(RETURNED.get(self.returns or "", self.library))

    def needs_writable(self) -> bool:
        return self.library == "torch" or self.returns == "tensor"

    def is_array_form(self, specs: Sequence[Spec]) -> bool:
        return True

    def dtype_name(self) -> str:
        return library_named(self.library).dtype_name(self.dtype)

    def itemsize(self) -> int:
        """Give the bytes of an element."""
        return library_named(self.library).itemsize(self.dtype)


class Dense(ArraySpec, frozen=True, tag="dense", kw_only=True):
    """One array.

    Parameters
    ----------
    shape
        Its shape.
    """

    layout: ClassVar[str] = "dense"
    why: ClassVar[str] = "one array"

    shape: list[Count]

    def select(self, rows: Rows, taken: Taken) -> "Dense | Ragged":
        nbytes = self.itemsize() * math.prod(self.shape)
        taken.keep(self.values, nbytes, rows)
        if rows.count == 1:
            return self
        length, *inner = self.shape or [1]
        offsets = taken.new_member(np.arange(rows.count + 1) * length) if self.shape else None
        return Ragged(
            rows=rows.count,
            library=self.library,
            dtype=self.dtype,
            values=self.values,
            original=self.original,
            returns=self.returns,
            ndim=len(self.shape),
            inner=inner if self.shape else None,
            offsets=offsets,
        )

    def may_have_axis(self) -> bool:
        return bool(self.shape)

    def inner_rows(self, taken: Taken) -> int | None:
        return self.shape[0] if self.shape else None

    def select_inner(self, rows: Rows, taken: Taken) -> "Dense":
        taken.keep(self.values, self.itemsize() * math.prod(self.shape[1:]), rows)
        return msgspec.structs.replace(self, shape=[rows.count, *self.shape[1:]])

    def decode(self, source: "Decoder") -> list[Any]:
        return [self.load(source).reshape(tuple(self.shape))]

    def lazy(self, source: "Decoder") -> LazyRows | None:
        if not self.shape:
            return None
        return LazyRows(self.decode(source)[0], np.array([0, self.shape[0]], np.int64))


class Ragged(ArraySpec, frozen=True, tag="ragged", kw_only=True):
    """Arrays of one dtype and number of dimensions, as rows of any lengths.

    Parameters
    ----------
    ndim
        Number of dimensions of each row.
    inner
        Shape of a row without its first axis, where all agree.
    offsets
        int64 member, `rows` + 1 offsets along the first axis; None for ndim 0.
    shapes
        int64 member of (rows, ndim) lengths, where the inner shapes differ.
    """

    layout: ClassVar[str] = "ragged"
    why: ClassVar[str] = "arrays of one dtype and number of dimensions"

    ndim: Count
    inner: list[Count] | None = None
    offsets: int | None = None
    shapes: int | None = None

    def members(self) -> Iterable[int]:
        return [number for number in (self.values, self.offsets, self.shapes) if number is not None]

    def select(self, rows: Rows, taken: Taken) -> "Ragged":
        if self.ndim == 0:
            taken.keep(self.values, self.itemsize(), rows)
        elif self.shapes is not None:
            dtype = np.dtype((np.int64, self.ndim))
            shapes = taken.read(self.shapes, dtype, rows.up_to_last())
            sizes, stops = sizes_of(shapes)
            chosen = rows.indices()
            items = Rows(stops[chosen] - sizes[chosen], stops[chosen]).joined()
            taken.keep(self.values, self.itemsize(), items)
            taken.store(self.shapes, shapes[chosen])
        elif self.offsets is None or self.inner is None:
            raise BundleError("a ragged column lacks its offsets")
        else:
            items = taken.offsets(self.offsets, rows)
            taken.keep(self.values, self.itemsize() * math.prod(self.inner), items)
        return msgspec.structs.replace(self, rows=rows.count)

    def decode(self, source: "Decoder") -> list[Any]:
        library = self.target()
        if self.ndim > MAX_NDIM:
            raise BundleError(f"rows of {self.ndim} dimensions")
        if self.ndim == 0:
            values = self.load(source)
            if len(values) != self.rows:
                raise BundleError(f"{len(values)} values for {self.rows} rows of no dimension")
            return library.split_shapes(values, np.empty((self.rows, 0), np.int64))
        if self.shapes is not None:
            shapes = source.places(self.shapes, np.dtype(np.int64)).reshape(self.rows, self.ndim)
            return library.split_shapes(self.load(source), shapes)
        values, offsets = self._rows(source)
        return library.split_rows(values, offsets.copy())  # as in Decoder.places

    def lazy(self, source: "Decoder") -> LazyRows | None:
        if self.ndim == 0 or self.shapes is not None:
            return None
        values, offsets = self._rows(source)
        return LazyRows(values, offsets)

    def _rows(self, source: "Decoder") -> tuple[Any, Int64Array]:
        if self.offsets is None or self.inner is None:
            raise BundleError("a ragged column lacks its offsets")
        offsets = source.array(self.offsets, np.dtype(np.int64), self.rows + 1)
        total = int(offsets[-1])
        if total < 0:
            raise BundleError("offsets of a ragged column are negative")
        return self.load(source).reshape((total, *self.inner)), offsets


def sizes_of(shapes: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Give the number of elements of arrays, and their sums. Raises BundleError for what no payload can hold."""
    if (shapes < 0).any() or np.prod(shapes, axis=1, dtype=np.float64).sum() >= 1 << 53:
        raise BundleError("the shapes of a ragged column are no shapes")
    sizes = np.prod(shapes, axis=1)
    return sizes, np.cumsum(sizes)


def library_named(name: str) -> ArrayLibrary:
    """Give an array library, imported on first use."""
    if name not in LIBRARIES:
        try:
            load(name)
        except ImportError as error:
            raise BundleError(f"the bundle has {name} tensors, but {name} can't be imported: {error}") from error
    return LIBRARIES[name]


def encode_arrays(
    values: list[Any],
    library: ArrayLibrary,
    encoder: "Encoder",
    encode: "Callable[[list[Any], Encoder], Spec]",
) -> Spec:
    """Encode arrays of one library; where they differ in dtype or number of dimensions, each group by `encode`."""
    rows = library.collect(values)
    if rows is None:
        return Union.by_key(values, library.key, encoder, lambda group: encode(group, encoder))
    hint = encoder.hint
    returns: Any = None if hint is None or hint.returns == "same" else hint.returns
    original = None
    if hint is not None and hint.dtype is not None and hint.dtype != library.dtype_name(rows.dtype):
        cast = [library.cast(value, hint.dtype) for value in values]
        stored = library.collect(cast)
        if stored is not None and stored.dtype != rows.dtype:
            original = rows.dtype if returns is None else None
            values, rows = cast, stored
    if returns is not None:
        check_returns(library, rows, returns, values[0])
    if largest_side(library, rows, values) >= MAX_SIDE:
        raise UnsupportedValueError(f"an array has a dimension of {MAX_SIDE} or more, though no elements", values[0])
    number = encoder.member(rows.source)
    common: dict[str, Any] = {
        "library": library.name,
        "dtype": rows.dtype,
        "values": number,
        "original": original,
        "returns": returns,
    }
    if len(values) == 1:
        return Dense(rows=1, shape=library.shape(values[0]), **common)
    inner = library.shape(values[0])[1:] if rows.equal_inner and rows.ndim else None
    return Ragged(
        rows=len(values),
        ndim=rows.ndim,
        inner=inner,
        offsets=None if rows.offsets is None or inner is None else encoder.array_member(rows.offsets),
        shapes=None if rows.shapes is None or rows.equal_inner else encoder.array_member(rows.shapes),
        **common,
    )


def largest_side(library: ArrayLibrary, rows: ArrayRows, values: list[Any]) -> int:
    """Give the largest dimension of arrays, or their sum along the first axis."""
    total = 0 if rows.offsets is None else int(rows.offsets[-1])
    inner = library.shape(values[0])[1:] if rows.shapes is None or rows.equal_inner else [int(rows.shapes.max())]
    return max(total, *inner, 0)


def check_returns(library: ArrayLibrary, rows: ArrayRows, returns: str, value: object) -> None:
    """Raise LossyCastError where arrays of this dtype can't come back as the schema asks."""
    kept = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    kept |= {"float16", "float32", "float64", "complex64", "complex128"}
    same = (library.name == "numpy") == (returns == "ndarray")
    if not same and library.dtype_name(rows.dtype) not in kept:
        raise LossyCastError(f"dtype {library.dtype_name(rows.dtype)} has no counterpart as {returns}", value)
