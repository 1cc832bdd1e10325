"""The fields of a batch, encoded one after the other as inference or their schema says."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rollferry.bundle.conform import check_field, lossy_row
from rollferry.bundle.dataproto import Entry, place, split
from rollferry.bundle.locate import locate
from rollferry.bundle.manifest import BatchType, Envelope, Field
from rollferry.errors import RollferryError, SchemaError, UnsupportedValueError
from rollferry.layouts.base import Spec
from rollferry.layouts.encoder import FORMS, Encoder, Form
from rollferry.layouts.indexed import first_axis
from rollferry.layouts.library import LossyCastError
from rollferry.layouts.numbers import Numbers
from rollferry.layouts.pickled import Pickled
from rollferry.layouts.tree.record import is_plain_key
from rollferry.schema import FieldSchema, Schema

__all__ = ["EncodedBatch", "encode_batch"]


class EncodedBatch(NamedTuple):
    """A batch as specs and sources.

    Parameters
    ----------
    fields
        Its fields.
    encoder
        Columns and members.
    keys
        Column of its keys, where the manifest can't hold them.
    rows
        Number of rows, where its row-aligned fields agree.
    type
        What it is.
    envelope
        Of a ``dataproto``.
    entries
        What its fields were made of.
    row_counts
        For each field its number of rows; None where it is not row-aligned.
    """

    fields: list[Field]
    encoder: Encoder
    keys: int | None
    rows: int | None
    type: BatchType
    envelope: Envelope | None
    entries: list[Entry]
    row_counts: list[int | None]


def split_dict(batch: object) -> tuple[None, list[Entry]]:
    """Give the entries of a dict."""
    if type(batch) is not dict:
        advice = "dict(batch)" if isinstance(batch, Mapping) else 'a dict of fields such as {"samples": batch}'
        raise UnsupportedValueError(f"a batch is a dict, not {type(batch).__name__}; make it {advice}")
    return None, [(None, key, value) for key, value in batch.items()]


#: Type of a batch -> what gives its envelope and its entries.
SPLIT: dict[BatchType, Callable[[object], tuple[Envelope | None, list[Entry]]]] = {
    "dict": split_dict,
    "dataproto": split,
}


def count_own_references() -> int:
    """Give the references that a value of a batch has within `encode_batch`, seen as there."""
    batch = {"key": object()}
    _envelope, entries = split_dict(batch)
    for _section, _key, value in entries:
        count = sys.getrefcount(value)
    return count


HELD_HERE = count_own_references()


def encode_batch(batch: object, schema: Schema | None, *, allow_pickle: bool, kind: BatchType = "dict") -> EncodedBatch:
    """Encode a batch.

    Raises
    ------
    UnsupportedValueError
        With the path of the value.
    SchemaError
        With field and row.
    """
    envelope, entries = SPLIT[kind](batch)
    encoder = Encoder(allow_pickle=allow_pickle)
    fields: list[Field] = []
    row_counts: list[int | None] = []
    where = "the batch"
    try:
        plain = all(is_plain_key(key) for _, key, _ in entries)
        for section, key, value in entries:
            where = place(section, key)
            hint = None if schema is None or type(key) not in (str, int) else schema.get(key)
            repeated = sys.getrefcount(value) > HELD_HERE  # by itself: in a call it would be counted once more
            name = key if section is None else where
            form, column = encode_field(name, value, hint, encoder, batch, repeated=repeated)
            shown = key if plain else ascii(key)[:80]
            aligned = section != "meta_info" and (hint is None or hint.row_aligned)
            fields.append(Field(key=shown, form=form, column=column, section=section, row_aligned=aligned))
            row_counts.append(count_rows(form, encoder.specs[column], value) if aligned else None)
        where = "the keys of the batch"
        keys = None if plain else encoder.column([key for _, key, _ in entries])
    except UnsupportedValueError as error:
        path = locate(by_section(entries), error.value) or where
        raise UnsupportedValueError(error.reason, error.value, path) from error.__cause__
    except RecursionError:
        raise UnsupportedValueError("nested too deeply", None, where) from None
    except (RollferryError, MemoryError, TimeoutError):  # a signal handler's too
        raise
    except Exception as error:
        raise UnsupportedValueError(f"can't be encoded: {error!r}", None, where) from error
    return EncodedBatch(fields, encoder, keys, common_rows(row_counts), kind, envelope, entries, row_counts)


def by_section(entries: Sequence[Entry]) -> dict[Any, Any]:
    """Give the batch as nested dicts."""
    batch: dict[Any, Any] = {}
    for section, key, value in entries:
        (batch if section is None else batch.setdefault(section, {}))[key] = value
    return batch


def encode_field(
    key: Any, value: Any, hint: FieldSchema | None, encoder: Encoder, batch: object, *, repeated: bool
) -> tuple[Any, int]:
    """Encode one field, `repeated` where something else has the same object; give its form and column."""
    if hint is None or (hint.layout is None and hint.nullable):
        return encoder.field(value, batch, repeated=repeated)
    check_field(key, value, hint)
    if hint.layout == "pickled":
        form = FORMS.get(type(value), "value")
        rows = [value] if form == "value" else list(value)
        return form, encoder.add(Pickled.encode(rows, encoder))
    encoder.hint = hint
    try:
        if hint.layout == "numbers" and hint.returns != "same" and value in ([], ()):
            return "array", encoder.add(Numbers.empty(hint, encoder))
        form, column = encoder.field(value, batch, repeated=repeated)
    except LossyCastError as error:
        raise SchemaError(error.reason, field=key, row=lossy_row(value, error, hint)) from None
    finally:
        encoder.hint = None
    if hint.returns == "same":
        return form, column
    if form != "value" and isinstance(encoder.specs[column], Numbers):
        return "array", column
    if not encoder.specs[column].is_array_form(encoder.specs):
        raise SchemaError(
            f"returns={hint.returns!r} needs arrays, or lists of numbers of one type without None", field=key
        )
    return form, column


def count_rows(form: Form, spec: Spec, value: Any) -> int | None:
    """Give the number of rows of a field; None where it does not hold one value per sample."""
    if form != "value":
        return spec.rows
    return first_axis(value) if spec.may_have_axis() else None


def common_rows(row_counts: Sequence[int | None]) -> int | None:
    """Give the number of rows that all row-aligned fields have; None where they differ or there are none."""
    different = set(row_counts) - {None}
    return different.pop() if len(different) == 1 else None
