"""Reading a bundle into registered memory that the result then keeps: its root at once, its chunks as they are asked for."""

from collections.abc import Sequence

import numpy as np

from rollferry.engines.mooncake.client import Client
from rollferry.engines.mooncake.frame import HEADER_NBYTES, Frame, chunk_key, root_key
from rollferry.engines.mooncake.statuses import MISSING
from rollferry.errors import BundleError, BundleNotFoundError
from rollferry.memory.leases import Bytes, allocate, copy_bytes, frozen
from rollferry.memory.pieces import Pieces
from rollferry.memory.plan import ALIGNMENT

__all__ = ["MooncakeReader", "missing"]

NEAR = 64 << 10  # bytes between two ranges that are read along: a range by itself takes the time of about so many


class MooncakeReader:
    """A bundle being read; see `Reader`.

    A payload in the root comes with it, and a removal afterwards is of no importance. One in chunks is read when it is asked
    for: all of it where half of it is wanted, which takes one call, and otherwise the ranges.

    Parameters
    ----------
    client
        Reads it.
    key
        Its key.
    """

    def __init__(self, client: Client, key: str) -> None:
        self._client = client
        self._key = key
        self.manifest, self._frame, self._payload = load_root(client, key)
        self.payload_nbytes = self._frame.payload_nbytes
        self._shared = False  # whether the payload was given, to be read only

    def fetch(self, ranges: Sequence[tuple[int, int]], *, writable: bool = True) -> list[Bytes]:
        wanted = self._wanted(ranges)
        if not wanted.nbytes:
            return [np.empty(0, np.uint8) for _ in ranges]
        whole = wanted.nbytes >= self.payload_nbytes
        if self._payload is None:
            with self._client.at_work():
                found = load(self._client, self._key, self._frame, wanted)
            if not whole:
                return wanted.views(found, ranges)
            self._payload = found
        if not whole or (writable and self._shared):
            return wanted.views(copied(self._payload, wanted), ranges)
        payload = self._payload
        if writable:
            self._payload = None  # what is given away is no longer ours
        else:
            payload = frozen(payload)
            self._shared = True
        return wanted.views(payload, ranges)

    def close(self) -> None:
        self._payload = None

    def _wanted(self, ranges: Sequence[tuple[int, int]]) -> Pieces:
        """Give the pieces that are to be read, or all of the payload as one."""
        half = self.payload_nbytes / 2
        if sum(nbytes for _, nbytes in ranges) < half:
            pieces = Pieces.of(ranges, NEAR if self._payload is None else ALIGNMENT - 1)
            if pieces.nbytes < half:
                return pieces
        return Pieces.whole(self.payload_nbytes)


def load_root(client: Client, key: str) -> tuple[bytes, Frame, Bytes | None]:
    """Read the manifest, and the payload unless it is in chunks."""
    name = root_key(key)
    nbytes = client.size(name)
    if nbytes is None:
        raise missing(key)
    root = client.pool.acquire(nbytes)
    try:
        status = client.get([name], [root.address], [nbytes])[0]
        if status == MISSING:
            raise missing(key)
        if status != nbytes:
            raise BundleError(f"bundle {key}: {status} bytes were read of {nbytes}")
        try:
            frame = Frame.load(root.memory[:HEADER_NBYTES].tobytes(), nbytes)
        except BundleError as error:
            check_present(client, key)
            raise BundleError(f"bundle {key}: {error}") from None
        manifest = root.memory[nbytes - frame.manifest_nbytes : nbytes].tobytes()
        if not frame.chunk_nbytes:
            check_present(client, key)
    except BaseException:
        client.pool.release(root)
        raise
    if frame.chunk_nbytes:
        client.pool.release(root)
        return manifest, frame, None
    return manifest, frame, client.pool.lease(root, HEADER_NBYTES, frame.payload_nbytes)


def load(client: Client, key: str, frame: Frame, pieces: Pieces) -> Bytes:
    """Read pieces of a payload."""
    region = client.pool.acquire(pieces.nbytes)
    try:
        read(client, key, frame, pieces, region.address)
        check_present(client, key)
    except BaseException:
        client.pool.release(region)
        raise
    return client.pool.lease(region, 0, pieces.nbytes)


def read(client: Client, key: str, frame: Frame, pieces: Pieces, address: int) -> None:
    """Read pieces of a payload into registered memory, chunks side by side."""
    in_root = not frame.chunk_nbytes
    parts: dict[str, list[tuple[int, int, int]]] = {}
    for number, offset, nbytes, place in pieces.cut(frame.chunk_nbytes or frame.payload_nbytes):
        name = root_key(key) if in_root else chunk_key(key, number)
        parts.setdefault(name, []).append((address + place, nbytes, offset + in_root * HEADER_NBYTES))
    names = list(parts)
    addresses, sizes, offsets = ([[part[n] for part in of_one] for of_one in parts.values()] for n in range(3))
    wanted = [sum(of_one) for of_one in sizes]
    if wanted == frame.chunk_sizes:
        statuses = client.get(names, [of_one[0] for of_one in addresses], wanted)
    else:
        statuses = client.get_ranges(names, addresses, sizes, offsets)
    for name, nbytes, status in zip(names, wanted, statuses, strict=True):
        if status == nbytes:
            continue
        check_present(client, key)
        if status == MISSING:
            raise BundleError(
                f"bundle {key}: chunk {name.rpartition('/')[2]} of {len(frame.chunk_sizes)} is gone: it was evicted, or the "
                f"process that lent its memory ended"
            )
        raise BundleError(f"bundle {key}: {status} bytes were read of the {nbytes} of {name}")


def check_present(client: Client, key: str) -> None:
    """Raise BundleNotFoundError if a bundle was removed.

    A forced removal frees memory while it is read. Its first step is the root: if that is still there, what was read is good.
    """
    if not client.exists(root_key(key)):
        raise missing(key)


def copied(payload: Bytes, pieces: Pieces) -> Bytes:
    """Copy pieces of a payload to memory of their own."""
    memory = allocate(pieces.nbytes)
    for start, stop, place in pieces:
        copy_bytes(payload[start:stop], memory[place : place + stop - start])
    return memory


def missing(key: str) -> BundleNotFoundError:
    """Make the error of a bundle that isn't there."""
    return BundleNotFoundError(
        f"there is no bundle {key}: it was removed, or the master was restarted, or the process that lent its memory ended"
    )
