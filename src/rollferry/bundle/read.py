"""Reading a bundle: manifest first, checked as a whole; then its members, rebuilt field by field."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from rollferry.bundle.checksums import check_payload
from rollferry.bundle.manifest import Field, Manifest, load
from rollferry.engines.base import Engine
from rollferry.errors import BundleError, RefError, RollferryError
from rollferry.layouts.decoder import Decoder
from rollferry.layouts.numbers import Numbers
from rollferry.refs import TransferRef
from rollferry.timings import Stopwatch

__all__ = ["Verify", "read"]

Verify = Literal["auto", "manifest", "full"]


def read(
    engine: Engine,
    ref: TransferRef,
    *,
    verify: Verify,
    readonly: bool,
    lazy: bool,
    allow_pickle: bool,
    watch: Stopwatch,
) -> dict[Any, Any]:
    """Rebuild the batch of a reference over leased memory."""
    reader = engine.open(ref.key)
    try:
        manifest, digest = load(reader.manifest, reader.payload_nbytes)
        if (digest, manifest.id, manifest.payload_nbytes, manifest.rows) != (ref.digest, ref.id, ref.nbytes, ref.rows):
            raise RefError(f"bad reference: the bundle {ref.key} is not the one it was made for")
        watch.lap("open")
        writable = not readonly or any(spec.needs_writable() for spec in manifest.columns)
        members = reader.fetch([(member.offset, member.nbytes) for member in manifest.members], writable=writable)
    except BundleError as error:
        raise type(error)(f"bundle {ref.key}: {error}") from error
    finally:
        reader.close()
    watch.lap("fetch")
    try:
        if verify == "full" or (verify == "auto" and engine.networked):
            check_payload(members, manifest.checksums, ref.key)
            watch.lap("verify")
        decoder = Decoder(manifest.columns, members.__getitem__, allow_pickle=allow_pickle, readonly=readonly)
        with paused_collector():
            batch = rebuild(manifest, decoder, lazy=lazy)
        watch.lap("rebuild")
        return batch
    except (RollferryError, MemoryError, TimeoutError):  # a signal handler's too
        raise
    except ImportError as error:
        raise BundleError(f"bundle {ref.key} has values of a package that can't be imported here: {error}") from error
    except Exception as error:
        raise BundleError(f"bundle {ref.key} can't be rebuilt: {error}") from error


@contextmanager
def paused_collector() -> Iterator[None]:
    """Keep the cyclic collector from walking the containers of a growing batch again and again; it would find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def rebuild(manifest: Manifest, decoder: Decoder, *, lazy: bool) -> dict[Any, Any]:
    """Rebuild the dict in its original order."""
    keys = [field.key for field in manifest.fields] if manifest.keys is None else decoder.column(manifest.keys)
    if len(keys) != len(manifest.fields):
        raise BundleError("the number of keys is not that of the fields")
    batch = {}
    for key, field in zip(keys, manifest.fields, strict=True):
        batch[key] = rebuild_field(field, manifest, decoder, lazy=lazy)
    if len(batch) != len(keys):
        raise BundleError("a key occurs twice")
    return batch


def rebuild_field(field: Field, manifest: Manifest, decoder: Decoder, *, lazy: bool) -> Any:
    """Rebuild the value of one field."""
    spec = manifest.columns[field.column]
    if field.form == "array":
        if not isinstance(spec, Numbers):
            raise BundleError(f"field {field.key!r} is no column of numbers")
        return spec.array(decoder)
    if lazy and field.form != "value":
        rows = spec.lazy(decoder)
        if rows is not None:
            return rows
    values = decoder.column(field.column)
    if field.form == "value":
        if len(values) != 1:
            raise BundleError(f"field {field.key!r} has {len(values)} values, not one")
        return values[0]
    return tuple(values) if field.form == "tuple" else values
