"""Whether fields can be appended to a bundle, and what the whole is then."""

from collections.abc import Sequence

from rollferry.bundle.dataproto import merged, place
from rollferry.bundle.fields import EncodedBatch
from rollferry.bundle.manifest import Field, Lifetime, Manifest
from rollferry.bundle.read import places
from rollferry.bundle.rebuild import rebuilding
from rollferry.bundle.request import Place
from rollferry.bundle.select import Options, Selection
from rollferry.bundle.stages import Stage, opened
from rollferry.engines.base import Engine
from rollferry.errors import SchemaError
from rollferry.refs import MAX_STAGES, TransferRef

__all__ = ["extended"]


def extended(
    engine: Engine, ref: TransferRef, added: EncodedBatch, *, overwrite: bool, allow_pickle: bool
) -> tuple[EncodedBatch, Lifetime | None]:
    """Give fields as the next stage of a bundle, with the rows and the envelope of the whole; and the bundle's lifetime.

    Raises
    ------
    SchemaError
        They don't fit the bundle; names them.
    """
    if not added.fields:
        raise SchemaError("there are no fields to append")
    if ref.stages >= MAX_STAGES:
        raise SchemaError(f"the bundle has {ref.stages} stages, which is the most; put it anew")
    with rebuilding(ref.key), opened(engine, ref) as older:
        stage = over(older, added, overwrite=overwrite, allow_pickle=allow_pickle)
        return stage, older[0].manifest.lifetime


def over(older: Sequence[Stage], added: EncodedBatch, *, overwrite: bool, allow_pickle: bool) -> EncodedBatch:
    """Give fields as the next stage over others, the newest of which is the first."""
    newest = older[0].manifest
    if added.type != newest.type:
        raise SchemaError(f"the bundle is a {newest.type}, to which no {added.type} can be appended")
    if not overwrite:
        check_names(older, added, allow_pickle=allow_pickle)
    rows = newest.rows
    if rows is not None:
        check_rows(rows, added)
    elif not any(may_have_rows(field, at.manifest) for at in older for field in at.manifest.fields):
        rows = added.rows  # otherwise those of the older fields differ
    envelope = added.envelope
    if newest.envelope is not None and envelope is not None:
        envelope = merged(newest.envelope, envelope, added.entries)
    return added._replace(rows=rows, envelope=envelope)


def check_names(older: Sequence[Stage], added: EncodedBatch, *, allow_pickle: bool) -> None:
    """Raise SchemaError where a field to append is there already."""
    there: set[Place] = set()
    for stage in older:
        selection = Selection(stage, Options(allow_pickle=allow_pickle))
        there.update(at for at, _ in places(stage.manifest, selection.values))
    twice = [place(section, key) for section, key, _ in added.entries if (section, key) in there]
    if twice:
        raise SchemaError(f"the bundle has these fields already: {', '.join(twice)}; overwrite=True replaces them")


def may_have_rows(field: Field, manifest: Manifest) -> bool:
    """Whether a field holds one value per sample, as far as its column tells."""
    return field.row_aligned and (field.form != "value" or manifest.columns[field.column].may_have_axis())


def check_rows(rows: int, added: EncodedBatch) -> None:
    """Raise SchemaError where a field to append has another number of rows than the bundle."""
    wrong = [
        f"{place(section, key)} has {count}"
        for (section, key, _), count in zip(added.entries, added.row_counts, strict=True)
        if count not in (None, rows)
    ]
    if wrong:
        raise SchemaError(
            f"the bundle has {rows} rows, but {', '.join(wrong)}; FieldSchema(row_aligned=False) is for fields that don't "
            "hold a value per sample"
        )
