"""Pure-Python twins of native/numbers.c."""

import itertools
import struct
from dataclasses import dataclass
from typing import Any

FORMATS = {
    "|u1": "B", "|i1": "b", "<u2": "H", "<i2": "h", "<u4": "I", "<i4": "i", "<u8": "Q", "<i8": "q",
    "<f4": "f", "<f8": "d", "|b1": "?",
}  # fmt: skip
INT_RANGES = {name: (0 if name[1] == "u" else -(1 << int(name[2]) * 8 - 1),
                     (1 << int(name[2]) * 8 - (name[1] == "i")) - 1) for name in list(FORMATS)[:8]}  # fmt: skip
INT_RANGES |= {"<f4": (-(1 << 24), 1 << 24), "<f8": (-(1 << 53), 1 << 53)}


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def survives_float4(value: float) -> bool:
    """Whether float64 -> float32 -> float64 gives the same bits; by bit fields, as struct.pack may quiet a NaN."""
    word = int.from_bytes(bits(value), "little")
    if value != value:
        quiet, low_payload = word >> 51 & 1, word & (1 << 29) - 1
        return quiet == 1 and low_payload == 0
    try:
        return bits(struct.unpack("<f", struct.pack("<f", value))[0]) == bits(value)
    except OverflowError:
        return False


@dataclass
class Column:
    dtype: str
    kind: str
    nested: bool
    row_type: type | None
    count: int
    nbytes: int
    offsets: list[int] | None
    minimum: int | None
    maximum: int | None


def flatten(values: list[Any], nested: bool) -> list[Any]:
    return [item for row in values for item in row] if nested else values


def number_scan(values: list[Any]) -> Column | None:
    outer = {type(value) for value in values}
    nested = outer == {list} or outer == {tuple}
    items = flatten(values, nested)
    inner = {type(item) for item in items}
    if not values or len(inner) > 1 or not inner <= {int, float, bool}:
        return None
    kind = inner.pop().__name__ if inner else "int"
    low, high = (None, None) if kind == "float" else (int(min(items, default=0)), int(max(items, default=0)))
    fitting = [name for name in FORMATS if name in allowed(kind, items) and (kind != "int" or "f" not in name)]
    if not fitting:
        return None
    itemsize = struct.calcsize("<" + FORMATS[fitting[0]])
    offsets = [0, *itertools.accumulate(map(len, values))] if nested else None
    row_type = outer.pop() if nested else None
    return Column(fitting[0], kind, nested, row_type, len(items), itemsize * len(items), offsets, low, high)


def allowed(kind: str, items: list[Any]) -> set[str]:
    """The dtypes that hold these numbers without loss."""
    if kind == "bool":
        return {"|b1"}
    if kind == "float":
        return {"<f4", "<f8"} if all(map(survives_float4, items)) else {"<f8"}
    low, high = min(items, default=0), max(items, default=0)
    return {name for name, (least, most) in INT_RANGES.items() if least <= low and high <= most}


def number_bytes(items: list[Any], dtype: str) -> bytes:
    return struct.pack(f"<{len(items)}{FORMATS[dtype]}", *items)


def number_list(data: bytes, dtype: str) -> list[Any]:
    return [value for (value,) in struct.iter_unpack("<" + FORMATS[dtype], data)]


def number_rows(data: bytes, dtype: str, offsets: list[int], row_type: type) -> list[Any]:
    items = number_list(data, dtype)
    return [row_type(items[start:end]) for start, end in itertools.pairwise(offsets)]
