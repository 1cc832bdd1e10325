"""Whether a field is what its schema says."""

from typing import Any

import numpy as np

from rollferry import _native
from rollferry.errors import SchemaError
from rollferry.layouts.library import LossyCastError
from rollferry.layouts.numbers import requested_dtype
from rollferry.schema import FieldSchema

__all__ = ["check_field", "lossy_row"]

PACKAGES = {"torch": "Tensor", "PIL": "Image"}


def check_field(key: object, value: Any, schema: FieldSchema) -> None:
    """Raise SchemaError, with field and row, where a None or a type breaks the schema."""
    if value is None:
        if not schema.nullable:
            raise SchemaError("None is not allowed here", field=key)
        return
    whole = schema.layout == "dense" or not isinstance(value, list | tuple)
    rows = [value] if whole else list(value)
    types, tags = _native.type_groups(rows)
    for number, kind in enumerate(types):
        if kind is type(None):
            reason = None if schema.nullable else "None is not allowed here"
        else:
            reason = mismatch(schema, kind)
        if reason is not None:
            row = int(np.argmax(tags == number)) if tags is not None else 0
            raise SchemaError(reason, field=key, row=None if whole else row)
    if schema.layout in ("ragged", "numbers"):
        check_number_rows(key, rows, schema)


def mismatch(schema: FieldSchema, kind: type) -> str | None:
    """Say why values of a class don't fit a layout; None where they do."""
    array = kind is np.ndarray or any(base.__name__ == "Tensor" and is_from(base, "torch") for base in kind.__mro__)
    image = any(base.__name__ == "Image" and is_from(base, "PIL") for base in kind.__mro__)
    fits = {
        "dense": array,
        "ragged": array or kind in (list, tuple),
        "numbers": kind in (int, float, bool, list, tuple),
        "text": kind in (str, bytes, bytearray, list, tuple),
        "media": image or kind in (bytes, list, tuple),
        "tree": True,
        "pickled": True,
    }
    return None if fits[schema.layout] else f"the layout {schema.layout!r} does not take values of type {kind.__name__}"


def is_from(cls: type, package: str) -> bool:
    """Whether a class comes from a package."""
    return cls.__module__.partition(".")[0] == package


def check_number_rows(key: object, rows: list[Any], schema: FieldSchema) -> None:
    """Raise SchemaError for the first row that is a list of anything but numbers."""
    for row, value in enumerate(rows):
        if type(value) in (list, tuple) and value and _native.number_scan(list(value)) is None:
            raise SchemaError(f"the layout {schema.layout!r} needs numbers of one type in each row", field=key, row=row)


def lossy_row(value: Any, error: LossyCastError, schema: FieldSchema) -> int | None:
    """Give the row whose value does not survive the dtype of its schema; None for the field as a whole."""
    if not isinstance(value, list | tuple):
        return None
    for row, item in enumerate(value):
        if error.value is not None:
            if item is error.value:
                return row
        elif item is not None:
            try:
                numbers = _native.number_scan([item])
                if numbers is not None:
                    requested_dtype(numbers, schema)
            except LossyCastError:
                return row
    return None
