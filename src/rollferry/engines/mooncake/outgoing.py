"""Objects on their way out: what they are made of, and the thread that sends them."""

from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread
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
        # Queues, as an exception of a signal handler can leave other locks of Python's locked for good.
        self._queue: SimpleQueue[tuple[str, Outgoing] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[BaseException | None] = SimpleQueue()
        self._ended = False
        self._pending = 0
        self._thread = Thread(target=self._run, name="rollferry-send", daemon=True)
        self.keys: list[str] = []

    def send(self, key: str, outgoing: Outgoing) -> None:
        """Send an object that is complete, and release it. Raises what sending an earlier one raised."""
        self.keys.append(key)
        self._queue.put((key, outgoing))
        self._pending += 1
        self._wait(AHEAD)

    def finish(self) -> None:
        """Wait until everything is sent. Raises what sending raised."""
        self._wait(0)

    def _wait(self, most: int) -> None:
        while self._pending > most:
            error = self._outcomes.get()
            self._pending -= 1
            if error is not None:
                raise error

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            key, outgoing = item
            error = None
            try:
                if not self._ended:
                    self._client.put(key, outgoing.addresses, outgoing.sizes, self._bundle_nbytes)
            except BaseException as raised:  # noqa: BLE001  # raised again by the one who waits
                error = raised
                self._ended = True
            outgoing.release()
            self._outcomes.put(error)

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except BaseException:
            self._queue.put(None)  # it may have started, and an exception come from elsewhere
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Memory is given back after this, so nothing may make it end before the thread does.
        self._ended = True
        self._queue.put(None)
        interrupted: BaseException | None = None
        while self._thread.is_alive():
            try:
                self._thread.join()
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
