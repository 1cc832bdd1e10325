"""Kinds of batches, as `put` takes them, a Ferry stores them, and `get` gives them."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import rollferry
from rollferry import Ferry
from rollferry.integrations.mooncake_api.batches import (
    Envelope,
    check_rows,
    envelope_of,
    flat_of,
    is_array,
    is_rowed,
    joined,
    places_in,
    places_in_flat,
    plain,
    split,
)
from rollferry.integrations.mooncake_api.options import SECTIONS, FieldSchema, Kind, Name, Place, check_nulls
from rollferry.integrations.mooncake_api.refs import MooncakeDataProtoRef

__all__ = ["FORMS", "Form", "Incoming", "Wanted"]


class Incoming(NamedTuple):
    """A batch to be put or appended.

    Parameters
    ----------
    batch
        What goes to the Ferry.
    places
        Its fields.
    meta_info
        Fields of that section.
    schema
        What the Ferry has to know about fields.
    """

    batch: Any
    places: list[Place]
    meta_info: Mapping[Any, Any]
    schema: dict[str | int, rollferry.FieldSchema] | None


class Wanted(NamedTuple):
    """What a get asks for.

    Parameters
    ----------
    places
        Fields, in their order; None for all.
    rows
        Which rows; None for all.
    into
        Buffers to fill, by field.
    """

    places: list[Place] | None
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
        places = places_in_flat(fields, schemas)
        meta_info = {name: fields[name] for name, section in places if section == "meta_info"}
        check_nulls({name: value for name, value in fields.items() if name not in meta_info}, schemas)
        listed = [name for name, value in meta_info.items() if is_array(value) or is_rowed(value)]
        schema = {name: rollferry.FieldSchema(row_aligned=False) for name in listed}
        return Incoming(fields, places, meta_info, schema or None)

    def read(self, ferry: Ferry, ref: MooncakeDataProtoRef, wanted: Wanted) -> Any:
        """Get the dict, or the fields of it that are wanted."""
        names = None if wanted.places is None else [name for name, _ in wanted.places]
        return ferry.get(ref.transfer_ref, type="dict", fields=names, rows=wanted.rows, into=wanted.into)

    def flat(self, batch: Any) -> dict[Any, Any]:
        """Give it as it is, keys in their order."""
        fields: dict[Any, Any] = batch
        return fields

    def envelope(self, batch: Any, ref: MooncakeDataProtoRef) -> Envelope:
        """Divide it as its reference says."""
        return split(batch, ref.places)


class DataProtoForm:
    """A batch of three sections."""

    def incoming(self, data: Any, schemas: Mapping[str, FieldSchema]) -> Incoming:
        """Take an object of sections, or a dict of them, or divide a flat dict."""
        envelope = envelope_of(data)
        fields = {**dict(envelope["batch"].items()), **envelope["non_tensor_batch"]}
        check_nulls(fields, schemas)
        check_rows(fields)
        return Incoming(envelope, places_in(envelope), envelope["meta_info"], None)

    def read(self, ferry: Ferry, ref: MooncakeDataProtoRef, wanted: Wanted) -> Any:
        """Get the sections, with the fields that are wanted."""
        fields: dict[str, list[Name]] | None = None
        if wanted.places is not None:
            fields = {own: [name for name, section in wanted.places if section == own] for own in SECTIONS}
        return ferry.get(ref.transfer_ref, type="dataproto", fields=fields, rows=wanted.rows, into=wanted.into)

    def flat(self, batch: Any) -> dict[Any, Any]:
        """Put its sections together."""
        return joined(plain(batch))

    def envelope(self, batch: Any, ref: MooncakeDataProtoRef) -> Envelope:  # noqa: ARG002
        """Give its sections as dicts, also where the batch is a TensorDict: callers write to them."""
        return plain(batch)


FORMS: dict[Kind, Form] = {"dict": DictForm(), "dataproto": DataProtoForm()}
