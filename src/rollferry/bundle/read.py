"""Reading a bundle: manifest first, checked as a whole; then the members asked for, rebuilt field by field."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rollferry.bundle.checksums import check_payload
from rollferry.bundle.into import filling
from rollferry.bundle.manifest import Field, Manifest, load
from rollferry.bundle.request import Request, chosen, resolve_rows
from rollferry.bundle.select import Options, Selection
from rollferry.engines.base import Engine, Reader
from rollferry.errors import BundleError, RefError, RollferryError, SelectionError
from rollferry.layouts.decoder import Decoder
from rollferry.layouts.lazy import LazyList, LazyRows
from rollferry.layouts.numbers import Numbers
from rollferry.refs import TransferRef
from rollferry.timings import Stopwatch

__all__ = ["PausedCollector", "packed_field", "read"]


class Part(NamedTuple):
    """What is wanted of one bundle, fetched.

    Parameters
    ----------
    fields
        The fields wanted.
    keys
        Their keys.
    decoder
        Rebuilds them.
    fetched_nbytes
        Bytes of the payload that were fetched.
    """

    fields: Sequence[Field]
    keys: Sequence[Any]
    decoder: Decoder
    fetched_nbytes: int


Make = Callable[[Field, Decoder], Any]


def read(
    engine: Engine, ref: TransferRef, request: Request, watch: Stopwatch, make: Make | None = None
) -> dict[Any, Any]:
    """Rebuild the batch of a reference over leased memory, each field by `make` if it is given."""
    reader = engine.open(ref.key)
    with rebuilding(ref.key):
        try:
            manifest, digest = load(reader.manifest, reader.payload_nbytes)
            if (digest, manifest.id, manifest.payload_nbytes, manifest.rows) != (
                ref.digest,
                ref.id,
                ref.nbytes,
                ref.rows,
            ):
                raise RefError(f"bad reference: the bundle {ref.key} is not the one it was made for")
            watch.lap("open")
            options = Options(request.allow_pickle, request.readonly, engine.networked)
            part = (some if request.is_partial else everything)(manifest, reader, request, options, watch)
        finally:
            reader.close()
        watch.fetched_nbytes += part.fetched_nbytes
        make = make or (partial(lazy_field, bundle=ref.key) if request.lazy else rebuild_field)
        into = request.into or {}
        batch = rebuild(part, make, into)
        fill(batch, into)
        watch.lap("rebuild")
        return batch


def everything(manifest: Manifest, reader: Reader, request: Request, options: Options, watch: Stopwatch) -> Part:
    """Fetch a whole bundle."""
    ranges = [(member.offset, member.nbytes) for member in manifest.members]
    members = reader.fetch(ranges, writable=is_writable(manifest, options))
    watch.lap("fetch")
    if request.verify == "full" or (request.verify == "auto" and options.networked):
        check_payload(members, manifest.checksums)
        watch.lap("verify")
    decoder = Decoder(
        manifest.columns, members.__getitem__, allow_pickle=options.allow_pickle, readonly=options.readonly
    )
    keys = [field.key for field in manifest.fields] if manifest.keys is None else decoder.column(manifest.keys)
    return Part(manifest.fields, keys, decoder, manifest.payload_nbytes)


def some(manifest: Manifest, reader: Reader, request: Request, options: Options, watch: Stopwatch) -> Part:
    """Fetch some fields, or some rows of them."""
    selection = Selection(manifest, reader, options)
    keys = [field.key for field in manifest.fields] if manifest.keys is None else selection.values(manifest.keys)
    if len(set(keys)) != len(manifest.fields):
        raise BundleError("the number of keys is not that of the fields")
    names = chosen(request.fields, keys)
    by_key = dict(zip(keys, manifest.fields, strict=True))
    fields = [by_key[name] for name in names]
    if request.rows is None:
        for field in fields:
            selection.whole(field.column)
    else:
        select_rows(fields, request.rows, selection)
    decoder = selection.decoder(writable=is_writable(manifest, options))
    watch.lap("fetch")
    return Part(fields, names, decoder, selection.fetched_nbytes)


def select_rows(fields: Sequence[Field], wanted: Any, selection: Selection) -> None:
    """Ask for rows of the row-aligned fields, and for the others as they are."""
    counts = {field.key: selection.row_count(field) for field in fields}
    different = {count: key for key, count in counts.items() if count is not None}
    if len(different) > 1:
        described = ", ".join(f"{key!r} has {count}" for count, key in different.items())
        raise SelectionError(
            f"fields differ in their number of rows ({described}); name those to read in fields=, or put those that don't "
            "hold a value per sample with FieldSchema(row_aligned=False)"
        )
    if not different:
        raise SelectionError("none of the fields has rows")
    rows = resolve_rows(wanted, next(iter(different)))
    for field in fields:
        if counts[field.key] is None:
            selection.whole(field.column)
        elif field.form == "value":
            selection.inner(field.column, rows)
        else:
            selection.rows(field.column, rows)


def is_writable(manifest: Manifest, options: Options) -> bool:
    """Whether memory has to be writable."""
    return not options.readonly or any(spec.needs_writable() for spec in manifest.columns)


@contextmanager
def rebuilding(key: str) -> Iterator[None]:
    """Turn what goes wrong in reading a bundle into BundleError."""
    try:
        yield
    except BundleError as error:
        raise type(error)(f"bundle {key}: {error}") from error
    except (RollferryError, MemoryError, TimeoutError):  # a signal handler's too
        raise
    except ImportError as error:
        raise BundleError(f"bundle {key} has values of a package that can't be imported here: {error}") from error
    except Exception as error:
        raise BundleError(f"bundle {key} can't be rebuilt: {error}") from error


class PausedCollector:
    """Keeps the cyclic collector from walking the containers of a growing batch again and again; it would find nothing.

    A class and no generator: leaving one would make objects, and so start the collector within the call that paused it.
    """

    def __enter__(self) -> None:
        self._enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._enabled:
            gc.enable()


def rebuild(part: Part, make: Make, into: Mapping[Any, Any]) -> dict[Any, Any]:
    """Rebuild the dict in its original order; where there is a buffer for a field, only check that it fits."""
    if len(part.keys) != len(part.fields):
        raise BundleError("the number of keys is not that of the fields")
    batch = {}
    for key, field in zip(part.keys, part.fields, strict=True):
        batch[key] = filling(key, field, part.decoder, into[key]) if key in into else make(field, part.decoder)
    if len(batch) != len(part.keys):
        raise BundleError("a key occurs twice")
    return batch


def rebuild_field(field: Field, decoder: Decoder) -> Any:
    """Rebuild the value of one field."""
    if field.form == "array":
        spec = decoder.specs[field.column]
        if not isinstance(spec, Numbers):
            raise BundleError(f"field {field.key!r} is no column of numbers")
        return spec.array(decoder)
    values = decoder.column(field.column)
    if field.form == "value":
        if len(values) != 1:
            raise BundleError(f"field {field.key!r} has {len(values)} values, not one")
        return values[0]
    return tuple(values) if field.form == "tuple" else values


def lazy_field(field: Field, decoder: Decoder, *, bundle: str) -> Any:
    """Give the rows of one field unbuilt; its value if it has no rows."""
    if field.form in ("array", "value"):
        return rebuild_field(field, decoder)
    spec = decoder.specs[field.column]

    def rebuild_later() -> list[Any]:
        with PausedCollector(), rebuilding(bundle):
            return decoder.column(field.column)

    rows = spec.lazy(decoder)
    return LazyList(spec.rows, rebuild_later, decoder.lock) if rows is None else rows


def packed_field(field: Field, decoder: Decoder) -> LazyRows:
    """Give the rows of one field as values and offsets. Raises SelectionError where it has none such."""
    if field.form == "value":
        value = rebuild_field(field, decoder)
        if getattr(value, "ndim", 0) > 1 and value.dtype != object:
            count, length = value.shape[:2]
            return LazyRows(
                value.reshape(count * length, *value.shape[2:]), np.arange(count + 1, dtype=np.int64) * length
            )
        rows = None
    else:
        rows = decoder.specs[field.column].packed(decoder)
    if rows is None:
        raise SelectionError(
            f"field {field.key!r} has no rows that could be packed: arrays of one dtype that differ in their first axis at "
            "most, or lists of numbers of one type, without None"
        )
    check_offsets(rows, field.key)
    return rows


def check_offsets(rows: LazyRows, key: object) -> None:
    """Raise BundleError unless offsets rise from 0 to the number of values: kernels read where they say."""
    offsets = rows.offsets
    if offsets[0] != 0 or offsets[-1] != len(rows.values) or (np.diff(offsets) < 0).any():
        raise BundleError(f"the offsets of field {key!r} don't fit its values")


def fill(batch: dict[Any, Any], into: Mapping[Any, Any]) -> None:
    """Fill the buffers, all of which fit."""
    for name in into:
        if name not in batch:
            raise SelectionError(f"there is a buffer for {name!r}, which is no field that was read")
    for name in into:
        batch[name].fill()
        batch[name] = batch[name].result()
