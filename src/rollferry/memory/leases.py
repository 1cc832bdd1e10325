"""Leased memory as arrays."""

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from rollferry import _native
from rollferry.errors import EngineFullError

__all__ = ["Bytes", "allocate", "bytes_of", "copy_bytes", "frozen", "gather", "lend", "threads_for"]

Bytes = npt.NDArray[np.uint8]
HUGE_PAGE = 2 << 20
THREAD_BYTES = 4 << 20  # below this many bytes a thread costs more than it saves
CPUS = len(os.sched_getaffinity(0))


def allocate(nbytes: int) -> Bytes:
    """Give zeroed private memory, aligned to a page. Raises EngineFullError where there is none.

    Much memory is in huge pages where the kernel has them: filling it takes a third of the time, for want of page faults.
    """
    try:
        if nbytes < 2 * HUGE_PAGE:
            return bytes_of(_native.allocate(max(nbytes, 1)))[:nbytes]
        memory = mmap.mmap(-1, nbytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (MemoryError, OverflowError, OSError) as error:
        raise EngineFullError(f"there is no memory for {nbytes:,} bytes", needed=nbytes, free=0) from error
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    data = np.frombuffer(memory, np.uint8)
    start = -data.ctypes.data % HUGE_PAGE
    return data[start : start + nbytes]


def copy_bytes(source: Bytes, dest: Bytes) -> None:
    """Copy contiguous bytes, on several threads if they are many, without the GIL."""
    gather(_native.spans_of_buffers([source]), dest, 0)


def gather(spans: _native.Spans, dest: Bytes, start: int) -> None:
    """Fill `dest` with the bytes of spans from `start` on, on several threads if they are many, without the GIL."""
    spans.gather(dest, start, threads_for(len(dest)))


def threads_for(nbytes: int) -> int:
    """Give the number of threads that work on so many bytes is worth."""
    return min(CPUS, 1 + nbytes // THREAD_BYTES)


def bytes_of(lease: _native.Lease | _native.Spans) -> Bytes:
    """Give the memory of a lease, or of spans in one piece; it lives as long as the array or any view of it."""
    # numpy's type hints know no buffers but those of the standard library.
    return np.frombuffer(cast(Any, lease), np.uint8)


def lend(memory: Bytes, start: int, nbytes: int, give_back: Callable[[], object]) -> Bytes:
    """Give a part of some memory, of at least one byte; `give_back` is called when the last view of that part dies."""
    holder = (ctypes.c_ubyte * nbytes).from_buffer(memory.data, start)
    weakref.finalize(holder, give_back).atexit = False
    return bytes_of(holder)  # type: ignore[arg-type]  # any buffer serves


def frozen(data: Bytes) -> Bytes:
    """Give the same memory as an array that can't be made writable again."""
    return np.frombuffer(data.data.toreadonly(), np.uint8)
