"""Pure-Python twins of native/text.c."""

import itertools
from typing import Any


def encode(item: str | bytes | bytearray) -> bytes:
    return item.encode("utf-8", "surrogatepass") if isinstance(item, str) else bytes(item)


def decode(data: bytes, kind: str) -> str | bytes | bytearray:
    if kind == "str":
        return data.decode("utf-8", "surrogatepass")
    return data if kind == "bytes" else bytearray(data)


def text_scan(values: list[Any]) -> tuple[bytes, list[int]]:
    parts = [encode(item) for item in values]
    return b"".join(parts), [0, *itertools.accumulate(map(len, parts))]


def text_list(data: bytes, offsets: list[int], kind: str) -> list[Any]:
    return [decode(data[start:end], kind) for start, end in itertools.pairwise(offsets)]


def text_rows(data: bytes, offsets: list[int], row_offsets: list[int], kind: str, row_type: type) -> list[Any]:
    items = text_list(data, offsets, kind)
    return [row_type(items[start:end]) for start, end in itertools.pairwise(row_offsets)]
