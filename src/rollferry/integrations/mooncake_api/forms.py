"""Kinds of batches, as `put` takes them, a Ferry stores them, and `get` gives them."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import rollferry
from rollferry import Ferry
from rollferry.integrations.mooncake_api.batches import (
    Envelope,
    envelope_of,
    flat_of,
    is_array,
    is_rowed,
    joined,
    plain,
    sections_of_envelope,
    sections_of_flat,
    split,
)
from rollferry.integrations.mooncake_api.options import SECTIONS, FieldSchema, Kind, Name, Section, check_nulls
from rollferry.integrations.mooncake_api.refs import MooncakeDataProtoRef

__all__ = ["FORMS", "Form", "Incoming", "Wanted"]


class Incoming(NamedTuple):
    """A batch to be put or appended.

    Parameters
    ----------
    batch
        What goes to the Ferry.
    sections
        Section of each field.
    meta_info
        Fields of that section.
    schema
        What the Ferry has to know about fields.
    """

    batch: Any
    sections: dict[Name, Section]
    meta_info: Mapping[Any, Any]
    schema: dict[str | int, rollferry.FieldSchema] | None


class Wanted(NamedTuple):
    """What a get asks for.

    Parameters
    ----------
    names
        Fields, in their order; None for all.
    rows
        Which rows; None for all.
    into
        Buffers to fill, by field.
    """

    names: list[Name] | None
    rows: Any
    into: Mapping[Any, Any] | None


class Form(Protocol):
    """One kind of batch."""

    def incoming(self, data: Any, schemas: Mapping[str, FieldSchema]) -> Incoming:
        """Take what a caller hands over. Raises TypeError and ValueError where it is no such batch."""

    def read(self, ferry: Ferry, ref: MooncakeDataProtoRef, wanted: Wanted) -> Any:
        """Get it from a Ferry."""

    def flat(self, batch: Any) -> dict[Any, Any]:
        """Give what was read as one dict of fields."""

    def envelope(self, batch: Any, ref: MooncakeDataProtoRef) -> Envelope:
        """Give what was read by section, each a plain dict."""


class DictForm:
    """A flat dict, stored as it is; only its reference knows of sections."""

    def incoming(self, data: Any, schemas: Mapping[str, FieldSchema]) -> Incoming:
        """Take a flat dict, or make one; lists in meta_info are no rows of it."""
        fields = flat_of(data)
        sections = sections_of_flat(fields, schemas)
        meta_info = {name: fields[name] for name, section in sections.items() if section == "meta_info"}
        check_nulls({name: value for name, value in fields.items() if name not in meta_info}, schemas)
        whole = rollferry.FieldSchema("tree", row_aligned=False)
        schema = {name: whole for name, value in meta_info.items() if is_array(value) or is_rowed(value)}
        return Incoming(fields, sections, meta_info, schema or None)

    def read(self, ferry: Ferry, ref: MooncakeDataProtoRef, wanted: Wanted) -> Any:
        """Get the dict, or the fields of it that are wanted."""
        return ferry.get(ref.transfer_ref, type="dict", fields=wanted.names, rows=wanted.rows, into=wanted.into)

    def flat(self, batch: Any) -> dict[Any, Any]:
        """Give it as it is, keys in their order."""
        fields: dict[Any, Any] = batch
        return fields

    def envelope(self, batch: Any, ref: MooncakeDataProtoRef) -> Envelope:
        """Divide it as its reference says."""
        return split(batch, ref.sections)


class DataProtoForm:
    """A batch of three sections."""

    def incoming(self, data: Any, schemas: Mapping[str, FieldSchema]) -> Incoming:
        """Take an object of sections, or a dict of them, or divide a flat dict."""
        envelope = envelope_of(data)
        check_nulls({**dict(envelope["batch"].items()), **envelope["non_tensor_batch"]}, schemas)
        return Incoming(envelope, sections_of_envelope(envelope), envelope["meta_info"], None)

    def read(self, ferry: Ferry, ref: MooncakeDataProtoRef, wanted: Wanted) -> Any:
        """Get the sections, with the fields that are wanted."""
        fields: dict[str, list[Name]] | None = None
        if wanted.names is not None:
            fields = {one: [name for name in wanted.names if ref.sections[name] == one] for one in SECTIONS}
        return ferry.get(ref.transfer_ref, type="dataproto", fields=fields, rows=wanted.rows, into=wanted.into)

    def flat(self, batch: Any) -> dict[Any, Any]:
        """Put its sections together."""
        return joined(plain(batch))

    def envelope(self, batch: Any, ref: MooncakeDataProtoRef) -> Envelope:  # noqa: ARG002
        """Give its sections as dicts, also where the batch is a TensorDict: callers write to them."""
        return plain(batch)


FORMS: dict[Kind, Form] = {"dict": DictForm(), "dataproto": DataProtoForm()}
