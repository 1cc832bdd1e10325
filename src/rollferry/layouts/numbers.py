"""numbers: Python ints, floats and bools, as typed arrays of the narrowest dtype that keeps them all."""

import builtins
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from rollferry import _native
from rollferry.errors import BatchChangedError, BundleError, UnsupportedValueError
from rollferry.layouts.arrays import NUMPY, library_named
from rollferry.layouts.base import Int64Array, Spec, Taken
from rollferry.layouts.library import LossyCastError
from rollferry.layouts.rows import Rows
from rollferry.layouts.tree.registered import Registered
from rollferry.schema import FieldSchema

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["DTYPES", "NumberSource", "Numbers", "encode_ints"]

Stored = Literal["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"]
DTYPES: dict[str, "np.dtype[Any]"] = {name: np.dtype(name) for name in Stored.__args__}  # type: ignore[attr-defined]


class NumberSource:
    """Numbers that are converted straight into their member.

    Parameters
    ----------
    column
        The scanned lists.
    dtype
        dtype to write.
    """

    copies = 1

    def __init__(self, column: _native.NumberColumn, dtype: str) -> None:
        self._column = column
        self._dtype = dtype
        self.nbytes = column.count * DTYPES[dtype].itemsize

    def fill(self, dest: npt.NDArray[np.uint8]) -> None:
        """Write all numbers to `dest`. Raises BatchChangedError where they were changed since they were scanned."""
        try:
            self._column.fill(dest, self._dtype)
        except RuntimeError as error:
            raise BatchChangedError(str(error)) from None


class Numbers(Spec, frozen=True, tag="numbers"):
    """Values of one type out of int (of 64 bits), float and bool.

    Parameters
    ----------
    type
        Name of that type.
    dtype
        dtype of the member.
    data
        Member with the numbers.
    returns
        ``python`` numbers, or an ``ndarray`` or ``tensor`` in place of a list of them.
    """

    layout: ClassVar[str] = "numbers"
    why: ClassVar[str] = "Python numbers of one type"

    type: Literal["int", "float", "bool"]
    dtype: Stored
    data: int
    returns: Literal["python", "ndarray", "tensor"] = "python"

    def members(self) -> Iterable[int]:
        return (self.data,)

    @classmethod
    def encode(cls, values: list[Any], encoder: "Encoder") -> "Numbers":
        """Encode values of one exact type, ints only where they fit 64 bits."""
        column = encoder.scan_numbers(values)
        if column is None:
            raise BatchChangedError("a list was changed while it was being put")
        return cls.of(column, encoder)

    @classmethod
    def of(cls, column: _native.NumberColumn, encoder: "Encoder") -> "Numbers":
        """Encode a scanned column, as the schema wants where there is one."""
        hint = encoder.hint
        if column.count == 0 and hint is not None and hint.dtype is not None:
            return cls.empty(hint, encoder)
        dtype: Any = column.dtype if hint is None or hint.dtype is None else requested_dtype(column, hint)
        returns: Any = "python" if hint is None or hint.returns == "same" else hint.returns
        data = encoder.member(NumberSource(column, dtype))
        return cls(rows=column.count, type=column.kind, dtype=dtype, data=data, returns=returns)

    @classmethod
    def empty(cls, hint: FieldSchema, encoder: "Encoder") -> "Numbers":
        """Encode no numbers at all, as the schema wants."""
        dtype = parse_dtype(hint.dtype or "float64")
        kind: Any = {"b": "bool", "f": "float"}.get(dtype.kind, "int")
        returns: Any = "python" if hint.returns == "same" else hint.returns
        stored: Any = dtype.str
        return cls(rows=0, type=kind, dtype=stored, data=encoder.array_member(np.empty(0, dtype)), returns=returns)

    def array(self, source: "Decoder") -> Any:
        """Give the numbers as a typed ndarray or tensor."""
        if self.returns != "tensor":
            return source.array(self.data, DTYPES[self.dtype], self.rows)
        values = library_named("torch").load(source.bytes(self.data), DTYPES[self.dtype].name)
        if len(values) != self.rows:
            raise BundleError(f"{len(values)} numbers are stored for {self.rows}")
        return values

    def wide_array(self, source: "Decoder") -> Any:
        """Do as `array`, but give what comes back as Python numbers in a dtype that doesn't depend on their values.

        That is int64, uint64 where one doesn't fit, float64 or bool.
        """
        values = self.array(source)
        if self.returns != "python" or self.type == "bool":
            return values
        if self.type == "float":
            return values.astype(np.float64, copy=False)
        large = values.dtype == np.uint64 and values.max(initial=0) > np.iinfo(np.int64).max
        return values if large else values.astype(np.int64, copy=False)

    def select(self, rows: Rows, taken: Taken) -> "Numbers":
        taken.keep(self.data, DTYPES[self.dtype].itemsize, rows)
        return msgspec.structs.replace(self, rows=rows.count)

    def decode(self, source: "Decoder") -> list[Any]:
        return _native.number_list(source.array(self.data, DTYPES[self.dtype], self.rows), self.dtype, self.type)

    def decode_rows(self, source: "Decoder", offsets: Int64Array, row_type: builtins.type[Any]) -> list[Any]:
        if self.returns == "python":
            values = source.array(self.data, DTYPES[self.dtype], self.rows)
            return _native.number_rows(values, self.dtype, self.type, offsets, row_type)
        library = library_named("torch") if self.returns == "tensor" else NUMPY
        return library.split_rows(self.array(source), offsets)

    def needs_writable(self) -> bool:
        return self.returns == "tensor"

    def row_layout_name(self, specs: Sequence[Spec]) -> str:
        return self.layout

    def dtype_name(self) -> str:
        return DTYPES[self.dtype].name


def requested_dtype(column: _native.NumberColumn, hint: FieldSchema) -> str:
    """Give the dtype that a schema asks for. Raises LossyCastError where a number would not survive it."""
    dtype = parse_dtype(hint.dtype or column.dtype)
    if column.kind == "int" and column.minimum is not None and column.maximum is not None:
        if dtype.kind in "iu":
            kept = np.iinfo(dtype).min <= column.minimum and column.maximum <= np.iinfo(dtype).max
        else:
            bits = {4: 24, 8: 53}.get(dtype.itemsize, 0) if dtype.kind == "f" and hint.returns != "same" else 0
            kept = max(-column.minimum, column.maximum) <= 1 << bits and bits > 0
    elif column.kind == "float":
        kept = dtype.str in ("<f8", column.dtype)
    else:
        kept = dtype.kind == "b"
    if not kept:
        raise LossyCastError(f"a Python {column.kind} does not survive {hint.dtype}")
    return dtype.str


def parse_dtype(name: str) -> "np.dtype[Any]":
    """Give a dtype that Python numbers can be stored in. Raises LossyCastError where it is none."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        raise LossyCastError(f"numpy has no dtype {name!r}") from None
    if dtype.str not in DTYPES:
        raise LossyCastError(f"Python numbers can't be stored as {name}")
    return dtype


def encode_ints(values: list[int], encoder: "Encoder") -> Spec:
    """Encode Python ints: as numbers, or as bytes where one needs more than 64 bits."""
    column = encoder.scan_numbers(values)
    if column is not None:
        return Numbers.of(column, encoder)
    if encoder.hint is not None and encoder.hint.dtype is not None:
        raise LossyCastError(f"an int of more than 64 bits does not survive {encoder.hint.dtype}")
    return Registered.encode_as("int", [int_to_bytes(value) for value in values], encoder)


def int_to_bytes(value: int) -> bytes:
    """Give the shortest two's complement form, little-endian."""
    if value.bit_length() > 1 << 31:
        raise UnsupportedValueError("an int of more than 2**31 bits", value)
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
