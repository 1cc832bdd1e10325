"""PIL: images as pixels, and back."""

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageMode

from rollferry.errors import BatchChangedError, UnsupportedValueError
from rollferry.layouts.choose import Handler
from rollferry.layouts.media import Media

__all__ = ["attributes", "handler", "image_nbytes", "pixels_into", "rebuild"]

MAX_SIDE = 1 << 20  # pillow allocates for each row, also where they are empty


def handler(cls: type) -> Handler | None:
    """Give the handler of a class of images."""
    return Handler(Media.encode, shares=True) if issubclass(cls, Image.Image) else None


def image_nbytes(mode: str, size: tuple[int, int]) -> int:
    """Give the bytes of an image's pixels, rows without padding."""
    width, height = size
    if min(width, height) < 0 or max(width, height) > MAX_SIDE:
        raise ValueError(f"an image of size {size}")
    if mode == "1":
        return (width + 7) // 8 * height
    descriptor = ImageMode.getmode(mode)
    return width * height * len(descriptor.bands) * int(np.dtype(descriptor.typestr).itemsize)


def attributes(image: Image.Image) -> tuple[Any, ...]:
    """Give what an image is besides its pixels: mode, size, palette mode and bytes, transparency."""
    try:
        image.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise UnsupportedValueError(f"an image that can't be loaded: {error}", image) from error
    if max(image.size) > MAX_SIDE:
        raise UnsupportedValueError(f"an image of size {image.size}", image)
    palette = None
    if image.palette is not None and image.mode in ("P", "PA"):
        mode = image.palette.mode
        palette = mode, bytes(image.im.getpalette(mode, mode))
    return image.mode, tuple(image.size), palette, image.info.get("transparency")


def pixels_into(image: Image.Image, dest: npt.NDArray[np.uint8]) -> None:
    """Write the pixels of an image to `dest`."""
    data = image.tobytes()
    if len(data) != len(dest):
        raise BatchChangedError(f"an image of mode {image.mode} has {len(data)} bytes, not {len(dest)}")
    dest[:] = np.frombuffer(data, np.uint8)


def rebuild(described: tuple[Any, ...], data: npt.NDArray[np.uint8]) -> Image.Image:
    """Rebuild one image from its attributes and pixels. Raises ValueError where they don't fit."""
    mode, size, palette, transparency = described
    if image_nbytes(mode, size) != len(data):
        raise ValueError(f"an image of mode {mode!r} and size {size} does not have {len(data)} bytes of pixels")
    image = Image.frombytes(mode, size, data.tobytes()) if len(data) else Image.new(mode, size)
    if palette is not None:
        image.putpalette(palette[1], palette[0])
    if transparency is not None:
        image.info["transparency"] = transparency
    return image
