"""One bundle, described by its manifest alone: nothing of the payload is read."""

from collections.abc import Iterator, Sequence

import msgspec

from rollferry.bundle.inventory import BundleInfo, info_of
from rollferry.bundle.manifest import Field, Manifest
from rollferry.bundle.rebuild import rebuilding
from rollferry.bundle.stages import open_manifest, opened, stage_keys
from rollferry.engines.base import Engine
from rollferry.errors import BundleError
from rollferry.layouts.arrays import ArraySpec, Dense
from rollferry.layouts.base import Spec
from rollferry.refs import TransferRef

__all__ = ["BundleReport", "StoredField", "describe", "ref_of"]

LOOKS = 100  # that naming layouts may take, for each column: a hostile manifest could have it look for ever


class StoredField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a stored bundle.

    Parameters
    ----------
    name
        Its key, or text that shows it where it is neither text nor an int.
    section
        Its section in a ``dataproto``.
    layout
        Name of its layout.
    dtype
        dtype of the stored numbers, or type of the stored text; empty where there are several or none.
    rows
        Values that it holds, one for each sample; None where it isn't row-aligned.
    nbytes
        Bytes stored, without alignment.
    bundle
        Key of the stage that has it.
    """

    name: str | int
    section: str | None
    layout: str
    dtype: str
    rows: int | None
    nbytes: int
    bundle: str


class BundleReport(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle and its fields.

    Parameters
    ----------
    ref
        Reference to it; made from an id, it has no metadata and no policy version, which only the producer's has.
    info
        What is known of it; of several stages, of the newest.
    fields
        Its fields, those of the oldest stage first.
    checksums
        Whether the payload has them, of all stages.
    """

    ref: TransferRef
    info: BundleInfo
    fields: list[StoredField]
    checksums: bool


class Columns(Sequence[Spec]):
    """The columns of a manifest, which may be looked at so many times only.

    Parameters
    ----------
    specs
        The columns.
    """

    def __init__(self, specs: Sequence[Spec]) -> None:
        self._specs = specs
        self._left = LOOKS * (len(specs) + 1)

    def __getitem__(self, number: int) -> Spec:  # type: ignore[override]  # nobody slices them
        self._left -= 1
        if self._left < 0:
            raise BundleError("its columns refer to each other without end")
        return self._specs[number]

    def __len__(self) -> int:
        return len(self._specs)


def ref_of(engine: Engine, key: str) -> TransferRef:
    """Make a reference to a bundle from its key. Raises BundleNotFoundError or BundleError."""
    manifest, digest = open_manifest(engine, key)
    namespace, _, own = key.rpartition(".")
    return TransferRef(
        id=own,
        engine=engine.scheme,
        namespace=namespace,
        nbytes=manifest.payload_nbytes,
        rows=manifest.rows,
        digest=digest,
        stages=len(stage_keys(engine, key)),
        readers=None if manifest.lifetime is None else manifest.lifetime.readers,
    )


def describe(engine: Engine, ref: TransferRef) -> BundleReport:
    """Describe a bundle. Raises as a get does."""
    with rebuilding(ref.key), opened(engine, ref) as stages:
        fields: list[StoredField] = []
        newer: set[tuple[str | None, str | int]] = set()
        key = ref.key
        for stage in stages:
            own = [field for field in stored(key, stage.manifest) if (field.section, field.name) not in newer]
            fields = own + fields
            newer |= {(field.section, field.name) for field in own}
            key = "" if stage.manifest.base is None else stage.manifest.base.key
        newest = stages[0].manifest
        nbytes = engine.sizes().get(ref.key, newest.payload_nbytes)
        return BundleReport(
            ref=ref,
            info=info_of(ref.key, nbytes, newest, engine.notes(ref.key)),
            fields=fields,
            checksums=all(stage.manifest.checksums is not None for stage in stages),
        )


def stored(key: str, manifest: Manifest) -> Iterator[StoredField]:
    """Describe the fields of one stage."""
    columns = Columns(manifest.columns)
    for field in manifest.fields:
        root = manifest.columns[field.column]
        owned = list(tree(root, manifest.columns))
        layout = root.layout_name(columns)
        dtypes = {name for spec in owned if (name := dtype_name(spec))}
        yield StoredField(
            name=field.key,
            section=field.section,
            layout="ragged" if layout == "dense" and field.form != "value" else layout,
            dtype=dtypes.pop() if len(dtypes) == 1 else "",
            rows=row_count(field, root),
            nbytes=sum(manifest.members[number].nbytes for spec in owned for number in spec.members()),
            bundle=key,
        )


def tree(root: Spec, specs: Sequence[Spec]) -> Iterator[Spec]:
    """Give a column and all that it owns."""
    stack = [root]
    while stack:
        spec = stack.pop()
        yield spec
        stack += [specs[number] for number in spec.children()]


def dtype_name(spec: Spec) -> str:
    """Name the dtype of a column; torch, whose names are in the manifest, isn't imported for it."""
    if isinstance(spec, ArraySpec) and spec.library == "torch":
        return str(spec.dtype)
    return spec.dtype_name()


def row_count(field: Field, root: Spec) -> int | None:
    """Give the number of rows of a field, as far as its column tells."""
    if not field.row_aligned:
        return None
    if field.form != "value":
        return root.rows
    return root.shape[0] if isinstance(root, Dense) and root.shape else None
