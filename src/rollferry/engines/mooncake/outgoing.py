"""Objects on their way out: what they are made of, and the thread that sends them."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Self

from rollferry.engines.mooncake.client import Client
from rollferry.engines.mooncake.pool import Pool
from rollferry.memory.leases import Bytes
from rollferry.memory.plan import Ready

__all__ = ["Outgoing", "Sender", "parts_of"]

AHEAD = 2  # objects that wait to be sent or are being sent, while one more is packed


class Outgoing:
    """One object, made of pieces: to be filled, in one registered region, or of registered memory that is ready.

    Parameters
    ----------
    pool
        Gives the region.
    parts
        Bytes of a piece that is to be filled, or the memory of one that is ready.

    Attributes
    ----------
    pieces
        Memory of all parts.
    """

    def __init__(self, pool: Pool, parts: Sequence[int | Bytes]) -> None:
        self._pool = pool
        self._region = pool.acquire(sum(part for part in parts if isinstance(part, int)))
        self.pieces: list[Bytes] = []
        start = 0
        for part in parts:
            if isinstance(part, int):
                self.pieces.append(self._region.memory[start : start + part])
                start += part
            else:
                self.pieces.append(part)

    def ranges(self) -> tuple[list[int], list[int]]:
        """Give addresses and sizes of the pieces, those joined that lie side by side."""
        addresses: list[int] = []
        sizes: list[int] = []
        for piece in self.pieces:
            address = piece.ctypes.data
            if addresses and addresses[-1] + sizes[-1] == address:
                sizes[-1] += len(piece)
            elif len(piece):
                addresses.append(address)
                sizes.append(len(piece))
        return addresses, sizes

    def release(self) -> None:
        """Give the region back."""
        self._pool.release(self._region)


class Sender:
    """Sends objects one after the other, in a thread, so that the next one is packed meanwhile. A context manager.

    Parameters
    ----------
    client
        Does the sending.
    bundle_nbytes
        Bytes of all objects.

    Attributes
    ----------
    keys
        Of all objects that were sent, or begun.
    """

    def __init__(self, client: Client, bundle_nbytes: int) -> None:
        self._client = client
        self._bundle_nbytes = bundle_nbytes
        self._thread = ThreadPoolExecutor(1, "rollferry-send")
        self._waiting: deque[tuple[Future[None], Outgoing]] = deque()
        self.keys: list[str] = []

    def send(self, key: str, outgoing: Outgoing) -> None:
        """Send an object that is complete. Raises what sending an earlier one raised."""
        self.keys.append(key)
        try:
            future = self._thread.submit(self._client.put, key, *outgoing.ranges(), self._bundle_nbytes)
        except BaseException:
            outgoing.release()
            raise
        self._waiting.append((future, outgoing))
        while len(self._waiting) > AHEAD or (self._waiting and self._waiting[0][0].done()):
            self._await_one()

    def finish(self) -> None:
        """Wait until everything is sent. Raises what sending raised."""
        while self._waiting:
            self._await_one()

    def _await_one(self) -> None:
        future, outgoing = self._waiting[0]
        try:
            future.result()
        finally:
            if future.done():  # else the wait was interrupted, and the memory is in use
                self._waiting.popleft()
                outgoing.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        while self._waiting:
            with suppress(BaseException):  # the first error was raised, and this is the end in any case
                self._await_one()


def parts_of(start: int, stop: int, ready: Sequence[Ready]) -> list[int | Bytes]:
    """Cut a range of the payload where memory that is ready begins and ends; give the bytes of the other parts."""
    parts: list[int | Bytes] = []
    position = start
    for offset, memory in ready:
        low, high = max(offset, position), min(offset + len(memory), stop)
        if low < high:
            if position < low:
                parts.append(low - position)
            parts.append(memory[low - offset : high - offset])
            position = high
    if position < stop:
        parts.append(stop - position)
    return parts
