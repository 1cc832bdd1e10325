"""Reading a bundle: all of it at once, into registered memory that the result then keeps."""

from collections.abc import Sequence

from rollferry.engines.mooncake.client import Client
from rollferry.engines.mooncake.frame import HEADER_NBYTES, Frame, chunk_key, root_key
from rollferry.engines.mooncake.pool import Region
from rollferry.engines.mooncake.statuses import MISSING
from rollferry.errors import BundleError, BundleNotFoundError
from rollferry.memory.leases import Bytes

__all__ = ["MooncakeReader"]


class MooncakeReader:
    """A bundle being read; see `Reader`.

    It reads everything when it is opened, so that a removal afterwards is of no importance to it.

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
        self.manifest, self._payload = load(client, key)
        self.payload_nbytes = len(self._payload)
        self._fetched = False

    def fetch(self, ranges: Sequence[tuple[int, int]], *, writable: bool = True) -> list[Bytes]:
        if self._fetched and ranges:
            with self._client.at_work():
                self._payload = load(self._client, self._key)[1]  # what was given away is no longer ours
        self._fetched = self._fetched or bool(ranges)
        return [self._payload[offset : offset + nbytes] for offset, nbytes in ranges]

    def close(self) -> None:
        self._payload = self._payload[:0].copy()


def load(client: Client, key: str) -> tuple[bytes, Bytes]:
    """Read manifest and payload of a bundle."""
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
        manifest, payload, start, frame = parse(client, key, root, nbytes)
    except BaseException:
        client.pool.release(root)
        raise
    if payload is not root:
        client.pool.release(root)
    try:
        # A forced removal frees memory while it is read. Its first step is the root: if that is there, all was.
        if not client.exists(name):
            raise missing(key)
    except BaseException:
        client.pool.release(payload)
        raise
    return manifest, client.pool.lease(payload, start, frame.payload_nbytes)


def parse(client: Client, key: str, root: Region, nbytes: int) -> tuple[bytes, Region, int, Frame]:
    """Give the manifest, and the region and place of the payload."""
    try:
        frame = Frame.load(root.memory[:HEADER_NBYTES].tobytes(), nbytes)
    except BundleError as error:
        if not client.exists(root_key(key)):
            raise missing(key) from None
        raise BundleError(f"bundle {key}: {error}") from None
    manifest = root.memory[nbytes - frame.manifest_nbytes : nbytes].tobytes()
    if not frame.chunk_nbytes:
        return manifest, root, HEADER_NBYTES, frame
    payload = client.pool.acquire(frame.payload_nbytes)
    try:
        load_chunks(client, key, payload, frame)
    except BaseException:
        client.pool.release(payload)
        raise
    return manifest, payload, 0, frame


def load_chunks(client: Client, key: str, payload: Region, frame: Frame) -> None:
    """Read all chunks, side by side."""
    sizes = frame.chunk_sizes
    keys = [chunk_key(key, number) for number in range(len(sizes))]
    addresses = [payload.address + number * frame.chunk_nbytes for number in range(len(sizes))]
    for number, status in enumerate(client.get(keys, addresses, sizes)):
        if status == sizes[number]:
            continue
        if not client.exists(root_key(key)):
            raise missing(key)
        if status == MISSING:
            raise BundleError(
                f"bundle {key}: chunk {number} of {len(sizes)} is gone: it was evicted, or the process that lent its "
                f"memory ended"
            )
        raise BundleError(f"bundle {key}: {status} bytes were read of the {sizes[number]} of chunk {number}")


def missing(key: str) -> BundleNotFoundError:
    """Make the error of a bundle that isn't there."""
    return BundleNotFoundError(
        f"there is no bundle {key}: it was removed, or the master was restarted, or the process that lent its memory ended"
    )
