"""A pass over every byte of a batch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import xxhash

from rollferry import LazyList, LazyRows
from rollferry.bench.workloads import Batch

__all__ = ["touch"]

_NUMBERS = {int, float, bool, type(None)}


def touch(batch: Batch) -> None:
    """Read every byte of all arrays, tensors and texts, and look at every other object."""
    digest = xxhash.xxh3_64()
    todo: list[Any] = list(batch.values())
    while todo:
        value = todo.pop()
        if isinstance(value, np.ndarray) and value.dtype != object:
            digest.update(_readable(value))
        elif isinstance(value, LazyRows):
            todo += (value.values, value.offsets)
        elif isinstance(value, list | tuple | np.ndarray | LazyList):
            # Finding the types reads every item; numbers need no more.
            if not {*map(type, value)} <= _NUMBERS:
                todo.extend(value)
        elif isinstance(value, dict):
            todo.extend(value.values())
        elif isinstance(value, bytes | bytearray):
            digest.update(value)
        elif isinstance(value, str):
            hash(value)  # reads it, without making its bytes first
        elif _is_tensor(value):
            todo.append(_bytes_of(value))


def _readable(array: Any) -> Any:
    """Give an array as something that can be hashed: itself if possible, for there may be very many."""
    plain = array.flags.c_contiguous and array.dtype.kind in "biufc"
    return array if plain else np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _bytes_of(tensor: Any) -> Any:
    """Give the bytes of a tensor."""
    import torch  # here, for it is an extra, which is there if tensors are

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
