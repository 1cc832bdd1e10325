"""Reading a bundle from its segment."""

import os
import stat
from collections.abc import Sequence

import numpy as np

from rollferry import _native
from rollferry.engines.base import Bytes
from rollferry.engines.shm.descriptors import opened_leased
from rollferry.engines.shm.directory import Directory
from rollferry.engines.shm.segment import HEADER_NBYTES, unpack_header
from rollferry.errors import BundleError, BundleNotFoundError, EngineError
from rollferry.memory.leases import bytes_of

__all__ = ["ShmReader", "gone"]


class ShmReader:
    """A bundle being read; see `Reader`. Its memory is a private, copy-on-write mapping of the segment.

    Parameters
    ----------
    directory
        Where it lies.
    key
        Key of the bundle.
    """

    def __init__(self, directory: Directory, key: str) -> None:
        with opened_leased(directory.live_path(key)) as fd:
            if fd is None:
                raise gone(key, directory)
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise BundleError(f"what is in the place of {key} is no segment of rollferry's")
            sizes = unpack_header(os.pread(fd, HEADER_NBYTES, 0), key, status.st_size)
            if sizes is None:
                raise BundleError(f"the segment of {key} holds another bundle")
            self.payload_nbytes, manifest_nbytes = sizes
            try:
                # By itself: that is faster than the page fault of a mapping.
                self.manifest = os.pread(fd, manifest_nbytes, HEADER_NBYTES + self.payload_nbytes)
                lease = _native.map_private(fd, HEADER_NBYTES + self.payload_nbytes)
            except MemoryError as error:
                raise EngineError(
                    f"the bundle {key} can't be mapped: memory, or the number of mappings of this process (vm.max_map_count), "
                    "is at its limit. Drop results earlier"
                ) from error
        self._memory: Bytes = bytes_of(lease)

    def fetch(self, ranges: Sequence[tuple[int, int]], *, writable: bool = True) -> list[Bytes]:
        payload = self._memory[HEADER_NBYTES:]
        return [payload[offset : offset + nbytes] for offset, nbytes in ranges]

    def close(self) -> None:
        self._memory = np.empty(0, np.uint8)


def gone(key: str, directory: Directory) -> BundleNotFoundError:
    """Say that a bundle is not there."""
    return BundleNotFoundError(f"there is no bundle {key} in {directory.root}: it was removed, or never put there")
