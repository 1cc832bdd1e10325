"""Reading a bundle: manifest first, checked as a whole; then the members asked for, rebuilt field by field."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rollferry.bundle.dataproto import SECTIONS, join
from rollferry.bundle.into import check_distinct, filling
from rollferry.bundle.manifest import Field, Manifest
from rollferry.bundle.rebuild import Found, lazy_field, rebuild_field, rebuilding
from rollferry.bundle.request import Place, Request, chosen, resolve_rows
from rollferry.bundle.select import Options, Selection
from rollferry.bundle.stages import Stage, opened
from rollferry.engines.base import Engine
from rollferry.errors import BundleError, SelectionError
from rollferry.layouts.base import Int64Array
from rollferry.layouts.decoder import Decoder
from rollferry.layouts.rows import Rows
from rollferry.refs import TransferRef
from rollferry.timings import Stopwatch

__all__ = ["places", "read"]

Make = Callable[[Found], Any]
EMPTY_ROWS = 1 << 20  # of arrays that hold nothing, to be named one by one


def read(engine: Engine, ref: TransferRef, request: Request, watch: Stopwatch, make: Make | None = None) -> Any:
    """Rebuild the batch of a reference over leased memory, each field by `make` if it is given."""
    with rebuilding(ref.key):
        with opened(engine, ref, request.verify) as stages:
            watch.lap("open")
            kind = stages[0].manifest.type  # that of all of them
            if request.type not in (None, kind):
                raise BundleError(f"it is a {kind}; get it with type={kind!r}")
            options = Options(request.allow_pickle, request.readonly, engine.networked)
            if len(stages) == 1 and not request.is_partial:
                found, rows = everything(stages[0], options, watch), None
            else:
                found, rows = some(stages, request, options, watch)
        if request.type is None:
            check_one_section(found)
        make = make or (partial(lazy_field, bundle=ref.key) if request.lazy else rebuild_field)
        into = request.into or {}
        values = rebuild(found, make, into)
        fill(values, into)
        batch = assemble(stages[0].manifest, values, request, rows)
        watch.lap("rebuild")
    if request.data_cls is None or request.type != "dataproto":
        return batch
    return request.data_cls(**batch)  # whose own errors are not the bundle's


def everything(stage: Stage, options: Options, watch: Stopwatch) -> list[Found]:
    """Fetch a whole bundle."""
    manifest = stage.manifest
    ranges = [(member.offset, member.nbytes) for member in manifest.members]
    members = stage.reader.fetch(ranges, writable=is_writable(manifest, options))
    watch.fetched_nbytes += manifest.payload_nbytes
    watch.lap("fetch")
    if stage.verification is not None:
        starts, sizes = np.array(ranges, np.int64).reshape(-1, 2).T
        stage.verification.check(Rows(starts, starts + sizes), members)
        watch.lap("verify")
    decoder = Decoder(
        manifest.columns, members.__getitem__, allow_pickle=options.allow_pickle, readonly=options.readonly
    )
    return [Found(place, field, decoder) for place, field in places(manifest, decoder.column)]


def some(
    stages: Sequence[Stage], request: Request, options: Options, watch: Stopwatch
) -> tuple[list[Found], Rows | None]:
    """Fetch some fields, or some rows of them; of several stages, the newest that has a field."""
    selections = [Selection(stage, options) for stage in stages]
    there: dict[Place, tuple[Selection, Field]] = {}
    for stage, selection in zip(reversed(stages), reversed(selections), strict=True):
        for place, field in places(stage.manifest, selection.values):
            there[place] = selection, field
    wanted = {place: there[place] for place in chosen(request.fields, there)}
    rows: Rows | None = None
    indices: dict[Place, Int64Array | None] = {}
    if request.rows is None:
        for selection, field in wanted.values():
            selection.whole(field.column)
    else:
        rows, indices = select_rows(wanted, request.rows)
    decoders = {
        id(selection): selection.decoder(writable=is_writable(stage.manifest, options))
        for stage, selection in zip(stages, selections, strict=True)
    }
    watch.fetched_nbytes += sum(selection.fetched_nbytes for selection in selections)
    watch.lap("fetch")
    return [
        Found(place, field, decoders[id(selection)], indices.get(place)) for place, (selection, field) in wanted.items()
    ], rows


def places(manifest: Manifest, column: Callable[[int], Sequence[Any]]) -> Iterable[tuple[Place, Field]]:
    """Give section and key of each field; `column` rebuilds that of the keys. Raises BundleError where two are the same."""
    keys = [field.key for field in manifest.fields] if manifest.keys is None else column(manifest.keys)
    if len(keys) != len(manifest.fields):
        raise BundleError("the number of keys is not that of the fields")
    found = {Place(field.section, key): field for key, field in zip(keys, manifest.fields, strict=True)}
    if len(found) != len(keys):
        raise BundleError("a key occurs twice")
    return found.items()


def select_rows(
    fields: Mapping[Place, tuple[Selection, Field]], wanted: Any
) -> tuple[Rows, dict[Place, Int64Array | None]]:
    """Ask for rows of the row-aligned fields, and for the others as they are; give those to take once rebuilt, too."""
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
    payloads = {id(selection): selection.payload_nbytes for selection, _ in fields.values()}
    # Eight rows need a byte, but for arrays whose rows are empty.
    rows = resolve_rows(wanted, next(iter(different)), most=EMPTY_ROWS + 8 * sum(payloads.values()))
    indices = {}
    for place, (selection, field) in fields.items():
        if counts[place] is None:
            selection.whole(field.column)
        elif field.form == "value":
            indices[place] = selection.inner(field.column, rows)
        else:
            selection.rows(field.column, rows)
    return rows, indices


def is_writable(manifest: Manifest, options: Options) -> bool:
    """Whether memory has to be writable."""
    return not options.readonly or any(spec.needs_writable() for spec in manifest.columns)


def rebuild(found: Iterable[Found], make: Make, into: Mapping[Any, Any]) -> dict[Place, Any]:
    """Rebuild fields in their order; where there is a buffer for one, check that it fits, and give what fills it."""
    return {one.place: filling(one, into[one.place.key]) if one.place.key in into else make(one) for one in found}


def check_one_section(found: Iterable[Found]) -> None:
    """Raise SelectionError where a field is in two sections, and its section can't be told by what comes back."""
    sections: dict[Any, str | None] = {}
    for (section, key), *_ in found:
        if key in sections:
            raise SelectionError(
                f"both {sections[key]} and {section} have a field {key!r}; get(type='dataproto', fields=) reads one of them"
            )
        sections[key] = section


def fill(values: dict[Place, Any], into: Mapping[Any, Any]) -> None:
    """Fill the buffers, all of which fit."""
    filled = [place for place in values if place.key in into]
    missing = set(into) - {place.key for place in filled}
    if missing:
        raise SelectionError(f"there is a buffer for {missing.pop()!r}, which is no field that was read")
    check_distinct({place: into[place.key] for place in filled})
    for place in filled:
        values[place] = values[place]()


def assemble(manifest: Manifest, values: Mapping[Place, Any], request: Request, rows: Rows | None) -> Any:
    """Give fields in the form in which they were put."""
    if manifest.envelope is None or request.type is None:
        return {place.key: value for place, value in values.items()}
    asked = SECTIONS if request.fields is None else request.fields if isinstance(request.fields, Mapping) else ()
    sections: dict[str, dict[Any, Any]] = {section: {} for section in asked}  # a section without fields is there too
    for place, value in values.items():
        sections.setdefault(str(place.section), {})[place.key] = value
    return join(manifest.envelope, sections, rows=None if rows is None else rows.count)
