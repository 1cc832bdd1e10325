"""Cases: PIL images and encoded images."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

Case = Callable[[], dict[Any, Any]]
CASES: dict[str, Case] = {}
MODES = ["1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "RGBX", "RGBa", "La"]
MODES += ["I;16", "I;16L", "I;16B", "I;16N"]


def image(mode: str, width: int = 5, height: int = 3, seed: int = 0) -> Image.Image:
    count = len(Image.new(mode, (width, height)).tobytes())
    data = np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes()
    found = Image.frombytes(mode, (width, height), data)
    if mode in ("P", "PA"):
        found.putpalette(bytes(range(60)))
    return found


def transparent(mode: str, value: Any) -> Image.Image:
    found = image(mode)
    found.info["transparency"] = value
    return found


def rgba_palette() -> Image.Image:
    found = image("P")
    found.putpalette(bytes(range(64)), "RGBA")
    return found


def encoded(kind: str, mode: str = "RGB", seed: int = 0, **options: Any) -> bytes:
    stream = io.BytesIO()
    image(mode, 16, 8, seed).save(stream, kind, **options)
    return stream.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


for mode in MODES:
    CASES[f"image mode {mode}"] = lambda m=mode: {
        "field": image(m),
        "rows": [image(m, 7, 2), image(m, 1, 1)],
        "odd width": image(m, 9, 2),
        "meta": {"deep": [image(m)]},
    }

CASES |= {
    "image palettes": lambda: {"P": image("P"), "RGBA": rgba_palette(), "full": image("RGB", 40, 40).quantize(256)},
    "image transparency": lambda: {
        "index": transparent("P", 3),
        "bytes": transparent("P", b"\x00\x80\xff"),
        "grey": transparent("L", 7),
        "RGB": transparent("RGB", (1, 2, 3)),
        "none": image("P"),
    },
    "image sizes": lambda: {"one": image("RGB", 1, 1), "wide": image("L", 1000, 1), "tall": image("1", 1, 1000)},
    "images of no pixels": lambda: {
        "a": Image.new("RGB", (0, 0)),
        "b": [Image.new("L", (0, 3)), Image.new("L", (3, 0))],
    },
    "images in lists of varying length": lambda: {
        "images": [[image("RGB", 4 + i, 3, i) for i in range(n)] for n in (2, 0, 3)] + [None, [image("L")]]
    },
    "images of mixed modes and None": lambda: {
        "images": [image("RGB"), None, image("L"), image("P"), b"png", "path.png"]
    },
    "one image referenced often": lambda: (lambda i: {"images": [i] * 8, "again": {"deep": [i]}})(image("RGB", 64, 64)),
    "encoded images stay bytes": lambda: {
        "png": [encoded("PNG"), encoded("PNG", seed=1)],
        "jpeg": encoded("JPEG"),
        "mixed": [encoded("PNG"), None, encoded("JPEG"), bytearray(encoded("PNG"))],
        "in dicts": [{"bytes": encoded("PNG"), "path": None}, {"bytes": None, "path": "a.png"}],
    },
    "opened files": lambda: {
        "png": opened(encoded("PNG")),
        "jpeg": opened(encoded("JPEG")),
        "palette": opened(encoded("PNG", "P", transparency=2)),
        "rows": [opened(encoded("PNG", seed=i)) for i in range(3)],
        "1": opened(encoded("PNG", "1")),
        "16": opened(encoded("PNG", "I;16")),
    },
    "cropped and converted images": lambda: {
        "crop": image("RGB", 20, 20).crop((3, 3, 8, 9)),
        "convert": image("RGBA").convert("LA"),
        "from array": Image.fromarray(np.arange(12, dtype="u1").reshape(3, 4)),
        "read-only": Image.frombuffer("L", (2, 2), b"abcd", "raw", "L", 0, 1),
    },
    "images beside tensors": lambda: {
        "samples": [{"image": image("RGB"), "size": (5, 3), "pixels": np.asarray(image("RGB"))}, {"image": None}]
    },
    "large images": lambda: {"images": [image("RGB", 1024, 768, i) for i in range(2)]},
}
