"""What a caller says about fields and about the transfer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rollferry.errors import SchemaError
from rollferry.integrations.codecs import CODECS

__all__ = [
    "SECTIONS",
    "BundleTransferPolicy",
    "FieldSchema",
    "Kind",
    "Name",
    "Place",
    "Section",
    "check_nulls",
    "check_positive",
    "check_schemas",
    "has_objects",
]

Kind = Literal["dict", "dataproto"]
Name = str | int
Section = Literal["batch", "non_tensor_batch", "meta_info"]
Place = tuple[Name, Section]  # a field; meta_info may have one that is called as one of another section
SECTIONS: tuple[Section, ...] = get_args(Section)
PutMode = Literal["auto", "batch", "parallel"]
CopyMode = Literal["auto", "zero_copy", "copy"]


@dataclass(frozen=True)
class FieldSchema:
    """Instructions for one field.

    Parameters
    ----------
    codec
        One of `CODECS`. It is checked to be one; how a field is stored follows from its values.
    nullable
        Whether the field or a row of it may be None; not looked at in the section ``meta_info``.
    metadata
        ``section``: the section that a field of a flat dict belongs to. Anything else has no effect.

    Raises
    ------
    SchemaError
        A ValueError: codec or section is unknown.
    """

    codec: str
    nullable: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise SchemaError(f"no codec {self.codec!r}; there are {', '.join(CODECS)}")
        if self.metadata.get("section", "batch") not in SECTIONS:
            raise SchemaError(f"no section {self.metadata['section']!r}; there are {', '.join(SECTIONS)}")


@dataclass(frozen=True)
class BundleTransferPolicy:
    """How Mooncake would send. Checked, and without effect: engines pack and send by themselves.

    Parameters
    ----------
    max_inflight_put
        At least 1.
    put_mode
        ``auto``, ``batch`` or ``parallel``.
    copy_mode
        ``auto``, ``zero_copy`` or ``copy``.
    """

    max_inflight_put: int = 1
    put_mode: PutMode = "auto"
    copy_mode: CopyMode = "auto"

    def __post_init__(self) -> None:
        if self.max_inflight_put < 1:
            raise ValueError(f"max_inflight_put must be at least 1, not {self.max_inflight_put}")
        if self.put_mode not in get_args(PutMode):
            raise ValueError(f"put_mode must be one of {', '.join(get_args(PutMode))}, not {self.put_mode!r}")
        if self.copy_mode not in get_args(CopyMode):
            raise ValueError(f"copy_mode must be one of {', '.join(get_args(CopyMode))}, not {self.copy_mode!r}")


def check_positive(chunk_bytes: int | None) -> None:
    """Raise ValueError for a chunk size that makes no sense."""
    if chunk_bytes is not None and chunk_bytes < 1:
        raise ValueError(f"chunk_bytes must be positive, not {chunk_bytes}")


def check_schemas(schemas: Mapping[str, FieldSchema] | None) -> Mapping[str, FieldSchema]:
    """Give the schemas, none for None. Raises TypeError where one is of another class, such as Mooncake's own."""
    for name, schema in (schemas or {}).items():
        if not isinstance(schema, FieldSchema):
            raise TypeError(
                f"the schema of field {name!r} must be a rollferry.integrations.mooncake_api.FieldSchema, not "
                f"{type(schema).__module__}.{type(schema).__name__}"
            )
    return schemas or {}


def has_objects(value: Any) -> bool:
    """Whether a value is an array of Python objects."""
    return getattr(getattr(value, "dtype", None), "kind", None) == "O"


def check_nulls(fields: Mapping[Any, Any], schemas: Mapping[str, FieldSchema]) -> None:
    """Raise SchemaError, a ValueError, for a None where the schema of its field allows none."""
    for name, schema in schemas.items():
        if schema.nullable or name not in fields:
            continue
        value = fields[name]
        rowed = isinstance(value, list | tuple) or has_objects(value)
        if value is None or (rowed and type(None) in set(map(type, value))):
            raise SchemaError("None is not allowed here (nullable=False)", field=name)
