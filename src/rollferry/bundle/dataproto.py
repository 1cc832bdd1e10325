"""DataProto-like batches, verl's: their three sections taken apart into entries, and put together again."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from rollferry.bundle.locate import top_level
from rollferry.bundle.manifest import Envelope, Section
from rollferry.errors import SchemaError, UnsupportedValueError
from rollferry.layouts.contents import step
from rollferry.layouts.indexed import is_tensor
from rollferry.layouts.optional import load, load_if_imported

__all__ = ["SECTIONS", "Entry", "join", "merged", "place", "split"]

Entry = tuple[Section | None, Any, Any]  # section, key, value; a dict's entries have no section

SECTIONS: tuple[Section, ...] = get_args(Section)


def split(value: object) -> tuple[Envelope, list[Entry]]:
    """Take a batch apart into what it was and its entries, in the order of SECTIONS.

    Parameters
    ----------
    value
        An object with the attributes ``batch`` (TensorDict, dict or None), ``non_tensor_batch`` and ``meta_info`` (dict or
        None), or a dict with some of these as its keys. A section that a dict lacks is empty.

    Raises
    ------
    UnsupportedValueError
        It is something else.
    """
    batch, *others = sections_of(value)
    envelope: dict[str, Any] = {"batch": "dict"}
    if batch is None:
        envelope = {"batch": "none"}
    elif is_tensordict(batch):
        envelope = describe(batch)
    elif type(batch) is not dict:
        name = type(batch).__name__
        raise UnsupportedValueError(
            f"a TensorDict, a dict or None is needed, not {name}; make it one, for example by .to_tensordict()",
            path="batch",
        )
    for section, found in zip(SECTIONS[1:], others, strict=True):
        if found is not None and type(found) is not dict:
            raise UnsupportedValueError(f"a dict or None is needed, not {type(found).__name__}", path=section)
    entries: list[Entry] = [
        (section, key, item)
        for section, found in zip(SECTIONS, (batch, *others), strict=True)
        if found is not None
        for key, item in found.items()
    ]
    absent = [section for section, found in zip(SECTIONS[1:], others, strict=True) if found is None]
    return Envelope(**envelope, absent=absent), entries


def sections_of(value: object) -> list[Any]:
    """Give batch, non_tensor_batch and meta_info."""
    if type(value) is dict:
        if value and value.keys() <= set(SECTIONS):
            return [value.get("batch"), value.get("non_tensor_batch", {}), value.get("meta_info", {})]
        found = f"a dict with the keys {list(value)!r:.120}"
    else:
        if all(hasattr(value, section) for section in SECTIONS):
            return [getattr(value, section) for section in SECTIONS]
        found = type(value).__name__
    raise UnsupportedValueError(
        'type="dataproto" needs an object with the attributes batch, non_tensor_batch and meta_info, or a dict with some of '
        f"these as its keys, not {found}"
    )


def is_tensordict(value: object) -> bool:
    """Whether a value is a TensorDict, and of no subclass."""
    module = load_if_imported("tensordict")
    return module is not None and type(value) is module.TensorDict


def describe(batch: Any) -> dict[str, Any]:
    """Say what a TensorDict was, besides its entries."""
    if batch.device is not None and batch.device.type != "cpu":
        raise UnsupportedValueError(
            f"a TensorDict on {batch.device}; move it to the CPU first (.cpu())", batch, path="batch"
        )
    names = list(batch.names) if any(name is not None for name in batch.names) else None
    device: Literal["cpu"] | None = None if batch.device is None else "cpu"
    return {"batch": "tensordict", "batch_size": list(batch.batch_size), "names": names, "device": device}


def join(
    envelope: Envelope,
    sections: Mapping[str, dict[Any, Any]],
    rows: int | None = None,
) -> dict[str, Any]:
    """Put entries together again, as a dict of the three sections.

    Parameters
    ----------
    envelope
        As `split` gave it.
    sections
        Entries by section. One that is missing was not asked for: ``batch`` then is None, the others are empty.
    rows
        How many rows were taken of the batch; None where it is whole.
    """
    batch: Any = sections.get("batch")
    if batch is not None and envelope.batch == "tensordict":
        batch_size = list(envelope.batch_size or ())
        if rows is not None and batch_size:
            batch_size[0] = rows
        batch = load("tensordict").TensorDict(
            batch, batch_size=batch_size, names=envelope.names, device=envelope.device
        )
    elif envelope.batch == "none":
        batch = None
    parts = {"batch": batch}
    for section in SECTIONS[1:]:
        parts[section] = None if section in envelope.absent and section in sections else sections.get(section, {})
    return parts


def merged(older: Envelope, added: Envelope, entries: Sequence[Entry]) -> Envelope:
    """Give the envelope of a bundle to which entries are added: what its sections were before, where they were anything.

    Raises
    ------
    SchemaError
        The entries can't be of a TensorDict of that batch size.
    """
    batch = added if older.batch == "none" else older
    if older.batch == "tensordict":
        check_batch_size(older.batch_size or [], added, entries)
    filled = {section for section, _, _ in entries}
    return Envelope(
        batch=batch.batch,
        batch_size=batch.batch_size,
        names=batch.names,
        device=batch.device,
        absent=[section for section in older.absent if section not in filled],
    )


def check_batch_size(size: list[int], added: Envelope, entries: Sequence[Entry]) -> None:
    """Raise SchemaError unless entries fit a TensorDict of a batch size."""
    if added.batch == "tensordict" and added.batch_size != size:
        raise SchemaError(
            f"the TensorDict of the bundle has the batch size {size}, the appended one {added.batch_size}"
        )
    if added.batch != "dict":
        return
    wrong = [
        place(section, key)
        for section, key, item in entries
        if section == "batch" and batch_shape(item, len(size)) != size
    ]
    if wrong:
        raise SchemaError(
            f"the batch of the bundle is a TensorDict of size {size}; no tensors of it: {', '.join(wrong)}"
        )


def batch_shape(value: Any, ndim: int) -> list[int] | None:
    """Give the first dimensions of a tensor, or of the batch size of a TensorDict; None for anything else."""
    if is_tensordict(value):
        return list(value.batch_size[:ndim])
    return list(value.shape[:ndim]) if is_tensor(value) else None


def place(section: Section | None, key: object) -> str:
    """Name a field in messages, such as ``batch.input_ids``."""
    return top_level(key) if section is None else section + step(key)
