"""The engine over Mooncake Store."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rollferry.engines.base import Reader, Ready, Usage, Writer
from rollferry.engines.mooncake.client import Client
from rollferry.engines.mooncake.frame import PREFIX, chunk_key, key_of_root, root_key
from rollferry.engines.mooncake.reader import MooncakeReader
from rollferry.engines.mooncake.writer import MooncakeWriter
from rollferry.errors import FerryClosedError

__all__ = ["MooncakeEngine"]

FIRST, STEP = 8, 64  # chunks that are removed at once; a chunk may be missing, but hardly so many in a row


class MooncakeEngine:
    """Bundles in Mooncake Store; see `Engine`.

    Parameters
    ----------
    client
        The process's client; the engine is one user of it.
    """

    scheme = "mooncake"
    networked = True

    def __init__(self, client: Client) -> None:
        self._client: Client | None = client

    @contextmanager
    def _using(self) -> Iterator[Client]:
        client = self._client
        if client is None:
            raise FerryClosedError("the engine is closed; connect again")
        with client.at_work():
            yield client

    def begin(self, key: str, payload_nbytes: int, manifest_nbytes: int, ready: Sequence[Ready] = ()) -> Writer:
        with self._using() as client:
            return MooncakeWriter(client, key, payload_nbytes, manifest_nbytes, ready)

    def open(self, key: str) -> Reader:
        with self._using() as client:
            return MooncakeReader(client, key)

    def remove(self, key: str) -> bool:
        # The root first, as readers look for it last. How many chunks there are is found out by removing them.
        with self._using() as client:
            removed, *more = client.discard([root_key(key), *(chunk_key(key, number) for number in range(FIRST))])
            start = FIRST
            while any(more):
                more = client.discard([chunk_key(key, number) for number in range(start, start + STEP)])
                start += STEP
            return removed

    def list(self) -> list[str]:
        with self._using() as client:
            return [key for key in map(key_of_root, client.all_keys()) if key is not None]

    def usage(self) -> Usage:
        with self._using() as client:
            sizes = client.sizes([name for name in client.all_keys() if name.startswith(PREFIX)])
            bundles = sum(key_of_root(name) is not None for name in sizes)
            return Usage(bundles=bundles, live_nbytes=sum(sizes.values()), pooled_nbytes=client.pool.free_nbytes)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
