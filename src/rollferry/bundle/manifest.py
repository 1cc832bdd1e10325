"""The manifest of a bundle, its bytes, and the checks before anything relies on it."""

import struct
from typing import Literal

import msgspec
import xxhash

from rollferry.errors import BundleError
from rollferry.layouts.base import Count
from rollferry.layouts.encoder import Form
from rollferry.layouts.kinds import AnySpec
from rollferry.memory.plan import ALIGNMENT, Member

__all__ = ["Field", "Manifest", "dump", "load"]

MAGIC = b"RFMF"
VERSION = 1
PREFIX = struct.Struct("<4sHH16s")  # magic, version, reserved, xxh3-128 of what follows


class Field(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One entry of a batch.

    Parameters
    ----------
    key
        Its key; where the manifest has a column of keys, only text to show.
    form
        ``list`` or ``tuple`` of the column's values, its only ``value``, or all of it as one typed ``array``.
    column
        Number of its column.
    """

    key: str | int
    form: Form
    column: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Everything needed to rebuild a batch from its payload.

    Parameters
    ----------
    id
        Id of the bundle.
    type
        What was put.
    fields
        Entries of the batch, in its order.
    columns
        Specs, children before parents.
    members
        Places in the payload, rising.
    payload_nbytes
        Bytes of the payload.
    rows
        Rows of the batch, where its row-aligned fields agree.
    keys
        Column with the keys of the batch, where one is neither valid text nor an int of 64 bits.
    checksums
        xxh3-64 of each member, little-endian, one after the other; None where they were not asked for.
    """

    id: str
    type: Literal["dict"]
    fields: list[Field]
    columns: list[AnySpec]
    members: list[Member]
    payload_nbytes: Count
    rows: Count | None = None
    keys: int | None = None
    checksums: bytes | None = None


ENCODER = msgspec.msgpack.Encoder()
DECODER = msgspec.msgpack.Decoder(Manifest)


def dump(manifest: Manifest) -> tuple[bytes, str]:
    """Give the bytes of a manifest, and its digest."""
    body = ENCODER.encode(manifest)
    digest = xxhash.xxh3_128_digest(body)
    return PREFIX.pack(MAGIC, VERSION, 0, digest) + body, digest.hex()


def load(data: bytes | memoryview, payload_nbytes: int) -> tuple[Manifest, str]:
    """Read and check the bytes of a manifest; give its digest too.

    Raises BundleError for anything that `dump` would not have made for a payload of that size.
    """
    if len(data) < PREFIX.size:
        raise BundleError("the manifest is truncated")
    magic, version, reserved, digest = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise BundleError("this is no manifest of rollferry's")
    if version != VERSION or reserved:
        raise BundleError(f"the manifest has version {version}; this rollferry reads version {VERSION}")
    body = memoryview(data)[PREFIX.size :]
    if xxhash.xxh3_128_digest(body) != digest:
        raise BundleError("the manifest is corrupt: its checksum does not match")
    try:
        manifest = DECODER.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BundleError(f"the manifest is not valid: {error}") from error
    check(manifest, payload_nbytes)
    return manifest, digest.hex()


def check(manifest: Manifest, payload_nbytes: int) -> None:
    """Raise BundleError unless all places lie inside the payload and all numbers name something, once."""
    if manifest.payload_nbytes != payload_nbytes:
        raise BundleError(f"the payload has {payload_nbytes} bytes, the manifest says {manifest.payload_nbytes}")
    end = 0
    for number, member in enumerate(manifest.members):
        aligned = member.offset % ALIGNMENT == 0
        if not (
            aligned and end <= member.offset <= payload_nbytes and 0 <= member.nbytes <= payload_nbytes - member.offset
        ):
            raise BundleError(
                f"member {number} ({member.offset}, {member.nbytes}) does not lie in the payload in order"
            )
        end = member.offset + member.nbytes
    if manifest.checksums is not None and len(manifest.checksums) != 8 * len(manifest.members):
        raise BundleError("the number of checksums is not that of the members")
    check_columns(manifest)


def check_columns(manifest: Manifest) -> None:
    """Raise BundleError unless columns form trees of their own, children first, and share no member."""
    columns = [field.column for field in manifest.fields]
    if manifest.keys is not None:
        columns.append(manifest.keys)
    members: list[int] = []
    for number, spec in enumerate(manifest.columns):
        if spec.version != spec.current_version:
            raise BundleError(
                f"column {number} ({type(spec).__name__}) has version {spec.version}, which is not known here"
            )
        children = tuple(spec.children())
        for other in (*children, *spec.references()):
            if not 0 <= other < number:
                raise BundleError(f"column {number} refers to a column that does not come before it")
        columns += children
        members += spec.members()
    check_numbers(columns, len(manifest.columns), "column")
    check_numbers(members, len(manifest.members), "member")


def check_numbers(numbers: list[int], count: int, what: str) -> None:
    """Raise BundleError unless all numbers are of something that there is, and differ."""
    free = set(range(count))
    if len(set(numbers)) == len(numbers) and free.issuperset(numbers):
        return
    for number in numbers:
        if number not in free:
            raise BundleError(f"{what} {number} does not exist, or is used twice")
        free.remove(number)
