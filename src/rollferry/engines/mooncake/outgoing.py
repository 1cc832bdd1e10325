"""Objects on their way out: what they are made of, and the thread that sends them."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
    addresses, sizes
        Where the object is put together from.
    """

    def __init__(self, pool: Pool, parts: Sequence[int | Bytes]) -> None:
        self._pool = pool
        self._region = pool.acquire(sum(part for part in parts if isinstance(part, int)))
        self.pieces: list[Bytes] = []
        self.addresses: list[int] = []
        self.sizes: list[int] = []
        start = 0
        staged = False  # whether the piece before is
        for part in parts:
            if isinstance(part, int):
                self._add(self._region.memory[start : start + part], joined=staged)
                start += part
            else:
                self._add(part, joined=False)  # each lies in a registration of its own
            staged = isinstance(part, int)

    def _add(self, piece: Bytes, *, joined: bool) -> None:
        self.pieces.append(piece)
        if joined:
            self.sizes[-1] += len(piece)
        else:
            self.addresses.append(piece.ctypes.data)
            self.sizes.append(len(piece))

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
        self._waiting: deque[Future[None]] = deque()
        self._ended = False
        self.keys: list[str] = []

    def send(self, key: str, outgoing: Outgoing) -> None:
        """Send an object that is complete, and release it. Raises what sending an earlier one raised."""
        self.keys.append(key)
        try:
            self._waiting.append(self._thread.submit(self._put, key, outgoing))
        except BaseException:
            outgoing.release()
            raise
        while len(self._waiting) > AHEAD or (self._waiting and self._waiting[0].done()):
            self._waiting.popleft().result()

    def finish(self) -> None:
        """Wait until everything is sent. Raises what sending raised."""
        while self._waiting:
            self._waiting.popleft().result()

    def _put(self, key: str, outgoing: Outgoing) -> None:
        try:
            if not self._ended:
                self._client.put(key, outgoing.addresses, outgoing.sizes, self._bundle_nbytes)
        finally:
            outgoing.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Memory is given back after this, so nothing may make it end before the thread does.
        self._ended = True
        interrupted: BaseException | None = None
        while True:
            try:
                self._thread.shutdown(wait=True)
                break
            except BaseException as error:  # noqa: BLE001  # a signal handler's, raised below
                interrupted = error
        if interrupted is not None:
            raise interrupted


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
