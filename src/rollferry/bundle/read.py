"""Reading a bundle: manifest first, checked as a whole; then the members asked for, rebuilt field by field."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rollferry.bundle.checksums import check_payload
from rollferry.bundle.dataproto import join
from rollferry.bundle.into import filling
from rollferry.bundle.manifest import Field, Manifest
from rollferry.bundle.request import Place, Request, chosen, resolve_rows
from rollferry.bundle.select import Options, Selection
from rollferry.bundle.stages import Stage, opened
from rollferry.engines.base import Engine
from rollferry.errors import BundleError, RollferryError, SelectionError
from rollferry.layouts.decoder import Decoder
from rollferry.layouts.lazy import LazyList, LazyRows
from rollferry.layouts.numbers import Numbers
from rollferry.layouts.rows import Rows
from rollferry.refs import TransferRef
from rollferry.timings import Stopwatch

__all__ = ["PausedCollector", "packed_field", "places", "read", "rebuilding"]

Make = Callable[[Field, Decoder], Any]


class Found(NamedTuple):
    """A field whose bytes were fetched.

    Parameters
    ----------
    place
        Section and key.
    field
        Its entry in the manifest.
    decoder
        Rebuilds it.
    """

    place: Place
    field: Field
    decoder: Decoder


def read(engine: Engine, ref: TransferRef, request: Request, watch: Stopwatch, make: Make | None = None) -> Any:
    """Rebuild the batch of a reference over leased memory, each field by `make` if it is given."""
    with rebuilding(ref.key):
        with opened(engine, ref) as stages:
            watch.lap("open")
            for stage in stages:
                if request.type not in (None, stage.manifest.type):
                    kind = stage.manifest.type
                    raise BundleError(f"it is a {kind}; get it with type={kind!r}")
            options = Options(request.allow_pickle, request.readonly, engine.networked)
            if len(stages) == 1 and not request.is_partial:
                found, rows = everything(stages[0], request, options, watch), None
            else:
                found, rows = some(stages, request, options, watch)
        make = make or (partial(lazy_field, bundle=ref.key) if request.lazy else rebuild_field)
        into = request.into or {}
        values = rebuild(found, make, into)
        fill(values, into)
        batch = assemble(stages[0].manifest, values, request, rows)
        watch.lap("rebuild")
        return batch


def everything(stage: Stage, request: Request, options: Options, watch: Stopwatch) -> list[Found]:
    """Fetch a whole bundle."""
    manifest = stage.manifest
    ranges = [(member.offset, member.nbytes) for member in manifest.members]
    members = stage.reader.fetch(ranges, writable=is_writable(manifest, options))
    watch.fetched_nbytes += manifest.payload_nbytes
    watch.lap("fetch")
    if request.verify == "full" or (request.verify == "auto" and options.networked):
        check_payload(members, manifest.checksums)
        watch.lap("verify")
    decoder = Decoder(
        manifest.columns, members.__getitem__, allow_pickle=options.allow_pickle, readonly=options.readonly
    )
    return [Found(place, field, decoder) for place, field in places(manifest, decoder.column)]


def some(
    stages: Sequence[Stage], request: Request, options: Options, watch: Stopwatch
) -> tuple[list[Found], Rows | None]:
    """Fetch some fields, or some rows of them; of several stages, the newest that has a field."""
    selections = [Selection(stage.manifest, stage.reader, options) for stage in stages]
    there: dict[Place, tuple[Selection, Field]] = {}
    for stage, selection in zip(reversed(stages), reversed(selections), strict=True):
        for place, field in places(stage.manifest, selection.values):
            there[place] = selection, field
    wanted = {place: there[place] for place in chosen(request.fields, there)}
    rows = None
    if request.rows is None:
        for selection, field in wanted.values():
            selection.whole(field.column)
    else:
        rows = select_rows(wanted, request.rows)
    decoders = {
        id(selection): selection.decoder(writable=is_writable(stage.manifest, options))
        for stage, selection in zip(stages, selections, strict=True)
    }
    watch.fetched_nbytes += sum(selection.fetched_nbytes for selection in selections)
    watch.lap("fetch")
    return [Found(place, field, decoders[id(selection)]) for place, (selection, field) in wanted.items()], rows


def places(manifest: Manifest, column: Callable[[int], Sequence[Any]]) -> Iterable[tuple[Place, Field]]:
    """Give section and key of each field; `column` rebuilds that of the keys. Raises BundleError where two are the same."""
    keys = [field.key for field in manifest.fields] if manifest.keys is None else column(manifest.keys)
    if len(keys) != len(manifest.fields):
        raise BundleError("the number of keys is not that of the fields")
    found = {Place(field.section, key): field for key, field in zip(keys, manifest.fields, strict=True)}
    if len(found) != len(keys):
        raise BundleError("a key occurs twice")
    return found.items()


def select_rows(fields: Mapping[Place, tuple[Selection, Field]], wanted: Any) -> Rows:
    """Ask for rows of the row-aligned fields, and for the others as they are."""
    counts = {place: selection.row_count(field) for place, (selection, field) in fields.items()}
    different = {count: place.key for place, count in counts.items() if count is not None}
    if len(different) > 1:
        described = ", ".join(f"{key!r} has {count}" for count, key in different.items())
        raise SelectionError(
            f"fields differ in their number of rows ({described}); name those to read in fields=, or put those that don't "
            "hold a value per sample with FieldSchema(row_aligned=False)"
        )
    if not different:
        raise SelectionError("none of the fields has rows")
    rows = resolve_rows(wanted, next(iter(different)))
    for place, (selection, field) in fields.items():
        if counts[place] is None:
            selection.whole(field.column)
        elif field.form == "value":
            selection.inner(field.column, rows)
        else:
            selection.rows(field.column, rows)
    return rows


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


def rebuild(found: Iterable[Found], make: Make, into: Mapping[Any, Any]) -> dict[Place, Any]:
    """Rebuild fields in their order; where there is a buffer for one, only check that it fits."""
    return {
        place: filling(place.key, field, decoder, into[place.key]) if place.key in into else make(field, decoder)
        for place, field, decoder in found
    }


def fill(values: dict[Place, Any], into: Mapping[Any, Any]) -> None:
    """Fill the buffers, all of which fit."""
    filled = [place for place in values if place.key in into]
    missing = set(into) - {place.key for place in filled}
    if missing:
        raise SelectionError(f"there is a buffer for {missing.pop()!r}, which is no field that was read")
    for place in filled:
        values[place].fill()
        values[place] = values[place].result()


def assemble(manifest: Manifest, values: Mapping[Place, Any], request: Request, rows: Rows | None) -> Any:
    """Give fields in the form in which they were put."""
    if manifest.envelope is None or request.type is None:
        return {place.key: value for place, value in values.items()}
    sections: dict[str, dict[Any, Any]] = {}
    for place, value in values.items():
        sections.setdefault(str(place.section), {})[place.key] = value
    return join(manifest.envelope, sections, request.data_cls, None if rows is None else rows.count)
