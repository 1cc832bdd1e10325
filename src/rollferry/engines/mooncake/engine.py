"""The engine over Mooncake Store."""

from rollferry.engines.base import Reader, Usage, Writer
from rollferry.engines.mooncake.client import Client
from rollferry.engines.mooncake.frame import PREFIX, chunk_key, key_of_root, root_key
from rollferry.engines.mooncake.reader import MooncakeReader
from rollferry.engines.mooncake.writer import MooncakeWriter
from rollferry.errors import FerryClosedError

__all__ = ["MooncakeEngine"]

STEP = 64  # chunks that are removed at once


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
        self._shared: Client | None = client

    @property
    def _client(self) -> Client:
        client = self._shared
        if client is None:
            raise FerryClosedError("the engine is closed; connect again")
        client.check_process()
        return client

    def begin(self, key: str, payload_nbytes: int, manifest_nbytes: int) -> Writer:
        return MooncakeWriter(self._client, key, payload_nbytes, manifest_nbytes)

    def open(self, key: str) -> Reader:
        return MooncakeReader(self._client, key)

    def remove(self, key: str) -> bool:
        # The root first, as readers look for it last. How many chunks there are is found out by removing them.
        client = self._client
        removed, more = client.discard([root_key(key), chunk_key(key, 0)])
        start = 1
        while more:
            more = all(client.discard([chunk_key(key, number) for number in range(start, start + STEP)]))
            start += STEP
        return removed

    def list(self) -> list[str]:
        keys = map(key_of_root, self._client.all_keys())
        return [key for key in keys if key is not None]

    def usage(self) -> Usage:
        client = self._client
        sizes = client.sizes([name for name in client.all_keys() if name.startswith(PREFIX)])
        bundles = sum(key_of_root(name) is not None for name in sizes)
        return Usage(bundles=bundles, live_nbytes=sum(sizes.values()), pooled_nbytes=client.pool.free_nbytes)

    def close(self) -> None:
        client, self._shared = self._shared, None
        if client is not None:
            client.close()
