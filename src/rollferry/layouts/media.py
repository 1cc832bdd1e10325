"""media: images as raw pixels, with what else makes them up. Encoded images are bytes, which `text` keeps as they are."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from rollferry.errors import BundleError
from rollferry.layouts.base import Spec, Taken
from rollferry.layouts.optional import load
from rollferry.layouts.rows import Rows, offsets_of

if TYPE_CHECKING:
    from rollferry.layouts.decoder import Decoder
    from rollferry.layouts.encoder import Encoder

__all__ = ["Media"]


class ImageSource:
    """Pixels of images, each unpacked straight into its place.

    Parameters
    ----------
    images
        PIL images.
    sizes
        Bytes of pixels of each.
    """

    copies = 2

    def __init__(self, images: list[Any], sizes: list[int]) -> None:
        self._images = images
        self._sizes = sizes
        self.nbytes = sum(sizes)

    def fill(self, dest: npt.NDArray[np.uint8]) -> None:
        """Write all pixels to `dest`."""
        pil = load("PIL")
        start = 0
        for image, size in zip(self._images, self._sizes, strict=True):
            pil.pixels_into(image, dest[start : start + size])
            start += size


class Media(Spec, frozen=True, tag="media"):
    """PIL images: mode, size, pixels, palette and transparency. They come back as PIL.Image.Image.

    Parameters
    ----------
    attributes
        Child column of (mode, size, palette, transparency) tuples.
    offsets
        int64 member, `rows` + 1 byte offsets into `pixels`.
    pixels
        Member with the raw pixels, as PIL's tobytes() gives them.
    """

    layout: ClassVar[str] = "media"
    why: ClassVar[str] = "images"

    attributes: int
    offsets: int
    pixels: int

    def children(self) -> Iterable[int]:
        return (self.attributes,)

    def members(self) -> Iterable[int]:
        return (self.offsets, self.pixels)

    @classmethod
    def encode(cls, values: list[Any], encoder: "Encoder") -> "Media":
        """Encode PIL images."""
        pil = load("PIL")
        attributes = [pil.attributes(image) for image in values]
        sizes = [pil.image_nbytes(mode, size) for mode, size, *_ in attributes]
        return cls(
            rows=len(values),
            attributes=encoder.column(attributes),
            offsets=encoder.array_member(offsets_of(sizes)),
            pixels=encoder.member(ImageSource(values, sizes)),
        )

    def row_layout_name(self, specs: Sequence[Spec]) -> str:
        return self.layout

    def select(self, rows: Rows, taken: Taken) -> "Media":
        taken.keep(self.pixels, 1, taken.offsets(self.offsets, rows))
        taken.column(self.attributes, rows)
        return msgspec.structs.replace(self, rows=rows.count)

    def decode(self, source: "Decoder") -> list[Any]:
        try:
            pil = load("PIL")
        except ImportError as error:
            raise BundleError(f"the bundle has images, but pillow can't be imported: {error}") from error
        offsets = source.places(self.offsets, np.dtype(np.int64), self.rows + 1).tolist()
        pixels = source.bytes(self.pixels)
        attributes = source.column(self.attributes)
        if offsets[0] != 0 or offsets[-1] != len(pixels):
            raise BundleError("the offsets of images don't fit their pixels")
        return [
            pil.rebuild(described, pixels[start:stop])
            for described, start, stop in zip(attributes, offsets, offsets[1:], strict=False)
        ]
