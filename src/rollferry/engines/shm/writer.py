"""Writing a bundle into a segment and making it visible."""

import contextlib
import errno
import os
import time
from collections.abc import Sequence

import numpy as np

from rollferry import _native
from rollferry.engines.base import Bytes
from rollferry.engines.shm import claims
from rollferry.engines.shm.claims import Claim
from rollferry.engines.shm.descriptors import close_file, names, open_file
from rollferry.engines.shm.directory import Directory
from rollferry.engines.shm.guarantees import PATIENCE, PAUSE, Guarantees
from rollferry.engines.shm.mappings import Mapping, Mappings
from rollferry.engines.shm.peaks import Peaks
from rollferry.engines.shm.pool import BLOCK, Pool, Segment
from rollferry.engines.shm.segment import HEADER_NBYTES, READER_BYTE, WRITER_BYTE, capacity_for, pack_header
from rollferry.errors import EngineError, EngineFullError
from rollferry.memory.leases import bytes_of

__all__ = ["ShmWriter"]

# Giving pages to a mapping of a full tmpfs is EFAULT.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG, errno.EFAULT)


class ShmWriter:
    """A bundle being written; see `Writer`. Nothing is taken before `acquire`.

    Parameters
    ----------
    directory, pool, mappings
        Where it goes, where segments come from, and mappings of them.
    guarantees, peaks
        Of all namespaces.
    key
        Key of the bundle.
    payload_nbytes, manifest_nbytes
        What it needs.
    """

    def __init__(
        self,
        directory: Directory,
        pool: Pool,
        mappings: Mappings,
        *,
        guarantees: Guarantees,
        peaks: Peaks,
        key: str,
        payload_nbytes: int,
        manifest_nbytes: int,
    ) -> None:
        self._directory = directory
        self._pool = pool
        self._mappings = mappings
        self._guarantees = guarantees
        self._peaks = peaks
        self._key = key
        self._payload_nbytes = payload_nbytes
        self._manifest_nbytes = manifest_nbytes
        self._segment: Segment | None = None
        self._mapping: Mapping | None = None
        self._claim: Claim | None = None
        self._memory: Bytes = np.empty(0, np.uint8)
        self.chunks: Sequence[Bytes] = []

    def acquire(self) -> None:
        """Take a segment, free or new, and map it."""
        nbytes = HEADER_NBYTES + self._payload_nbytes + self._manifest_nbytes
        try:
            self._segment = self._pool.take(nbytes, self._mappings.segments())
            if self._segment is None and self._pool.sweep():
                self._segment = self._pool.take(nbytes, ())
            if self._segment is None:
                self._segment = create(self._directory, capacity_for(nbytes))
            self._claim = self._guarantees.admit(self._key, self._segment.capacity, lacking(self._segment))
            self._mapping = self._entitled(self._segment)
            self._claim = self._guarantees.taken(self._claim)
        except BaseException:
            self.abort()
            raise
        self._memory = bytes_of(self._mapping.lease)
        if self._payload_nbytes:
            self.chunks = [self._memory[HEADER_NBYTES : HEADER_NBYTES + self._payload_nbytes]]

    def _entitled(self, segment: Segment) -> Mapping:
        """Map a segment with all its memory; what is guaranteed to the namespace may be on its way back from others."""
        late = time.monotonic() + PATIENCE
        while True:
            try:
                return self._mapped(segment)
            except EngineFullError:
                if self._claim is None or time.monotonic() > late or not self._guarantees.cover(self._key):
                    raise
                time.sleep(PAUSE)

    def _mapped(self, segment: Segment) -> Mapping:
        """Map a segment with all its memory, at the cost of the pool where it must be."""
        try:
            return self._map(segment)
        except OSError as error:
            if error.errno not in FULL:
                raise
        self._pool.sweep()
        self._mappings.prune()
        try:
            if not self._directory.lacks(lacking(segment) - self._pool.nbytes()):  # otherwise it would be lost in vain
                self._pool.trim(0)
            return self._map(segment)
        except OSError as error:
            if error.errno not in FULL:
                raise
            free = self._directory.free_nbytes()
            raise EngineFullError(
                f"{self._directory.root} is full: the bundle needs {segment.capacity:,} bytes, {free:,} are free. Remove "
                "bundles that were read, or make the file system larger (in a container: --shm-size=16g)",
                needed=segment.capacity,
                free=free,
            ) from error

    def _map(self, segment: Segment) -> Mapping:
        if self._directory.lacks(lacking(segment)):
            raise OSError(errno.ENOSPC, "no space is left")  # before what there is gets lost to others for a while
        try:
            if os.fstat(segment.fd).st_size < segment.capacity:
                os.ftruncate(segment.fd, segment.capacity)
            return self._mappings.take(segment.fd, segment.capacity)
        except OSError:
            os.ftruncate(segment.fd, 0)  # what memory it got is for others
            raise

    def publish(self, manifest: bytes) -> None:
        segment = self._segment
        if segment is None:
            raise EngineError("the bundle was published or aborted already")
        if len(manifest) != self._manifest_nbytes:
            raise EngineError(f"{self._manifest_nbytes} bytes were announced for the manifest, not {len(manifest)}")
        start = HEADER_NBYTES + self._payload_nbytes
        self._memory[start : start + len(manifest)] = np.frombuffer(manifest, np.uint8)
        header = pack_header(self._key, self._payload_nbytes, len(manifest))
        self._memory[:HEADER_NBYTES] = np.frombuffer(header, np.uint8)
        target = self._directory.live_path(self._key)
        # Readers may lock it from the moment it is visible; that it is not swept before is the other lock's doing.
        _native.unlock(segment.fd, READER_BYTE)
        try:
            if segment.path is None:
                # An absolute path makes the directory descriptor irrelevant, but with one link() follows the symlink.
                os.link(f"/proc/self/fd/{segment.fd}", target, src_dir_fd=segment.fd, follow_symlinks=True)
            else:
                os.rename(segment.path, target)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.abort()
            raise EngineError(f"the bundle can't be published as {target}: {error}") from error
        self._end(keep=True)
        self._peaks.by_the_way()

    def abort(self) -> None:
        path = None if self._segment is None else self._segment.path
        try:
            if path is not None:
                self._pool.put_back(path)
        finally:
            self._end(keep=path is not None)

    def _end(self, *, keep: bool) -> None:
        self.chunks = []
        self._memory = np.empty(0, np.uint8)
        claim, self._claim = self._claim, None
        claims.withdraw(claim)
        segment, self._segment = self._segment, None
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            (self._mappings.keep if keep else self._mappings.drop)(mapping)
        if segment is not None:
            close_file(segment.fd)


def lacking(segment: Segment) -> int:
    """Give the bytes of memory that a segment doesn't have yet."""
    return max(0, segment.capacity - os.fstat(segment.fd).st_blocks * BLOCK)


def create(directory: Directory, capacity: int) -> Segment:
    """Create an empty file, locked whole: without a name, so that it vanishes with its writer, where that is possible."""
    while True:
        segment = open_new(directory, capacity)
        locked = _native.try_lock(segment.fd, WRITER_BYTE, True) and _native.try_lock(segment.fd, READER_BYTE, True)
        # One with a name may be swept between opening and locking.
        if locked and (segment.path is None or names(segment.path, segment.fd)):
            return segment
        close_file(segment.fd)


def open_new(directory: Directory, capacity: int) -> Segment:
    """Open a new file."""
    try:
        fd = open_file(str(directory.tmp), os.O_TMPFILE | os.O_RDWR)
        path = None
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        path = directory.new_path()
        fd = open_file(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    if fd is None:
        raise FileNotFoundError(errno.ENOENT, "the directory is gone", str(directory.tmp))
    return Segment(fd, capacity, path)
