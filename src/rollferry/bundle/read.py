"""Reading a bundle: manifest first, checked as a whole; then its members, rebuilt field by field."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from rollferry.bundle.checksums import check_payload
from rollferry.bundle.manifest import Field, Manifest, load
from rollferry.engines.base import Engine
from rollferry.errors import BundleError, RefError, RollferryError
from rollferry.layouts.decoder import Decoder
from rollferry.layouts.lazy import LazyList
from rollferry.layouts.numbers import Numbers
from rollferry.refs import TransferRef
from rollferry.timings import Stopwatch

__all__ = ["PausedCollector", "Verify", "read"]

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
    with rebuilding(ref.key):
        if verify == "full" or (verify == "auto" and engine.networked):
            check_payload(members, manifest.checksums, ref.key)
            watch.lap("verify")
        decoder = Decoder(manifest.columns, members.__getitem__, allow_pickle=allow_pickle, readonly=readonly)
        batch = rebuild(manifest, decoder, partial(lazy_field, bundle=ref.key) if lazy else rebuild_field)
        watch.lap("rebuild")
        return batch


@contextmanager
def rebuilding(key: str) -> Iterator[None]:
    """Turn what goes wrong in rebuilding into BundleError."""
    try:
        yield
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


def rebuild(manifest: Manifest, decoder: Decoder, make: Callable[[Field, Manifest, Decoder], Any]) -> dict[Any, Any]:
    """Rebuild the dict in its original order."""
    keys = [field.key for field in manifest.fields] if manifest.keys is None else decoder.column(manifest.keys)
    if len(keys) != len(manifest.fields):
        raise BundleError("the number of keys is not that of the fields")
    batch = {}
    for key, field in zip(keys, manifest.fields, strict=True):
        batch[key] = make(field, manifest, decoder)
    if len(batch) != len(keys):
        raise BundleError("a key occurs twice")
    return batch


def rebuild_field(field: Field, manifest: Manifest, decoder: Decoder) -> Any:
    """Rebuild the value of one field."""
    if field.form == "array":
        spec = manifest.columns[field.column]
        if not isinstance(spec, Numbers):
            raise BundleError(f"field {field.key!r} is no column of numbers")
        return spec.array(decoder)
    values = decoder.column(field.column)
    if field.form == "value":
        if len(values) != 1:
            raise BundleError(f"field {field.key!r} has {len(values)} values, not one")
        return values[0]
    return tuple(values) if field.form == "tuple" else values


def lazy_field(field: Field, manifest: Manifest, decoder: Decoder, *, bundle: str) -> Any:
    """Give the rows of one field unbuilt; its value if it has no rows."""
    if field.form in ("array", "value"):
        return rebuild_field(field, manifest, decoder)
    spec = manifest.columns[field.column]

    def rebuild_later() -> list[Any]:
        with PausedCollector(), rebuilding(bundle):
            return decoder.column(field.column)

    rows = spec.lazy(decoder)
    return LazyList(spec.rows, rebuild_later, decoder.lock) if rows is None else rows
