"""Manifests made up from the grammar of columns, with payloads that go with them."""

import json
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.mutations import (
    BAD_DTYPES,
    CODECS,
    DTYPES,
    INTS,
    TEXTS,
    TORCH_CODECS,
    TORCH_DTYPES,
    damage,
    dtype,
    shape,
)

NUMBERS = [("bool", "|b1"), ("float", "<f8"), ("float", "<f4"), ("int", "|u1"), ("int", "<i8"), ("int", "<u8")]


class Maker:
    """A bundle made up column by column: mostly right, with a bad number, name or dtype here and there.

    Parameters
    ----------
    rng
        Where choices come from.
    badness
        How often to be wrong.
    """

    def __init__(self, rng: Random, badness: float) -> None:
        self.rng = rng
        self.columns: list[dict[str, Any]] = []
        self.members: list[list[int]] = []
        self.payload = bytearray()
        self.badness = badness

    def bad(self) -> bool:
        """Whether the next thing is to be wrong."""
        return self.rng.random() < self.badness

    def number(self, right: int) -> int:
        """A number, mostly the right one."""
        return self.rng.choice((right + 1, right - 1, self.rng.choice(INTS))) if self.bad() else right

    def member(self, data: bytes) -> int:
        """Append a member; give its number."""
        if self.bad():
            data = damage(self.rng, data)
        self.members.append([self.number(len(self.payload)), self.number(len(data))])
        self.payload += data + bytes(-len(data) % 64)
        return self.number(len(self.members) - 1)

    def ints(self, values: Any) -> int:
        """Append a member of int64."""
        values = [self.number(int(value)) for value in values]
        return self.member(b"".join((value & (1 << 64) - 1).to_bytes(8, "little") for value in values))

    def offsets(self, lengths: list[int]) -> int:
        """Append a member of offsets."""
        return self.ints([0, *np.cumsum(lengths, dtype=np.int64)])

    def lengths(self, rows: int) -> list[int]:
        """Lengths of rows."""
        return [self.rng.randrange(3) for _ in range(rows)]

    def add(self, kind: str, rows: int, **rest: Any) -> int:
        """Append a column; give its number."""
        self.columns.append({"kind": kind, "rows": self.number(rows), **rest})
        return self.number(len(self.columns) - 1)

    def column(self, rows: int, depth: int = 0) -> int:
        """Append a column of so many values of any kind, and before it what it consists of; give its number."""
        leaves = ["array", "array", "numbers", "text", "text", "scalars", "null"]
        nodes = [
            "sequence",
            "sequence",
            "record",
            "map",
            "union",
            "shared",
            "objects",
            "media",
            "registered",
            "registered",
            "jagged",
        ]
        kind = self.rng.choice(leaves if depth > 4 else leaves + nodes)
        build: Any = getattr(self, kind)
        number: int = build(rows, depth + 1)
        return number

    def array(self, rows: int, depth: int) -> int:
        """dense or ragged."""
        rng = self.rng
        torch = rng.random() < 0.2
        code = rng.choice(TORCH_DTYPES) if torch else dtype(rng) if rng.random() < 0.3 else rng.choice(DTYPES)
        size = {"bool": 1, "uint8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "uint16": 2, "complex32": 4}.get(str(code), 8)
        if not torch:
            size = int(np.dtype(code).itemsize) if code in DTYPES else rng.choice((1, 4, 8))
        common: dict[str, Any] = {"library": "torch" if torch else "numpy", "dtype": code}
        if rng.random() < 0.15:
            common["original"] = rng.choice(TORCH_DTYPES) if torch else dtype(rng)
        if rng.random() < 0.15:
            common["returns"] = rng.choice(("ndarray", "tensor"))
        ndim = rng.choice((0, 1, 1, 2, 3))
        shapes = [[rng.randrange(3) for _ in range(ndim)] for _ in range(rows)]
        if rows == 1 and rng.random() < 0.7:
            common["shape"] = shape(rng) if self.bad() else shapes[0]
        elif ndim and rng.random() < 0.5:
            shapes = [[row[0], *shapes[0][1:]] for row in shapes]
            common |= {
                "offsets": self.offsets([row[0] for row in shapes]),
                "inner": [self.number(n) for n in shapes[0][1:]] if shapes else [],
            }
        elif ndim:
            common["shapes"] = self.ints([n for row in shapes for n in row])
        items = sum(int(np.prod(row, dtype=np.int64)) for row in shapes)
        common["values"] = self.member(rng.randbytes(items * size))
        if "shape" not in common:
            common["ndim"] = self.number(ndim)
        return self.add("dense" if "shape" in common else "ragged", rows, **common)

    def numbers(self, rows: int, depth: int) -> int:
        kind, code = self.rng.choice(NUMBERS)
        returns = self.rng.choice(("python", "python", "python", "ndarray", "tensor"))
        data = bytes(rows) if kind == "bool" else self.rng.randbytes(rows * int(np.dtype(code).itemsize))
        return self.add("numbers", rows, type=kind, dtype=code, data=self.member(data), returns=returns)

    def text(self, rows: int, depth: int) -> int:
        structured = json.dumps(dtype(self.rng), default=str)
        items = [self.rng.choice((structured, self.rng.choice(TEXTS), "\xe9\ud800")) for _ in range(rows)]
        return self.strings(items, self.rng.choice(("str", "str", "bytes", "bytearray")))

    def scalars(self, rows: int, depth: int) -> int:
        code = self.rng.choice(DTYPES)
        return self.add(
            "scalars", rows, dtype=code, data=self.member(self.rng.randbytes(rows * int(np.dtype(code).itemsize)))
        )

    def null(self, rows: int, depth: int) -> int:
        return self.add("null", rows, **({"bitmap": self.member(bytes((rows + 7) // 8))} if rows else {}))

    def sequence(self, rows: int, depth: int) -> int:
        lengths = self.lengths(rows)
        kind = self.rng.choice(("list", "tuple"))
        return self.add(
            "sequence", rows, type=kind, offsets=self.offsets(lengths), items=self.column(sum(lengths), depth)
        )

    def record(self, rows: int, depth: int) -> int:
        keys = ["role", "tokens", 3][: self.rng.randrange(4)]
        columns = [self.column(rows, depth) for _ in keys]
        shape = [self.number(i) for i in range(len(keys))]
        tags = {} if keys and self.rng.random() < 0.5 else {"tags": self.member(bytes(2 * rows))}
        return self.add("record", rows, keys=keys, columns=columns, shapes=[shape], **tags)

    def map(self, rows: int, depth: int) -> int:
        lengths = self.lengths(rows)
        keys, values = self.column(sum(lengths), depth), self.column(sum(lengths), depth)
        return self.add("map", rows, offsets=self.offsets(lengths), keys=keys, values=values)

    def union(self, rows: int, depth: int) -> int:
        tags = bytes(self.rng.randrange(2) for _ in range(rows))
        columns = [self.column(tags.count(tag), depth) for tag in range(2)]
        return self.add("union", rows, tags=self.member(tags), columns=columns)

    def shared(self, rows: int, depth: int) -> int:
        own = self.rng.randrange(1, 3)
        index = [self.rng.randrange(own) for _ in range(rows)]
        rest: dict[str, Any] = {"own": self.column(own, depth)}
        if self.rng.random() < 0.5:
            source = self.rng.randrange(len(self.columns))
            rest |= {"foreign": self.ints([source, 0]), "sources": [self.number(source)]}
            index = [self.rng.choice((i, -1)) for i in index]
        return self.add("shared", rows, index=self.ints(index), **rest)

    def objects(self, rows: int, depth: int) -> int:
        shapes = self.lists([[self.rng.randrange(3) for _ in range(self.rng.randrange(3))] for _ in range(rows)])
        return self.add("objects", rows, shapes=shapes, items=self.column(self.rng.choice((rows, 2 * rows)), depth))

    def media(self, rows: int, depth: int) -> int:
        sizes = [(self.number(self.rng.randrange(3)), self.number(self.rng.randrange(3))) for _ in range(rows)]
        pixels = [max(0, min(w * h, 9)) for w, h in sizes]
        mode = self.strings([self.rng.choice("LLP1")] * rows)
        columns = [mode, self.lists([list(size) for size in sizes]), self.null(rows, 9), self.null(rows, 9)]
        flat = self.tuples(rows, columns)
        return self.add(
            "media", rows, attributes=flat, offsets=self.offsets(pixels), pixels=self.member(bytes(sum(pixels)))
        )

    def registered(self, rows: int, depth: int) -> int:
        rng = self.rng
        name = rng.choice(CODECS if rng.random() < 0.6 else TORCH_CODECS)
        code = rng.choice(BAD_DTYPES + DTYPES)
        if rng.random() < 0.1:
            parts = self.add("registered", rows, name="range", parts=self.lists([[0, 1 << 40, 1]] * rows))
        elif rng.random() < 0.6:
            parts = self.column(rows, depth)
        elif rng.random() < 0.5 or name.startswith("numpy.zero"):
            shapes = self.lists([shape(rng) for _ in range(rows)])
            first = self.strings([json.dumps(code)] * rows)
            parts = first if name == "numpy.zero_width_scalar" else self.tuples(rows, [first, shapes])
        else:
            parts = self.lists([[rng.choice((0, 1, 3, rng.choice(INTS[:20]))) for _ in range(3)] for _ in range(rows)])
        return self.add("registered", rows, name=name, parts=parts)

    def jagged(self, rows: int, depth: int) -> int:
        rng = self.rng
        components = [self.lengths(2) for _ in range(rows)]
        values = self.tensors([sum(sizes) for sizes in components], self.member(bytes(8 * sum(map(sum, components)))))
        bounds = [np.cumsum([0, *sizes]).tolist() for sizes in components]
        offsets = self.tensors([3] * rows, self.ints(sum(bounds, [])))
        if rng.random() < 0.3:
            lengths = self.tensors([2] * rows, self.ints(sum(components, [])))
        else:
            lengths = self.null(rows, depth)
        data = self.member(bytes([rng.choice((1, 1, 1, 2))] * rows))
        axes = self.add("numbers", rows, type="int", dtype="uint8", data=data)
        if rng.random() < 0.2:
            values = self.column(rows, depth)
        return self.add("jagged", rows, values=values, offsets=offsets, lengths=lengths, axes=axes)

    def tensors(self, sizes: list[int], values: int) -> int:
        """Append a column of one-dimensional int64 tensors."""
        common: dict[str, Any] = {"library": "torch", "dtype": "int64", "values": values}
        if len(sizes) == 1:
            return self.add("dense", 1, shape=sizes, **common)
        return self.add("ragged", len(sizes), ndim=1, inner=[], offsets=self.offsets(sizes), **common)

    def strings(self, items: list[str], kind: str = "str") -> int:
        """Append a column of text."""
        encoded = [item.encode("utf-8", "surrogatepass") for item in items]
        offsets = self.offsets([len(item) for item in encoded])
        return self.add("text", len(items), type=kind, offsets=offsets, data=self.member(b"".join(encoded)))

    def lists(self, rows: list[list[int]]) -> int:
        """Append a column of lists of ints."""
        flat = [max(-(1 << 63), min(value, (1 << 63) - 1)) for row in rows for value in row]
        items = self.add("numbers", len(flat), type="int", dtype="<i8", data=self.ints(flat))
        kind = self.rng.choice(("list", "tuple"))
        return self.add("sequence", len(rows), type=kind, offsets=self.offsets([len(row) for row in rows]), items=items)

    def tuples(self, rows: int, columns: list[int]) -> int:
        """Append a column of tuples with an item of each column."""
        width = len(columns)
        tags = self.member(bytes(range(width)) * rows)
        items = self.add("union", rows * width, tags=tags, columns=columns)
        return self.add("sequence", rows, type="tuple", offsets=self.offsets([width] * rows), items=items)

    def fields(self) -> list[dict[str, Any]]:
        """Some fields over columns of any kind."""
        fields: list[dict[str, Any]] = []
        for number in range(self.rng.randrange(1, 4)):
            form = self.rng.choice(("value", "list", "tuple"))
            column = self.column(1 if form == "value" else self.rng.randrange(4))
            if self.columns[-1]["kind"] == "numbers" and self.rng.random() < 0.3:
                form = "array"
            fields.append({"key": f"f{number}", "form": form, "column": column})
        return fields

    def manifest(self, fields: list[dict[str, Any]]) -> dict[str, Any]:
        """The manifest of all of it."""
        parts = {"fields": fields, "columns": self.columns, "members": self.members}
        return {"type": "dict", **parts, "payload_nbytes": len(self.payload)}


def make(rng: Random) -> tuple[dict[str, Any], bytes]:
    """A manifest made up, and its payload."""
    maker = Maker(rng, rng.choice((0.0, 0.01, 0.05)))
    return maker.manifest(maker.fields()), bytes(maker.payload)
