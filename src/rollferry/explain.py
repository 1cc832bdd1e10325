"""What put would do with a batch, and the schema that says so."""

from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

from rollferry.bundle.fields import EncodedBatch
from rollferry.bundle.manifest import Field
from rollferry.layouts.base import Spec
from rollferry.layouts.encoder import Encoder
from rollferry.layouts.numbers import NumberSource
from rollferry.layouts.pickled import Pickled
from rollferry.layouts.tree.null import Null
from rollferry.layouts.tree.sequence import Sequence
from rollferry.layouts.tree.union import Union
from rollferry.memory.plan import SpanSource
from rollferry.schema import FieldSchema, Schema

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Explanation", "FieldReport", "explain", "infer_schema"]


class FieldReport(NamedTuple):
    """What put does with one field.

    Parameters
    ----------
    key
        Key of the field.
    layout
        Name of its layout.
    why
        Which property of the values led to it.
    dtype
        dtype of the stored numbers, or type of the stored text; empty where there are several or none.
    nbytes
        Bytes stored, without alignment.
    copies
        How often its bytes are copied on the way into the engine's memory: once, or twice where they are converted first
        (images, text beyond ASCII, pickles).
    path
        ``fast``: native code throughout. ``general``: a Python step for each row or distinct value somewhere.
    """

    key: Any
    layout: str
    why: str
    dtype: str
    nbytes: int
    copies: int
    path: str


class Explanation:
    """Reports on all fields of a batch; prints as a table.

    Parameters
    ----------
    fields
        In the order of the batch.
    """

    def __init__(self, fields: list[FieldReport]) -> None:
        self.fields = fields

    def __iter__(self) -> Iterator[FieldReport]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __getitem__(self, key: Any) -> FieldReport:
        for report in self.fields:
            if report.key == key:
                return report
        raise KeyError(key)

    def __rich__(self) -> "Table":
        from rich.table import Table  # here, since most processes print no table

        table = Table("field", "layout", "dtype", "bytes", "copies", "path", "why")
        for report in self.fields:
            key, layout, why, dtype, nbytes, copies, path = report
            table.add_row(str(key), layout, dtype, f"{nbytes:,}", str(copies), path, why)
        return table

    def __str__(self) -> str:
        from rich.console import Console

        out = StringIO()
        Console(file=out, width=140, color_system=None).print(self)
        return out.getvalue().rstrip("\n")

    __repr__ = __str__


def explain(batch: EncodedBatch, keys: list[Any]) -> Explanation:
    """Report on an encoded batch; `keys` are those of the batch."""
    encoder = batch.encoder
    reports = []
    first = 0
    for key, field in zip(keys, batch.fields, strict=True):
        columns = encoder.specs[first : field.column + 1]
        first = field.column + 1
        reports.append(report_field(key, field, columns, encoder))
    return Explanation(reports)


def report_field(key: Any, field: Field, columns: list[Spec], encoder: Encoder) -> FieldReport:
    """Report on one field; `columns` are all that it consists of."""
    sources = [encoder.sources[number] for spec in columns for number in spec.members()]
    direct = all(isinstance(source, SpanSource | NumberSource) for source in sources)
    plain = all(
        spec.layout in ("dense", "ragged", "numbers", "text") or isinstance(spec, Sequence | Null) for spec in columns
    )
    root = encoder.specs[field.column]
    layout = root.layout_name(encoder.specs)
    dtypes = {name for spec in columns if (name := spec.dtype_name())}
    return FieldReport(
        key=key,
        layout="ragged" if layout == "dense" and field.form != "value" else layout,
        why=root.why,
        dtype=dtypes.pop() if len(dtypes) == 1 else "",
        nbytes=sum(source.nbytes for source in sources),
        copies=max((source.copies for source in sources), default=0)
        + any(isinstance(spec, Pickled) for spec in columns),
        path="fast" if direct and plain else "general",
    )


def infer_schema(batch: EncodedBatch, keys: list[Any]) -> Schema:
    """Give a schema that stores every batch of this kind as this one is stored."""
    fields = {}
    for key, field, report in zip(keys, batch.fields, explain(batch, keys), strict=True):
        if type(key) in (str, int):
            spec = batch.encoder.specs[field.column]
            nulls = isinstance(spec, Null) or (
                isinstance(spec, Union)
                and any(isinstance(batch.encoder.specs[number], Null) for number in spec.columns)
            )
            simple = report.layout in ("dense", "ragged") and report.dtype.isidentifier()
            layout: Any = report.layout
            fields[key] = FieldSchema(layout, dtype=report.dtype if simple else None, nullable=nulls)
    return Schema(fields)
