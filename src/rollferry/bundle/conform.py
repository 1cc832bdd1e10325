"""Whether a field is what its schema says."""

from typing import Any

import numpy as np

from rollferry import _native
from rollferry.errors import SchemaError
from rollferry.layouts.library import LossyCastError
from rollferry.layouts.numbers import requested_dtype
from rollferry.schema import FieldSchema

__all__ = ["check_field", "lossy_row"]


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
    if schema.layout in ITEMS:
        fits, what = ITEMS[schema.layout]
        nested = [item for item in rows if type(item) in (list, tuple)]
        if fits is are_numbers and nested and _native.number_scan(nested) is not None:
            return  # all of them at once, which is the usual case
        for row, item in enumerate(rows):
            if type(item) in (list, tuple) and not fits(list(item)):
                raise SchemaError(f"the layout {schema.layout!r} needs {what} in each row", field=key, row=row)


def mismatch(schema: FieldSchema, kind: type) -> str | None:
    """Say why values of a class don't fit a layout; None where they do."""
    array = kind is np.ndarray or any(base.__name__ == "Tensor" and is_from(base, "torch") for base in kind.__mro__)
    fits = {
        "dense": array,
        "ragged": array or kind in (list, tuple),
        "numbers": kind in (int, float, bool, list, tuple),
        "text": kind in (str, bytes, bytearray, list, tuple),
        "media": is_image(kind) or kind in (bytes, list, tuple),
        "tree": True,
        "pickled": True,
        None: True,
    }
    return None if fits[schema.layout] else f"the layout {schema.layout!r} does not take values of type {kind.__name__}"


def is_image(cls: type) -> bool:
    """Whether a class is of PIL images."""
    return any(base.__name__ == "Image" and is_from(base, "PIL") for base in cls.__mro__)


def is_from(cls: type, package: str) -> bool:
    """Whether a class comes from a package."""
    return cls.__module__.partition(".")[0] == package


def are_numbers(items: list[Any]) -> bool:
    """Whether a row consists of Python numbers of one type."""
    return not items or _native.number_scan([items]) is not None


def are_text(items: list[Any]) -> bool:
    """Whether a row consists of strings or bytes."""
    return {str, bytes, bytearray}.issuperset(_native.type_groups(items)[0])


def are_media(items: list[Any]) -> bool:
    """Whether a row consists of images, encoded or not, or None."""
    types = _native.type_groups(items)[0]
    return all(kind in (bytes, type(None)) or is_image(kind) for kind in types)


#: What the rows of a layout that are lists or tuples may hold.
ITEMS = {
    "ragged": (are_numbers, "numbers of one type"),
    "numbers": (are_numbers, "numbers of one type"),
    "text": (are_text, "strings or bytes"),
    "media": (are_media, "images"),
}


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
                if numbers is None:
                    return row
                requested_dtype(numbers, schema)
            except LossyCastError:
                return row
    return None
