"""What no hand-off can be faster than: copying the bytes once, and making the views.

Both are measured beside the arms, in the same processes.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from rollferry import _native
from rollferry.bench.workloads import Batch

__all__ = ["CopyFloor", "Measured", "ViewsFloor", "ndarray_columns"]

#: Floors by name: title, "put" or "get", whose floor it is, and seconds.
Measured = dict[str, tuple[str, str, float]]


class CopyFloor:
    """Contiguous copies of so many bytes into shared memory whose pages are there already.

    Parameters
    ----------
    nbytes
        How many.
    directory
        Where the shared memory is.
    """

    def __init__(self, nbytes: int, directory: str) -> None:
        self._source = np.ones(max(nbytes, 1), np.uint8)
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, self._source.nbytes)  # else a full tmpfs is a SIGBUS
            self._memory = mmap.mmap(file.fileno(), self._source.nbytes)
        self._target = np.frombuffer(self._memory, np.uint8)
        self._threads = len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self._threads)
        self.measure()  # warms pages and threads

    def measure(self) -> Measured:
        """Measure a copy by one thread, and by as many as there are cores."""
        measured = {"copy-1": ("copying it, 1 thread", "put", self._copy(1))}
        if self._threads > 1:
            title = f"copying it, {self._threads} threads"
            measured[f"copy-{self._threads}"] = (title, "put", self._copy(self._threads))
        return measured

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _copy(self, threads: int) -> float:
        edges = np.linspace(0, self._source.nbytes, threads + 1).astype(int).tolist()
        parts = [slice(start, end) for start, end in pairwise(edges)]
        start = time.perf_counter()
        if threads == 1:
            np.copyto(self._target, self._source)
        else:
            list(self._pool.map(lambda part: np.copyto(self._target[part], self._source[part]), parts))
        return time.perf_counter() - start


class ViewsFloor:
    """The C loop that cuts arrays into the rows that a batch has, and nothing else.

    Parameters
    ----------
    batch
        The batch; only its lists of numpy arrays count.
    """

    def __init__(self, batch: Batch) -> None:
        self._columns = ndarray_columns(batch)

    def measure(self) -> Measured:
        """Measure the making of all views; nothing for a batch without rows of arrays."""
        if not self._columns:
            return {}
        start = time.perf_counter()
        rows = [_native.split_rows(values, offsets) for values, offsets in self._columns]
        seconds = time.perf_counter() - start
        del rows
        return {"views": ("making its views in C", "get", seconds)}


def ndarray_columns(batch: Batch) -> list[tuple[Any, Any]]:
    """Give memory as large as all rows, and their offsets, for each field that is a list of arrays which fit together."""
    columns = []
    for value in batch.values():
        if not isinstance(value, list) or not value or {*map(type, value)} != {np.ndarray}:
            continue
        if value[0].ndim and len({(row.dtype, row.ndim, row.shape[1:]) for row in value}) == 1:
            offsets = np.concatenate([[0], np.cumsum([len(row) for row in value])]).astype(np.int64)
            # Not one byte of it is read or written.
            columns.append((np.empty((int(offsets[-1]), *value[0].shape[1:]), value[0].dtype), offsets))
    return columns
