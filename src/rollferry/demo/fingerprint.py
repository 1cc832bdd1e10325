"""A strong digest of a batch, by a walk that shares no code with the ferry.

The producer sends it beside the ref, and the receiver computes it again: a batch that lost a type, an order, a
shape or a single bit on its way has another digest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["differing_fields", "fingerprint"]


def fingerprint(batch: dict[str, Any]) -> dict[str, str]:
    """Return a digest for each field, in the fields' order.

    Parameters
    ----------
    batch : dict
        Fields of arrays, numpy scalars, numbers, text, bytes, ``None``, and dicts, lists and tuples of these.

    Raises
    ------
    TypeError
        The batch holds a value of another type.
    """
    return {name: _digest(value) for name, value in batch.items()}


def differing_fields(sent: dict[str, str], received: dict[str, str]) -> list[str]:
    """Return the names of fields that are missing, added, changed or out of order; empty when all is equal."""
    names = dict.fromkeys([*sent, *received])
    different = [name for name in names if sent.get(name) != received.get(name)]
    if not different and list(sent) != list(received):
        return list(received)
    return different


def _digest(value: Any) -> str:
    """Return the digest of one field."""
    pieces: list[bytes] = []
    _walk(value, pieces.append)
    return hashlib.blake2b(b"".join(pieces), digest_size=16).hexdigest()


def _walk(value: Any, emit: Callable[[bytes], None]) -> None:
    """Emit type, size and bits of a value and of all that it holds."""
    kind = type(value)
    if kind is np.ndarray:
        emit(b"A%b%b|" % (value.dtype.str.encode(), repr(value.shape).encode()))
        emit(value.tobytes())
    elif kind is list or kind is tuple:
        emit(b"%c%d|" % (b"L" if kind is list else b"T", len(value)))
        for item in value:
            _walk(item, emit)
    elif kind is dict:
        emit(b"D%d|" % len(value))
        for key, item in value.items():
            _walk(key, emit)
            _walk(item, emit)
    elif isinstance(value, np.generic):
        emit(b"G%b|" % value.dtype.str.encode())
        emit(value.tobytes())
    else:
        emit(_leaf(value))


def _leaf(value: Any) -> bytes:
    """Return the tagged bits of a Python scalar."""
    kind = type(value)
    if value is None:
        return b"N|"
    if kind is bool:
        return b"B1|" if value else b"B0|"
    if kind is int:
        return b"I%d|" % value
    if kind is float:
        return b"F" + struct.pack("<d", value)
    if kind is complex:
        return b"C" + struct.pack("<dd", value.real, value.imag)
    if kind is str:
        text = value.encode("utf-8", "surrogatepass")
        return b"S%d|%b" % (len(text), text)
    if kind is bytes:
        return b"Y%d|%b" % (len(value), value)
    raise TypeError(f"cannot fingerprint a value of type {kind.__module__}.{kind.__qualname__}")
