"""The format of a segment: a file with a header, the payload of one bundle, and its manifest."""

import re
import struct

from rollferry.errors import BundleError

__all__ = [
    "HEADER_NBYTES",
    "KEY",
    "READER_BYTE",
    "WRITER_BYTE",
    "FileId",
    "capacity_for",
    "key_in",
    "pack_header",
    "unpack_header",
]

HEADER_NBYTES = 128
HEADER = struct.Struct("<8sHHIQQ96s")  # magic, version, reserved, reserved, payload and manifest bytes, key
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}\.[0-9a-f]{32}")
MAGIC = b"RFSEG\r\n\x00"
VERSION = 1
PAGE = 4096
FileId = tuple[int, int]  # device and inode

# Locks are of the open file description, so the kernel drops them when their process dies.
WRITER_BYTE = 0  # exclusive: the segment's writer lives
READER_BYTE = 1  # shared: a lease on what was read; exclusive: nobody reads, the segment may be overwritten


def capacity_for(nbytes: int) -> int:
    """Give the size of the file for that many bytes: a little more, so that batches of similar sizes can reuse it."""
    step = max(PAGE, 1 << max(0, nbytes.bit_length() - 5))
    return (nbytes + step - 1) // step * step


def pack_header(key: str, payload_nbytes: int, manifest_nbytes: int) -> bytes:
    """Give the header of a bundle's segment."""
    return HEADER.pack(MAGIC, VERSION, 0, 0, payload_nbytes, manifest_nbytes, key.encode())


def key_in(header: bytes) -> str:
    """Give the key of the bundle that a header is of; empty where it is none."""
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        return ""
    key = HEADER.unpack_from(header)[-1].rstrip(b"\0").decode("ascii", "replace")
    return key if KEY.fullmatch(key) else ""


def unpack_header(header: bytes, key: str, file_nbytes: int) -> tuple[int, int] | None:
    """Give payload and manifest bytes of the bundle `key`; None where the segment holds another one.

    Raises BundleError where this is no segment, or not a whole one.
    """
    if len(header) < HEADER.size:
        raise BundleError(f"the segment of {key} is truncated")
    magic, version, reserved, padding, payload_nbytes, manifest_nbytes, stored = HEADER.unpack_from(header)
    if magic != MAGIC:
        raise BundleError(f"the file of {key} is no segment of rollferry's")
    if version != VERSION or reserved or padding:
        raise BundleError(f"the segment of {key} has version {version}; this rollferry reads version {VERSION}")
    if stored.rstrip(b"\0") != key.encode():
        return None
    if HEADER_NBYTES + payload_nbytes + manifest_nbytes > file_nbytes:
        raise BundleError(f"the segment of {key} is truncated: {file_nbytes} bytes hold less than its header says")
    return payload_nbytes, manifest_nbytes
