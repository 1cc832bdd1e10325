"""Rebuilding fields whose bytes were fetched."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from rollferry.bundle.manifest import Field
from rollferry.bundle.request import Place
from rollferry.errors import BundleError, EngineFullError, RollferryError, SelectionError
from rollferry.layouts.base import Int64Array
from rollferry.layouts.decoder import Decoder
from rollferry.layouts.indexed import take_rows
from rollferry.layouts.lazy import LazyList, LazyRows
from rollferry.layouts.numbers import Numbers
from rollferry.layouts.optional import load

__all__ = ["Found", "PausedCollector", "check_offsets", "lazy_field", "packed_field", "rebuild_field", "rebuilding"]


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
    indices
        Rows to take once it is rebuilt.
    """

    place: Place
    field: Field
    decoder: Decoder
    indices: Int64Array | None = None


@contextmanager
def rebuilding(key: str) -> Iterator[None]:
    """Turn what goes wrong in reading a bundle into BundleError."""
    try:
        yield
    except BundleError as error:
        if f"bundle {key}" in str(error):  # an engine's own
            raise
        raise type(error)(f"bundle {key}: {error}") from error
    except (MemoryError, EngineFullError) as error:
        error.add_note(f"bundle {key} was being read; drop results earlier, or read some of its fields or rows")
        raise
    except (RollferryError, TimeoutError):  # a signal handler's too
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


def rebuild_field(found: Found) -> Any:
    """Rebuild the value of one field."""
    _, field, decoder, indices = found
    if field.form == "array":
        spec = decoder.specs[field.column]
        if not isinstance(spec, Numbers):
            raise BundleError(f"field {field.key!r} is no column of numbers")
        return spec.array(decoder)
    values = decoder.column(field.column)
    if field.form == "value":
        if len(values) != 1:
            raise BundleError(f"field {field.key!r} has {len(values)} values, not one")
        return values[0] if indices is None else take_rows(values[0], indices, readonly=decoder.readonly)
    return tuple(values) if field.form == "tuple" else values


def lazy_field(found: Found, *, bundle: str) -> Any:
    """Give the rows of one field unbuilt; its value if it has no rows."""
    _, field, decoder, _ = found
    if field.form in ("array", "value"):
        return rebuild_field(found)
    spec = decoder.specs[field.column]

    def rebuild_later() -> list[Any]:
        with PausedCollector(), rebuilding(bundle):
            return decoder.column(field.column)

    rows = spec.lazy(decoder)
    return LazyList(spec.rows, rebuild_later, decoder.lock) if rows is None else rows


def packed_field(found: Found) -> LazyRows:
    """Give the rows of one field as values and offsets. Raises SelectionError where it has none such."""
    _, field, decoder, _ = found
    rows = packed_value(rebuild_field(found)) if field.form == "value" else decoder.specs[field.column].packed(decoder)
    if rows is None:
        raise SelectionError(
            f"field {field.key!r} has no rows that could be packed: arrays of one dtype that differ in their first axis at "
            "most, or lists of numbers of one type, without None"
        )
    rows = LazyRows(rows.values, rows.offsets.copy())  # as in Decoder.places
    check_offsets(rows, field.key)
    return rows


def packed_value(value: Any) -> LazyRows | None:
    """Give the rows of one array, or the components of a nested tensor, as values and offsets; None for anything else."""
    if getattr(value, "is_nested", False) is True:
        rows: LazyRows | None = load("torch").packed_components(value)
        return rows
    torch = sys.modules.get("torch")
    if not (type(value) is np.ndarray or (torch is not None and isinstance(value, torch.Tensor))):
        return None
    if value.ndim < 2 or value.dtype == object:
        return None
    count, length = value.shape[:2]
    return LazyRows(value.reshape(count * length, *value.shape[2:]), np.arange(count + 1, dtype=np.int64) * length)


def check_offsets(rows: LazyRows, key: object) -> None:
    """Raise BundleError unless offsets rise from 0 to the number of values: kernels read where they say."""
    offsets = rows.offsets
    if offsets[0] != 0 or offsets[-1] != len(rows.values) or (np.diff(offsets) < 0).any():
        raise BundleError(f"the offsets of field {key!r} don't fit its values")
