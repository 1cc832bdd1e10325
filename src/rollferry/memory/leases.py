"""Leased memory as arrays."""

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from rollferry import _native

__all__ = ["Bytes", "bytes_of", "frozen"]

Bytes = npt.NDArray[np.uint8]


def bytes_of(lease: _native.Lease) -> Bytes:
    """Give the memory of a lease; the lease lives as long as the array or any view of it."""
    # numpy's type hints know no buffers but those of the standard library.
    return np.frombuffer(cast(Any, lease), np.uint8)


def frozen(data: Bytes) -> Bytes:
    """Give the same memory as an array that can't be made writable again."""
    return np.frombuffer(data.data.toreadonly(), np.uint8)
