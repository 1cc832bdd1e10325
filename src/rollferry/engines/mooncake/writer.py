"""Writing a bundle: packed into registered memory, sent from there; the root last."""

from rollferry.engines.mooncake.client import Client
from rollferry.engines.mooncake.frame import HEADER_NBYTES, Frame, chunk_key, root_key
from rollferry.engines.mooncake.pool import Region
from rollferry.errors import EngineError
from rollferry.memory.leases import Bytes

__all__ = ["MooncakeWriter"]


class MooncakeWriter:
    """A bundle being written; see `Writer`.

    Parameters
    ----------
    client
        Sends it.
    key
        Its key.
    payload_nbytes, manifest_nbytes
        Its lengths.
    """

    def __init__(self, client: Client, key: str, payload_nbytes: int, manifest_nbytes: int) -> None:
        whole = HEADER_NBYTES + payload_nbytes + manifest_nbytes <= client.options.chunk or not payload_nbytes
        self._client = client
        self._key = key
        self._frame = Frame(payload_nbytes, manifest_nbytes, 0 if whole else client.options.chunk)
        self._regions: list[Region] = []
        self._ended = False
        try:
            self._lend()
        except BaseException:
            self.abort()
            raise

    def _lend(self) -> None:
        frame = self._frame
        for nbytes in (frame.root_nbytes, *frame.chunk_sizes):
            self._regions.append(self._client.pool.acquire(nbytes))
        root, *chunks = self._regions
        if frame.chunk_nbytes:
            sizes = frame.chunk_sizes
            self.chunks: list[Bytes] = [region.memory[:n] for region, n in zip(chunks, sizes, strict=True)]
        else:
            payload = root.memory[HEADER_NBYTES : HEADER_NBYTES + frame.payload_nbytes]
            self.chunks = [payload] if len(payload) else []

    def publish(self, manifest: bytes) -> None:
        if self._ended:
            raise EngineError("the bundle was published or aborted already")
        if len(manifest) != self._frame.manifest_nbytes:
            raise EngineError(f"the manifest has {len(manifest)} bytes, {self._frame.manifest_nbytes} were announced")
        with self._client.at_work():
            self._send(manifest)
        self.abort()

    def _send(self, manifest: bytes) -> None:
        root, *chunks = self._regions
        root.memory[:HEADER_NBYTES] = bytearray(self._frame.dump())
        end = self._frame.root_nbytes
        root.memory[end - len(manifest) : end].data[:] = manifest
        keys = [chunk_key(self._key, number) for number in range(len(chunks))]
        if chunks:
            self._client.put(keys, [region.address for region in chunks], self._frame.chunk_sizes)
        try:
            self._client.put([root_key(self._key)], [root.address], [end])
        except BaseException as error:
            if keys:
                self._client.discard_after(error, keys)
            raise

    def abort(self) -> None:
        self._ended = True
        self.chunks = []
        while self._regions:
            self._client.pool.release(self._regions.pop())
