"""The manifest of a bundle, its bytes, and the checks before anything relies on it."""

import struct
from typing import Annotated, Literal

import msgspec
import xxhash

from rollferry.bundle.checksums import checksums_nbytes
from rollferry.errors import BundleError
from rollferry.layouts.base import Count
from rollferry.layouts.encoder import Form
from rollferry.layouts.kinds import AnySpec
from rollferry.memory.plan import ALIGNMENT, Member
from rollferry.refs import ID_PATTERN, NAMESPACE_PATTERN, TransferRef

__all__ = ["Base", "BatchType", "Envelope", "Field", "Lifetime", "Manifest", "Section", "dump", "load"]

BatchType = Literal["dict", "dataproto"]
Section = Literal["batch", "non_tensor_batch", "meta_info"]
Hexadecimal = Annotated[str, msgspec.Meta(pattern=rf"\A{ID_PATTERN.pattern}\Z")]
Namespace = Annotated[str, msgspec.Meta(pattern=rf"\A{NAMESPACE_PATTERN.pattern}\Z")]

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
    section
        Section of a ``dataproto`` that it is an entry of.
    row_aligned
        False where it does not hold one value per sample, whatever its form.
    """

    key: str | int
    form: Form
    column: int
    section: Section | None = None
    row_aligned: bool = True


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a ``dataproto`` was, besides its entries.

    Parameters
    ----------
    batch
        What its section ``batch`` was; ``none`` where it was None.
    batch_size, names, device
        Those of a TensorDict; names are None where no dimension has one.
    absent
        Which of the other sections were None.
    """

    batch: Literal["dict", "tensordict", "none"]
    batch_size: list[Count] | None = None
    names: list[str | None] | None = None
    device: Literal["cpu"] | None = None
    absent: list[Section] = []


class Base(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The next older stage of a bundle: an earlier bundle, whose fields are also those of this one.

    Parameters
    ----------
    namespace, id, digest, nbytes, rows
        As in the reference to it.
    """

    namespace: Namespace
    id: Hexadecimal
    digest: Hexadecimal
    nbytes: Count
    rows: Count | None = None

    @property
    def key(self) -> str:
        """Name of that bundle within its engine."""
        return f"{self.namespace}.{self.id}"

    @classmethod
    def of(cls, ref: TransferRef) -> "Base":
        """Name the bundle of a reference."""
        return cls(namespace=ref.namespace, id=ref.id, digest=ref.digest, nbytes=ref.nbytes, rows=ref.rows)


class Lifetime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How long a bundle is to live, and who put it when.

    Parameters
    ----------
    created
        Time of day, in seconds since 1970.
    boot, uptime
        Which start of which machine it was, and the seconds since then.
    owner
        The producer: process id, start time in ticks, and number of its namespace of processes, with colons between.
    ttl
        Seconds to live; None until it is removed.
    readers
        How many readers it is for; None for any number, none of which ends it.
    """

    created: float
    boot: str
    uptime: float
    owner: str
    ttl: float | None = None
    readers: int | None = None


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
        Rows of the batch, where its row-aligned fields agree; those of older stages count.
    keys
        Column with the keys of the batch, where one is neither valid text nor an int of 64 bits.
    checksums
        xxh3-64 of each block of each member, little-endian, one after the other; None where they were not asked for.
    envelope
        Of a ``dataproto``, also that of older stages.
    base
        The next older stage.
    lifetime
        How long it is to live.
    """

    id: str
    type: BatchType
    fields: list[Field]
    columns: list[AnySpec]
    members: list[Member]
    payload_nbytes: Count
    rows: Count | None = None
    keys: int | None = None
    checksums: bytes | None = None
    envelope: Envelope | None = None
    base: Base | None = None
    lifetime: Lifetime | None = None


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
    if manifest.checksums is not None and len(manifest.checksums) != checksums_nbytes(manifest.members):
        raise BundleError("the number of checksums is not that of the blocks")
    check_columns(manifest)
    check_sections(manifest)


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


def check_sections(manifest: Manifest) -> None:
    """Raise BundleError unless a ``dataproto``, and nothing else, has an envelope and sections."""
    envelope = manifest.envelope
    sectioned = manifest.type == "dataproto"
    if (envelope is not None) != sectioned or any(
        (field.section is not None) != sectioned for field in manifest.fields
    ):
        raise BundleError(f"the sections of the fields don't fit a {manifest.type}")
    if envelope is None:
        return
    size, names = envelope.batch_size, envelope.names
    if (size is not None) != (envelope.batch == "tensordict") or (names is not None and len(names) != len(size or ())):
        raise BundleError("the batch size does not fit what the batch was")
    empty = {*envelope.absent, *(("batch",) if envelope.batch == "none" else ())}
    if any(field.section in empty for field in manifest.fields):
        raise BundleError("a section that was None has fields")


def check_numbers(numbers: list[int], count: int, what: str) -> None:
    """Raise BundleError unless all numbers are of something that there is, and differ."""
    free = set(range(count))
    if len(set(numbers)) == len(numbers) and free.issuperset(numbers):
        return
    for number in numbers:
        if number not in free:
            raise BundleError(f"{what} {number} does not exist, or is used twice")
        free.remove(number)
