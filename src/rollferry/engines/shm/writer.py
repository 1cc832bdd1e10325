"""Writing a bundle into a segment and making it visible."""

import errno
import os
from collections.abc import Sequence

import numpy as np

from rollferry import _native
from rollferry.engines.base import Bytes
from rollferry.engines.shm.directory import Directory
from rollferry.engines.shm.pool import Pool, Segment
from rollferry.engines.shm.segment import HEADER_NBYTES, READER_BYTE, WRITER_BYTE, capacity_for, pack_header
from rollferry.errors import EngineError, EngineFullError
from rollferry.memory.leases import bytes_of

__all__ = ["ShmWriter"]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EFBIG)


class ShmWriter:
    """A bundle being written; see `Writer`.

    Parameters
    ----------
    directory, pool
        Where it goes, and where segments come from.
    key
        Key of the bundle.
    payload_nbytes, manifest_nbytes
        What it needs.
    """

    def __init__(self, directory: Directory, pool: Pool, key: str, payload_nbytes: int, manifest_nbytes: int) -> None:
        self._directory = directory
        self._pool = pool
        self._key = key
        self._payload_nbytes = payload_nbytes
        self._manifest_nbytes = manifest_nbytes
        nbytes = HEADER_NBYTES + payload_nbytes + manifest_nbytes
        segment = pool.take(nbytes) or create(directory, pool, nbytes)
        self._segment: Segment | None = segment
        try:
            self._memory: Bytes = bytes_of(pool.mapping(segment))
        except BaseException:
            self.abort()
            raise
        payload = self._memory[HEADER_NBYTES : HEADER_NBYTES + payload_nbytes]
        self.chunks: Sequence[Bytes] = [payload] if payload_nbytes else []

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
            self.abort()
            raise EngineError(f"the bundle can't be published as {target}: {error}") from error
        self._end()

    def abort(self) -> None:
        if self._segment is not None and self._segment.path is not None:
            self._pool.put_back(self._segment.path)
        self._end()

    def abandon(self) -> None:
        """Drop the descriptor in the child of a fork; the parent goes on writing."""
        self._end()

    def _end(self) -> None:
        self.chunks = []
        segment, self._segment = self._segment, None  # first, since a fork during close() would close it again
        if segment is not None:
            os.close(segment.fd)


def create(directory: Directory, pool: Pool, nbytes: int) -> Segment:
    """Create a segment, locked whole, with all its memory reserved."""
    segment = open_new(directory, capacity_for(nbytes))
    try:
        if not (_native.try_lock(segment.fd, WRITER_BYTE, True) and _native.try_lock(segment.fd, READER_BYTE, True)):
            raise EngineError(f"a new segment in {directory.root} is locked by somebody else")
        reserve(segment, directory, pool)
    except BaseException:
        if segment.path is not None:
            segment.path.unlink(missing_ok=True)
        os.close(segment.fd)
        raise
    return segment


def open_new(directory: Directory, capacity: int) -> Segment:
    """Open a file without a name, which vanishes with its writer; with one where the file system can't."""
    try:
        fd = os.open(directory.tmp, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        return Segment(fd, capacity, None)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    path = directory.tmp_path()
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    return Segment(fd, capacity, path)


def reserve(segment: Segment, directory: Directory, pool: Pool) -> None:
    """Reserve all memory of a segment, so that no write to it can fail; at the cost of the pool where it must be."""
    for last in (False, True):
        try:
            os.posix_fallocate(segment.fd, 0, segment.capacity)
            return
        except OSError as error:
            if error.errno not in FULL:
                raise
            os.ftruncate(segment.fd, 0)
            if not last:
                pool.trim(0)
                continue
            free = directory.free_nbytes()
            raise EngineFullError(
                f"{directory.root} is full: the bundle needs {segment.capacity:,} bytes, {free:,} are free. Remove bundles "
                "that were read, or make the file system larger (in a container: --shm-size=16g)",
                needed=segment.capacity,
                free=free,
            ) from error
