"""The fields of a batch, encoded one after the other as inference or their schema says."""

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from rollferry.bundle.conform import check_field, lossy_row
from rollferry.bundle.locate import locate, top_level
from rollferry.bundle.manifest import Field
from rollferry.errors import RollferryError, SchemaError, UnsupportedValueError
from rollferry.layouts.arrays import Dense
from rollferry.layouts.encoder import FORMS, Encoder
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
    """

    fields: list[Field]
    encoder: Encoder
    keys: int | None
    rows: int | None


def count_own_references() -> int:
    """Give the references that a value of a batch has within `encode_batch`, seen as there."""
    batch = {"key": object()}
    items = list(batch.items())
    for _key, value in items:
        count = sys.getrefcount(value)
    return count


HELD_HERE = count_own_references()


def encode_batch(batch: object, schema: Schema | None, *, allow_pickle: bool) -> EncodedBatch:
    """Encode a batch.

    Raises
    ------
    UnsupportedValueError
        With the path of the value.
    SchemaError
        With field and row.
    """
    if type(batch) is not dict:
        advice = "dict(batch)" if isinstance(batch, Mapping) else 'a dict of fields such as {"samples": batch}'
        raise UnsupportedValueError(f"a batch is a dict, not {type(batch).__name__}; make it {advice}")
    encoder = Encoder(allow_pickle=allow_pickle)
    items = list(batch.items())
    fields = []
    where = "the batch"
    try:
        plain = all(is_plain_key(key) for key, _ in items)
        for key, value in items:
            where = top_level(key)
            hint = None if schema is None or type(key) not in (str, int) else schema.get(key)
            repeated = sys.getrefcount(value) > HELD_HERE  # by itself: in a call it would be counted once more
            form, column = encode_field(key, value, hint, encoder, batch, repeated=repeated)
            fields.append(Field(key=key if plain else ascii(key)[:80], form=form, column=column))
        where = "the keys of the batch"
        keys = None if plain else encoder.column([key for key, _ in items])
    except UnsupportedValueError as error:
        path = locate(batch, error.value) or where
        raise UnsupportedValueError(error.reason, error.value, path) from error.__cause__
    except RecursionError:
        raise UnsupportedValueError("nested too deeply", None, where) from None
    except (RollferryError, MemoryError, TimeoutError):  # a signal handler's too
        raise
    except Exception as error:
        raise UnsupportedValueError(f"can't be encoded: {error!r}", None, where) from error
    return EncodedBatch(fields, encoder, keys, common_rows(fields, encoder))


def encode_field(
    key: Any, value: Any, hint: FieldSchema | None, encoder: Encoder, batch: object, *, repeated: bool
) -> tuple[Any, int]:
    """Encode one field, `repeated` where something else has the same object; give its form and column."""
    if hint is None or (hint.layout is None and hint.nullable):
        return encoder.field(value, batch, repeated=repeated)
    check_field(key, value, hint)
    if hint.layout is None:
        return encoder.field(value, batch, repeated=repeated)
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


def common_rows(fields: list[Field], encoder: Encoder) -> int | None:
    """Give the number of rows that all row-aligned fields have; None where they differ or there are none."""
    lengths = set()
    for field in fields:
        spec = encoder.specs[field.column]
        if field.form != "value":
            lengths.add(spec.rows)
        elif isinstance(spec, Dense) and spec.shape:
            lengths.add(spec.shape[0])
    return lengths.pop() if len(lengths) == 1 else None
