"""References: a TransferRef whose metadata say what Mooncake's references say."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from rollferry.errors import RefError
from rollferry.integrations.mooncake_api.errors import NotOfferedError
from rollferry.integrations.mooncake_api.options import SECTIONS, Kind, Name, Place, Section
from rollferry.refs import TransferRef, as_ref

__all__ = [
    "MooncakeDataProtoRef",
    "RefLike",
    "RemoteBundleRef",
    "StructuredFieldLocation",
    "as_dataproto_ref",
    "export_ref",
    "import_ref",
    "is_dataproto_ref_handle",
]

LABEL = "mooncake"  # under which the metadata of a TransferRef have the Description
SMALL = 1024  # characters of JSON up to which meta_info travels in the reference


class RemoteBundleRef(NamedTuple):
    """The bundle of one stage.

    Parameters
    ----------
    manifest_key
        Its key within the engine.
    manifest
        Always None: manifests stay in the engine.
    """

    manifest_key: str
    manifest: None = None


class StructuredFieldLocation(NamedTuple):
    """Where a field is.

    Parameters
    ----------
    stage
        Stage that brought it.
    member
        Its section and name, with a dot between.
    section
        ``batch`` or ``non_tensor_batch``.
    """

    stage: str
    member: str
    section: Section


class Stage(msgspec.Struct, frozen=True):
    """What one put or append brought: fields, each with the number of its section in `SECTIONS`."""

    name: str
    key: str
    fields: list[tuple[Name, Literal[0, 1, 2]]]


class Description(msgspec.Struct, frozen=True):
    """What travels with a TransferRef; see the attributes of MooncakeDataProtoRef."""

    kind: Kind
    namespace: str
    partition: str
    stages: list[Stage]
    meta_info: dict[str, Any] | None


class MooncakeDataProtoRef:
    """Reference to one bundle, with the stages appended to it. Immutable, hashable, picklable.

    Parameters
    ----------
    transfer_ref
        rollferry's own reference.

    Attributes
    ----------
    transfer_ref
        The same; hand it to `Ferry.get` and the like.
    kind
        Kind of batch: ``dict`` or ``dataproto``.
    places
        Name and section of each field, in the order in which they were put.
    batch_size
        Number of rows; None where the row-aligned fields have different ones, or there are no such fields.
    namespace, partition
        As they were put.
    stage_refs
        RemoteBundleRef of each stage.
    field_index
        StructuredFieldLocation of each field of ``batch`` and ``non_tensor_batch``.
    global_indexes, encoded_non_tensor
        None, and empty: nothing sets them.

    Raises
    ------
    RefError
        The reference was not made by `MooncakeBundleTransfer`.
    """

    def __init__(self, transfer_ref: TransferRef) -> None:
        label = (transfer_ref.metadata or {}).get(LABEL)
        if label is None:
            raise RefError("bad reference: it was not put by a MooncakeBundleTransfer; Ferry.get reads it")
        try:
            described = msgspec.convert(label, Description)
        except msgspec.ValidationError as error:
            raise RefError(f"bad reference: its description is damaged ({error})") from None
        self.transfer_ref = transfer_ref
        self.kind = described.kind
        self.namespace = described.namespace
        self.partition = described.partition
        self.batch_size = transfer_ref.rows
        self.global_indexes: list[int] | None = None
        self.encoded_non_tensor: dict[str, Any] = {}
        self.stage_refs = {stage.name: RemoteBundleRef(stage.key) for stage in described.stages}
        stages = {(name, SECTIONS[number]): stage.name for stage in described.stages for name, number in stage.fields}
        self.places: list[Place] = list(stages)
        self.field_index = {
            name: StructuredFieldLocation(stage, f"{section}.{name}", section)
            for (name, section), stage in stages.items()
            if section != "meta_info"
        }
        self._described = described

    @classmethod
    def first(
        cls,
        transfer_ref: TransferRef,
        kind: Kind,
        namespace: str,
        partition: str,
    ) -> "MooncakeDataProtoRef":
        """Make the reference of a bundle, still without its stage."""
        return cls(labelled(transfer_ref, Description(kind, namespace, partition, [], {})))

    def with_stage(
        self, transfer_ref: TransferRef, stage: str, places: Iterable[Place], meta_info: Mapping[Any, Any]
    ) -> "MooncakeDataProtoRef":
        """Make the reference of the same bundle with a further stage."""
        fields = [(name, SECTIONS.index(section)) for name, section in places]
        stages = [*self._described.stages, Stage(stage, transfer_ref.key, fields)]  # type: ignore[arg-type]
        earlier = self._described.meta_info
        described = msgspec.structs.replace(
            self._described, stages=stages, meta_info=None if earlier is None else small({**earlier, **meta_info})
        )
        return MooncakeDataProtoRef(labelled(transfer_ref, described))

    @property
    def meta_info(self) -> dict[str, Any]:
        """The fields of the section ``meta_info``, where they are small and JSON carries them unchanged.

        Raises
        ------
        NotOfferedError
            They don't travel in the reference; a get has them.
        """
        if self._described.meta_info is None:
            raise NotOfferedError(
                "this meta_info is too large for a reference, or not made for JSON: get(ref, batch_fields=[])['meta_info'] "
                "of a MooncakeBundleTransfer has it"
            )
        return dict(self._described.meta_info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MooncakeDataProtoRef) and self.transfer_ref == other.transfer_ref

    def __hash__(self) -> int:
        return hash(self.transfer_ref)

    def __reduce__(self) -> tuple[type["MooncakeDataProtoRef"], tuple[TransferRef]]:
        return type(self), (self.transfer_ref,)

    def __repr__(self) -> str:
        return f"<MooncakeDataProtoRef {self.transfer_ref.engine}://, {self.kind} {self.transfer_ref.key}, {self.batch_size} rows>"


RefLike = MooncakeDataProtoRef | TransferRef | Mapping[str, Any]


def export_ref(ref: MooncakeDataProtoRef) -> dict[str, Any]:
    """Give a handle: a dict that JSON carries, and every call takes in place of the reference."""
    if not isinstance(ref, MooncakeDataProtoRef):
        raise TypeError(f"a MooncakeDataProtoRef is needed, not {type(ref).__name__}")
    return ref.transfer_ref.to_dict()


def import_ref(handle: RefLike) -> MooncakeDataProtoRef:
    """Give the reference of a handle. Raises RefError, a ValueError, for anything else."""
    if isinstance(handle, MooncakeDataProtoRef):
        return handle
    return MooncakeDataProtoRef(as_ref(handle))


def is_dataproto_ref_handle(value: object) -> bool:
    """Whether something is a handle made by `export_ref`; its contents are not checked."""
    if not isinstance(value, Mapping) or value.get("type") != "rollferry_ref":
        return False
    metadata = value.get("metadata")
    return isinstance(metadata, Mapping) and LABEL in metadata


def as_dataproto_ref(ref: object) -> MooncakeDataProtoRef:
    """Accept a reference or handle. Raises TypeError for another class, RefError for what is no handle of this module."""
    if isinstance(ref, MooncakeDataProtoRef | TransferRef | Mapping):
        return import_ref(ref)
    raise TypeError(f"a MooncakeDataProtoRef or a handle is needed, not {type(ref).__name__}")


def labelled(transfer_ref: TransferRef, described: Description) -> TransferRef:
    """Give the same reference with a description."""
    metadata = {**(transfer_ref.metadata or {}), LABEL: json.loads(msgspec.json.encode(described))}
    return msgspec.structs.replace(transfer_ref, metadata=metadata)


def small(meta_info: Mapping[Any, Any]) -> dict[str, Any] | None:
    """Give what a reference can carry unchanged; None where that isn't all of it."""
    try:
        text = json.dumps(meta_info, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return json.loads(text) if len(text) <= SMALL and is_kept(meta_info) else None


def is_kept(value: Any) -> bool:
    """Whether JSON gives a value back as it is, in the same types."""
    if isinstance(value, dict):
        return all(type(key) is str and is_kept(item) for key, item in value.items())
    if isinstance(value, list):
        return type(value) is list and all(map(is_kept, value))
    return value is None or type(value) in (str, int, float, bool)
