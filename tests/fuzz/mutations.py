"""Damaged bytes, and manifests with a thing or two changed."""

from random import Random
from typing import Any

import msgspec

INTS = [0, 1, 2, 3, 7, 63, 64, 65, 127, 255, 256, 65535, 65536, *(1 << n for n in (31, 32, 40, 53, 60, 61, 62, 63))]
INTS += [(1 << n) - 1 for n in (31, 32, 62, 63, 64)] + [-1, -2, -64, -(1 << 31), -(1 << 63)]
NUMBER_DTYPES = ["|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f4", "<f8"]
DTYPES = [*NUMBER_DTYPES, ">i4", "<c8", "<M8[s]", "<m8[25us]", "<U1", "|S3", "|V8", "<f2", "<f16", "<c32"]
BAD_DTYPES = ["O", "|O8", ",i4", "<i4,<i4", "(2,)i4", "2i4", "|V0", "|S0", "<U0", "|V2147483647", "<U536870911", "<f3"]
BAD_DTYPES += [
    "|S9999999999",
    "<M8",
    "<M8[zz]",
    "<M8[9999999999s]",
    "<M8[0s]",
    "float32",
    "<i4 ",
    "",
    "|b8",
    "|i4",
    ">u1",
]
TORCH_DTYPES = ["bfloat16", "float8_e4m3fn", "bool", "uint8", "int64", "complex32", "float64", "uint16", "quint8"]
CODECS = ["int", "complex", "range", "set", "frozenset", "numpy.str_", "numpy.bytes_", "numpy.longlong"]
CODECS += ["numpy.zero_width", "numpy.zero_width_scalar", "golden:Turn", "PIL.Image", "os:system", "os.system"]
TORCH_CODECS = ["torch.Size", "torch.jagged", "torch.nested", "torch.device", "torch.dtype"]
TORCH_CODECS += ["tensordict.TensorDict", "tensordict.NonTensorData", "tensordict.NonTensorStack"]
TORCH_CODECS += ["tensordict.LazyStackedTensorDict"]
WORDS = ["list", "tuple", "value", "array", "str", "bytes", "bytearray", "int", "float", "bool", "python", "ndarray"]
WORDS += ["tensor", "numpy", "torch", "dict", "\0", "\ud7ff", "x" * 3000]
KINDS = [
    "dense",
    "ragged",
    "numbers",
    "text",
    "media",
    "pickled",
    "null",
    "sequence",
    "record",
    "map",
    "union",
    "shared",
]
KINDS += ["objects", "scalars", "registered", "jagged"]
TEXTS = [*DTYPES, *BAD_DTYPES, "P", "1", "RGB", "I;16", "cpu", "cuda:99", "meta", "int32", "role", "tokens"]


# ---- damaged bytes ----


def damage(rng: Random, data: bytes) -> bytes:
    """Flip, overwrite, cut, or extend bytes anywhere."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        if not damaged:
            break
        where = rng.randrange(len(damaged))
        match rng.randrange(7):
            case 0 | 1:
                damaged[where] ^= 1 << rng.randrange(8)
            case 2:
                damaged[where] = rng.choice((0, 1, 127, 128, 255))
            case 3:
                del damaged[where:]
            case 4:
                del damaged[where : where + rng.choice((1, 8, 64))]
            case 5:
                damaged += rng.randbytes(rng.choice((1, 8, 64, 5000)))
            case _:
                damaged[where : where + 8] = (rng.choice(INTS) & (1 << 64) - 1).to_bytes(8, "little")
    return bytes(damaged)


def damage_payload(rng: Random, payload: bytes) -> bytes:
    """Overwrite some of the aligned words of a payload, where offsets, shapes and tags are; its size stays."""
    damaged = bytearray(payload)
    for _ in range(rng.randrange(1, 4)):
        if len(damaged) >= 8:
            where = rng.randrange(len(damaged) // 8) * 8
            damaged[where : where + 8] = (rng.choice(INTS) & (1 << 64) - 1).to_bytes(8, "little")
    return bytes(damaged)


# ---- one thing changed in a manifest ----


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a manifest."""
    found: list[tuple[Any, Any]] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            found.append((node, key))
            stack.append(node[key])
    return found


def mutate(rng: Random, manifest: dict[str, Any], others: list[dict[str, Any]]) -> None:
    """Change a manifest, as plain objects, in some places."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        container, key = rng.choice(places(manifest))
        old = container[key]
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                container[key] = replacement(rng, old)
            case 4:
                other, other_key = rng.choice(places(manifest))
                if type(other[other_key]) is type(old) and not isinstance(old, dict | list):
                    container[key], other[other_key] = other[other_key], old
            case 5:
                other, other_key = rng.choice(places(rng.choice(others)))
                container[key] = json_copy(other[other_key])
            case 6:
                del container[key]
            case 7 if isinstance(old, list) and old:
                old.insert(rng.randrange(len(old) + 1), json_copy(rng.choice(old)))
            case 8 if isinstance(old, list):
                rng.shuffle(old)
            case 9 if isinstance(old, dict) and isinstance(old.get("kind"), str):
                other = rng.choice([column for column in rng.choice(others)["columns"]] or [old])
                container[key] = {**json_copy(other), **{name: old[name] for name in old if name in other}}
                container[key]["kind"] = other["kind"]


def replacement(rng: Random, old: Any) -> Any:
    """Something like an old value, or nothing like it."""
    if isinstance(old, bool) or rng.random() < 0.1:
        return rng.choice([None, True, 0.5, "x", b"\xff", [], {}, [[]], nested(rng), rng.choice(INTS)])
    if isinstance(old, int):
        return rng.choice([old + 1, old - 1, old * 2, rng.randrange(8), rng.choice(INTS), rng.choice(INTS)])
    if isinstance(old, str):
        return rng.choice([*DTYPES, *BAD_DTYPES, *TORCH_DTYPES, *CODECS, *TORCH_CODECS, *WORDS, *KINDS])
    if isinstance(old, bytes):
        return damage(rng, old)
    if isinstance(old, list):
        return rng.choice([shape(rng), old + old, old[:-1], old[::-1], [old], nested(rng)])
    return old


def nested(rng: Random) -> Any:
    """A list in a list in a list."""
    tree: Any = []
    for _ in range(rng.choice((3, 100, 1500))):
        tree = [tree]
    return tree


def json_copy(tree: Any) -> Any:
    """A deep copy of plain objects."""
    if isinstance(tree, dict):
        return {key: json_copy(value) for key, value in tree.items()}
    return [json_copy(value) for value in tree] if isinstance(tree, list) else tree


def shape(rng: Random) -> list[int]:
    """A shape, good or bad."""
    if rng.random() < 0.1:
        return [rng.choice((0, 1))] * rng.choice((32, 33, 64, 65, 1000))
    return [rng.choice((0, 1, 1, 2, 3, rng.choice(INTS))) for _ in range(rng.randrange(5))]


def dtype(rng: Random, depth: int = 0) -> Any:
    """A dtype as a manifest has it, good or bad, plain or structured."""
    if rng.random() < 0.8 or depth > 3:
        return rng.choice(DTYPES) if rng.random() < 0.8 else rng.choice(BAD_DTYPES + TORCH_DTYPES)
    fields = [
        [
            rng.choice((b"a", b"b", b"", b"\xff", b"\xed\xa0\x80")),
            dtype(rng, depth + 1),
            rng.choice((0, 8, rng.choice(INTS))),
        ]
        for _ in range(rng.randrange(4))
    ]
    for field in fields:
        if rng.random() < 0.3:
            field.append(shape(rng))
            if rng.random() < 0.3:
                field.append(rng.choice((b"t", None)))
    return [rng.choice((0, 8, 16, 64, rng.choice(INTS))), rng.random() < 0.5, rng.random() < 0.2, fields]


def to_bytes(manifest: Any) -> bytes:
    """The msgpack of plain objects; ints that msgpack can't hold, and objects nested too deeply for it, are left out."""
    try:
        return msgspec.msgpack.encode(manifest)
    except (OverflowError, RecursionError, UnicodeEncodeError):
        return b"\x93" * 3000
