"""The engine over Mooncake Store."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rollferry.engines.accounts import totals, usage_of
from rollferry.engines.base import Reader, Ready, Usage, Writer
from rollferry.engines.mooncake.client import Client
from rollferry.engines.mooncake.frame import PREFIX, chunk_key, key_of, key_of_root, note_key, root_key
from rollferry.engines.mooncake.quotas import check_guarantee, free_nbytes
from rollferry.engines.mooncake.reader import MooncakeReader, missing
from rollferry.engines.mooncake.writer import MooncakeWriter
from rollferry.errors import EngineError, FerryClosedError

__all__ = ["MooncakeEngine"]

FIRST, STEP = 8, 64  # chunks that are removed at once; a chunk may be missing, but hardly so many in a row
SEEN = "seen-"  # a note beside what has no root: when that was first seen
UNFINISHED_SECONDS = 3600.0  # no put takes so long; the clocks of hosts differ by less


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
        self._counts = client  # also after close
        self._peaks: dict[str, int] = {}
        self._guaranteed: dict[str, int] = {}

    @property
    def retries(self) -> int:
        return self._counts.retries

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
            first = [root_key(key), note_key(key, ""), *(chunk_key(key, number) for number in range(FIRST))]
            removed, noted, *more = client.discard(first)
            if noted:
                client.discard_all(note_key(key, ""))
            start = FIRST
            while any(more):
                more = client.discard([chunk_key(key, number) for number in range(start, start + STEP)])
                start += STEP
            return removed

    def list(self) -> list[str]:
        with self._using() as client:
            return [key for key in map(key_of_root, client.all_keys()) if key is not None]

    def sizes(self) -> dict[str, int]:
        with self._using() as client:
            sizes = client.sizes([name for name in client.all_keys() if name.startswith(PREFIX)])
        published = set(map(key_of_root, sizes))
        return {key: nbytes for key, nbytes in sizes_by_bundle(sizes).items() if key in published}

    def note(self, key: str, text: str) -> None:
        # The text is in the key of an object: so there is nothing to read, and none is put twice.
        with self._using() as client:
            if not client.exists(root_key(key)):
                raise missing(key)
            client.put_bytes(note_key(key, text), b"-")
            client.put_bytes(note_key(key, ""), b"-")  # tells who removes the bundle that there are some

    def notes(self, key: str) -> set[str]:
        with self._using() as client:
            return self._notes(client, key)

    def reserve(self, namespace: str, key: str, nbytes: int, quota: int, *, queue: bool) -> bool:
        raise EngineError(
            "a quota that holds across clients is the master's on mooncake://: start mooncake_master with quotas for tenants, "
            "and connect with tenant=NAME (docs/mooncake.md)"
        )

    def unreserve(self, key: str) -> None:
        pass

    def guarantee(self, namespace: str, nbytes: int) -> None:
        with self._using() as client:
            check_guarantee(client.options, namespace, nbytes)
        self._guaranteed[namespace] = max(nbytes, self._guaranteed.get(namespace, 0))

    def unfinished(self) -> dict[str, int]:
        # The master doesn't tell when an object was put: who first sees one without a root notes when that was.
        now = time.time()
        found = {}
        with self._using() as client:
            sizes = client.sizes([name for name in client.all_keys() if name.startswith(PREFIX)])
            published = set(map(key_of_root, sizes))
            for key, nbytes in sizes_by_bundle(sizes).items():
                if key in published:
                    continue
                start = note_key(key, SEEN)
                seen = [int(name[len(start) :]) for name in sizes if name.startswith(start)]
                if note_key(key, "") not in sizes:  # a removal that failed may have taken it
                    client.put_bytes(note_key(key, ""), b"-")
                if not seen:
                    client.put_bytes(f"{start}{int(now)}", b"-")
                elif now - max(seen) >= UNFINISHED_SECONDS:
                    found[key] = nbytes
        return found

    def usage(self) -> Usage:
        with self._using() as client:
            pooled = {"": client.pool.free_nbytes}
            live = self.sizes()
            for namespace, nbytes in totals(live).items():
                self._peaks[namespace] = max(nbytes, self._peaks.get(namespace, 0))
            return usage_of(
                live,
                pooled=pooled,
                peaks=self._peaks,
                guaranteed=self._guaranteed,
                free_nbytes=free_nbytes(client.options),
            )

    @staticmethod
    def _notes(client: Client, key: str) -> set[str]:
        start = note_key(key, "")
        return {name[len(start) :] for name in client.all_keys() if name.startswith(start) and name != start}

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def sizes_by_bundle(sizes: Mapping[str, int]) -> dict[str, int]:
    """Add the bytes of objects up, by the key of their bundle."""
    found: dict[str, int] = {}
    for name, nbytes in sizes.items():
        key = key_of(name)
        if key is not None:
            found[key] = found.get(key, 0) + nbytes
    return found
