"""Objects of a bundle: their keys, and the header of the root.

``rollferry/KEY/root`` is header and manifest, with the payload between them where all fits one chunk. Otherwise the payload
is cut into ``rollferry/KEY/0``, ``rollferry/KEY/1`` and so on, which are put before the root. ``rollferry/KEY/note/TEXT`` is a
note beside it.
"""

import struct
from typing import NamedTuple

import xxhash

from rollferry.errors import BundleError

__all__ = ["HEADER_NBYTES", "Frame", "chunk_key", "key_of", "key_of_root", "note_key", "root_key"]

PREFIX = "rollferry/"
ROOT = "/root"
MAGIC = b"rollferry mc\0\1"  # the last byte is the version
HEADER = struct.Struct("<16sQQQ")
DIGEST = struct.Struct("<Q")  # xxh3-64 of what precedes it
HEADER_NBYTES = 64


class Frame(NamedTuple):
    """What a header says.

    Parameters
    ----------
    payload_nbytes, manifest_nbytes
        Lengths of both.
    chunk_nbytes
        Bytes of every chunk but the last; 0 where the payload is in the root.
    """

    payload_nbytes: int
    manifest_nbytes: int
    chunk_nbytes: int

    @property
    def root_nbytes(self) -> int:
        """Bytes of the root."""
        return HEADER_NBYTES + self.manifest_nbytes + (0 if self.chunk_nbytes else self.payload_nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all objects."""
        return HEADER_NBYTES + self.manifest_nbytes + self.payload_nbytes

    @property
    def chunk_sizes(self) -> list[int]:
        """Bytes of every chunk."""
        if not self.chunk_nbytes:
            return []
        starts = range(0, self.payload_nbytes, self.chunk_nbytes)
        return [min(self.chunk_nbytes, self.payload_nbytes - start) for start in starts]

    def dump(self) -> bytes:
        """Give the header."""
        header = HEADER.pack(MAGIC, *self)
        return (header + DIGEST.pack(xxhash.xxh3_64_intdigest(header))).ljust(HEADER_NBYTES, b"\0")

    @classmethod
    def load(cls, root: bytes, nbytes: int) -> "Frame":
        """Read the header of a root that has so many bytes. Raises BundleError where it makes no sense."""
        if nbytes < HEADER_NBYTES or len(root) < HEADER_NBYTES:
            raise BundleError(f"the stored object has {nbytes} bytes, too few for a header")
        magic, *lengths = HEADER.unpack_from(root)
        frame = cls(*lengths)
        if magic != MAGIC.ljust(16, b"\0"):
            raise BundleError("the stored object is no bundle, or one of another version")
        if DIGEST.unpack_from(root, HEADER.size)[0] != xxhash.xxh3_64_intdigest(root[: HEADER.size]):
            raise BundleError("the header is corrupt: its checksum does not match")
        if frame.root_nbytes != nbytes or (frame.chunk_nbytes and frame.payload_nbytes > 1 << 50):
            raise BundleError("the stored object has another length than its header says")
        if frame.chunk_nbytes and frame.payload_nbytes // frame.chunk_nbytes > 1 << 24:
            raise BundleError("the header says that there are too many chunks")
        return frame


def root_key(key: str) -> str:
    """Give the key of a bundle's root."""
    return f"{PREFIX}{key}{ROOT}"


def chunk_key(key: str, number: int) -> str:
    """Give the key of a bundle's chunk."""
    return f"{PREFIX}{key}/{number}"


def note_key(key: str, text: str) -> str:
    """Give the key of a note beside a bundle."""
    return f"{PREFIX}{key}/note/{text}"


def key_of_root(name: str) -> str | None:
    """Give the key of the bundle whose root has this name; None if it's no root."""
    return name[len(PREFIX) : -len(ROOT)] if name.startswith(PREFIX) and name.endswith(ROOT) else None


def key_of(name: str) -> str | None:
    """Give the key of the bundle that an object of this name is of; None if it's of none."""
    return name[len(PREFIX) :].partition("/")[0] if name.startswith(PREFIX) else None
