"""The forms of a batch: a flat dict, an object of three sections, and that as a dict."""

from collections.abc import Iterable, Mapping
from typing import Any

from rollferry.errors import UnsupportedValueError
from rollferry.integrations.mooncake_api.options import SECTIONS, FieldSchema, Name, Place, Section, has_objects

__all__ = [
    "Envelope",
    "build",
    "check_rows",
    "envelope_of",
    "flat_of",
    "is_array",
    "is_rowed",
    "joined",
    "places_in",
    "places_in_flat",
    "plain",
    "split",
]

Envelope = dict[str, Any]


def envelope_of(data: Any) -> Envelope:
    """Give the sections of what was handed over, by name.

    Parameters
    ----------
    data
        An object with them as attributes, a mapping with nothing but them, or a flat mapping of fields.

    Raises
    ------
    TypeError
        It is nothing of that.
    ValueError
        ``batch`` and ``non_tensor_batch`` have a field in common.
    """
    found: Envelope
    if isinstance(data, Mapping):
        found = dict(data) if set(data) <= set(SECTIONS) else split(data, places_in_flat(data, {}))
    elif any(hasattr(data, section) for section in SECTIONS):
        found = {section: getattr(data, section, None) for section in SECTIONS}
    else:
        raise TypeError(
            f"a DataProto is needed (batch, non_tensor_batch, meta_info), or a dict, not {type(data).__name__}"
        )
    filled = ((section, {} if found.get(section) is None else found[section]) for section in SECTIONS)
    envelope: Envelope = {section: dict(fields) if isinstance(fields, dict) else fields for section, fields in filled}
    for section, fields in envelope.items():
        if not hasattr(fields, "keys"):
            raise TypeError(f"the section {section} must be a mapping of fields, not {type(fields).__name__}")
    common = [name for name in envelope["batch"].keys() if name in envelope["non_tensor_batch"]]  # noqa: SIM118
    if common:
        raise ValueError(f"batch and non_tensor_batch both have the fields {common}")
    return envelope


def flat_of(data: Any) -> dict[Any, Any]:
    """Give the fields of a flat dict, or of sections: first those of ``meta_info``, then ``batch``, ``non_tensor_batch``."""
    if type(data) is dict and not (data and set(data) <= set(SECTIONS)):
        return data
    return joined(plain(envelope_of(data)))


def places_in(envelope: Envelope) -> list[Place]:
    """Give each field and its section."""
    return [(check_name(name), section) for section in SECTIONS for name in envelope[section].keys()]  # noqa: SIM118


def places_in_flat(fields: Mapping[Any, Any], schemas: Mapping[str, FieldSchema]) -> list[Place]:
    """Give each field of a flat dict and the section that it belongs to.

    With schemas for some of the fields, those of the others that have as many rows belong beside them, lists only where no
    schema names a section; all else belongs to ``meta_info``. Without, arrays and tensors make up ``batch``,
    lists, tuples and object arrays ``non_tensor_batch``, and everything else ``meta_info``; so do lists that have another
    number of rows than the arrays.
    """
    listed = any(name in schemas for name in fields)
    lengths = {len(value) for value in fields.values() if is_array(value)}
    named = any("section" in schema.metadata for schema in schemas.values())
    counts = {len(value) for name, value in fields.items() if name in schemas and (is_array(value) or is_rowed(value))}
    places: list[Place] = []
    for name, value in fields.items():
        own: Section = "batch" if is_array(value) else "non_tensor_batch"
        if listed:
            beside = is_array(value) or (is_rowed(value) and not named)
            aligned = name in schemas or (beside and counts == {len(value)})
            own = schemas[name].metadata.get("section", own) if name in schemas else own
        else:
            aligned = is_array(value) or (is_rowed(value) and (len(lengths) != 1 or len(value) in lengths))
        places.append((check_name(name), own if aligned else "meta_info"))
    return places


def split(fields: Mapping[Any, Any], places: Iterable[Place]) -> Envelope:
    """Give the sections of a flat dict."""
    sections = dict(places)
    envelope: Envelope = {section: {} for section in SECTIONS}
    for name, value in fields.items():
        envelope[sections[name]][name] = value
    return envelope


def plain(batch: Mapping[str, Any]) -> Envelope:
    """Give each section as a dict, also one that is a TensorDict, missing or None."""
    found = ((section, batch.get(section)) for section in SECTIONS)
    return {section: {} if fields is None else dict(fields.items()) for section, fields in found}


def joined(envelope: Envelope) -> dict[Any, Any]:
    """Give the fields of all sections as one dict: those of ``meta_info``, then ``batch``, then ``non_tensor_batch``.

    Raises ValueError where ``meta_info`` has a field that another section has, too.
    """
    twice = [
        name for name in envelope["meta_info"] if name in envelope["batch"] or name in envelope["non_tensor_batch"]
    ]
    if twice:
        raise ValueError(
            f"one dict can't have the fields {twice} of meta_info and of another section; use type='dataproto'"
        )
    return {**envelope["meta_info"], **envelope["batch"], **envelope["non_tensor_batch"]}


def build(data_cls: Any, envelope: Envelope) -> Any:
    """Make an object of sections: by `from_dict` where the class has it, else by keywords. Raises TypeError if neither goes."""
    if data_cls is None:
        return envelope
    if hasattr(data_cls, "from_dict"):
        return data_cls.from_dict(envelope["batch"], envelope["non_tensor_batch"], meta_info=envelope["meta_info"])
    try:
        return data_cls(**envelope)
    except TypeError as error:
        name = getattr(data_cls, "__name__", data_cls)
        raise TypeError(f"{name} can't be made of batch, non_tensor_batch and meta_info: {error}") from error


def check_rows(fields: Mapping[Any, Any]) -> None:
    """Raise ValueError where fields have different numbers of rows."""
    counts = {name: len(value) for name, value in fields.items() if is_array(value) or is_rowed(value)}
    if len(set(counts.values())) > 1:
        raise ValueError(f"the fields of a DataProto have one number of rows, not {counts}")


def is_array(value: Any) -> bool:
    """Whether a value is an array or tensor of numbers with a first axis."""
    return getattr(value, "ndim", 0) > 0 and not has_objects(value)


def is_rowed(value: Any) -> bool:
    """Whether a value that is no such array has rows all the same."""
    return isinstance(value, list | tuple) or (has_objects(value) and value.ndim > 0)


def check_name(name: Any) -> Name:
    """Give the name of a field. Raises UnsupportedValueError, a TypeError, for one that references can't carry."""
    if isinstance(name, str | int):
        return name
    raise UnsupportedValueError(
        f"names of fields are str or int here, not {type(name).__name__}", name, f"the field {name!r:.60}"
    )
