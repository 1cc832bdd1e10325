"""Schema: what a framework knows about its fields beforehand."""

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

import msgspec

from rollferry.errors import SchemaError

__all__ = ["FieldSchema", "LayoutName", "Returns", "Schema", "SchemaLike", "as_schema"]

LayoutName = Literal["dense", "ragged", "numbers", "text", "media", "tree", "pickled"]
Returns = Literal["same", "ndarray", "tensor"]


class FieldSchema(msgspec.Struct, frozen=True):
    """Instructions for one field.

    Parameters
    ----------
    layout
        How the field is stored; None where that is to be inferred. ``ragged`` also takes rows that are lists of numbers.
    dtype
        dtype of the stored numbers, such as ``int32`` or ``bfloat16`` (tensors only). Every value has to survive it.
    nullable
        Whether the field or a row of it may be None.
    returns
        ``same``: what was put, in its own types. ``ndarray``, ``tensor``: typed arrays of the stored dtype.
    row_aligned
        False where the field does not hold one value per sample, although it is a list, tuple or array.
    """

    layout: LayoutName | None = None
    dtype: str | None = None
    nullable: bool = True
    returns: Returns = "same"
    row_aligned: bool = True

    def __post_init__(self) -> None:
        if self.layout is not None and self.layout not in get_args(LayoutName):
            raise SchemaError(f"no layout {self.layout!r}; there are {', '.join(get_args(LayoutName))}")
        if self.returns not in get_args(Returns):
            raise SchemaError(f"returns must be one of {', '.join(get_args(Returns))}, not {self.returns!r}")
        if self.dtype is not None and not isinstance(self.dtype, str):
            raise SchemaError(f"dtype must be a name such as 'int32', not {self.dtype!r}")
        if self.layout not in ("dense", "ragged", "numbers") and (self.dtype is not None or self.returns != "same"):
            layout = "a field without layout" if self.layout is None else f"the layout {self.layout!r}"
            raise SchemaError(f"{layout} takes neither dtype nor returns")


class Schema(Mapping[str | int, FieldSchema]):
    """Instructions for fields by name; fields outside it are inferred.

    Parameters
    ----------
    fields
        FieldSchema of each field.
    """

    def __init__(self, fields: Mapping[str | int, FieldSchema]) -> None:
        for name, field in fields.items():
            if not isinstance(field, FieldSchema):
                raise SchemaError(f"a FieldSchema is needed, not {type(field).__name__}", field=name)
        self._fields = dict(fields)

    def __getitem__(self, name: str | int) -> FieldSchema:
        return self._fields[name]

    def __iter__(self) -> Iterator[str | int]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Schema({self._fields!r})"


SchemaLike = Mapping[str | int, FieldSchema]


def as_schema(schema: SchemaLike | None) -> Schema | None:
    """Accept a Schema, or a mapping that makes one."""
    if schema is None or isinstance(schema, Schema):
        return schema
    if isinstance(schema, Mapping):
        return Schema(schema)
    raise SchemaError(f"a Schema is needed, not {type(schema).__name__}")
