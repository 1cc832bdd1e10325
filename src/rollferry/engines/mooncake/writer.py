"""Writing a bundle: packed into registered memory, each object sent while the next one is packed; the root last."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress

from rollferry.engines.mooncake.client import Client
from rollferry.engines.mooncake.frame import HEADER_NBYTES, Frame, chunk_key, note_key, root_key
from rollferry.engines.mooncake.outgoing import Outgoing, Sender, parts_of
from rollferry.errors import EngineError
from rollferry.memory.leases import Bytes
from rollferry.memory.plan import Ready

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
    ready
        Parts of the payload that are sent from where they lie.
    """

    def __init__(
        self, client: Client, key: str, payload_nbytes: int, manifest_nbytes: int, ready: Sequence[Ready]
    ) -> None:
        whole = HEADER_NBYTES + payload_nbytes + manifest_nbytes <= client.options.chunk or not payload_nbytes
        self._client = client
        self._key = key
        self._frame = Frame(payload_nbytes, manifest_nbytes, 0 if whole else client.options.chunk)
        self._ended = False
        self._ready: list[Ready] = []
        self._work = ExitStack()  # what is to be given back at the end, the last first
        self._sender: Sender | None = None
        try:
            self._begin(ready)
        except BaseException:
            self.abort()
            raise

    def _begin(self, ready: Sequence[Ready]) -> None:
        client, frame = self._client, self._frame
        with suppress(EngineError):  # then the next put tries again
            client.sweep()
        numbers = range(len(frame.chunk_sizes))
        client.check_absent([root_key(self._key), *(chunk_key(self._key, number) for number in numbers)])
        if frame.chunk_nbytes and client.exists(note_key(self._key, "")):  # an earlier attempt was seen as unfinished
            client.discard_all(note_key(self._key, ""))
        for part in ready:
            self._work.callback(client.borrowed.give_back, part.memory)
            if client.borrowed.take(part.memory):
                self._ready.append(part)
        payload = [] if frame.chunk_nbytes else parts_of(0, frame.payload_nbytes, self._ready)
        self._root = Outgoing(client.pool, [HEADER_NBYTES, *payload, frame.manifest_nbytes])
        self._work.callback(self._root.release)
        self.chunks: Iterable[Bytes] = self._send_chunks() if frame.chunk_nbytes else self._root.pieces[1:-1]

    def _send_chunks(self) -> Iterator[Bytes]:
        self._work.enter_context(self._client.at_work())
        sender = self._sender = self._work.enter_context(Sender(self._client, self._frame.nbytes))
        start = 0
        for number, nbytes in enumerate(self._frame.chunk_sizes):
            outgoing = Outgoing(self._client.pool, parts_of(start, start + nbytes, self._ready))
            try:
                yield from outgoing.pieces
            except BaseException:
                outgoing.release()
                raise
            sender.send(chunk_key(self._key, number), outgoing)
            start += nbytes

    def publish(self, manifest: bytes) -> None:
        if self._ended:
            raise EngineError("the bundle was published or aborted already")
        if len(manifest) != self._frame.manifest_nbytes:
            raise EngineError(f"the manifest has {len(manifest)} bytes, {self._frame.manifest_nbytes} were announced")
        self._root.pieces[0].data[:] = self._frame.dump()
        self._root.pieces[-1].data[:] = manifest
        names = [chunk_key(self._key, number) for number in range(len(self._frame.chunk_sizes))]
        try:
            with self._client.at_work():
                self._finish_chunks()
                self._client.put(root_key(self._key), self._root.addresses, self._root.sizes, self._frame.nbytes)
            self._end()
        except BaseException as error:
            try:
                self._end()
                with self._client.at_work():
                    self._client.discard_unpublished([root_key(self._key), *names])
            except EngineError as second:
                error.add_note(f"removing what was put failed too: {second}")
            raise

    def _finish_chunks(self) -> None:
        sent = 0
        if self._sender is not None:
            self._sender.finish()
            sent = len(self._sender.keys)
        if sent != len(self._frame.chunk_sizes):
            raise EngineError(f"{sent} of {len(self._frame.chunk_sizes)} chunks were filled")

    def abort(self) -> None:
        if self._ended:
            return
        sender = self._sender
        try:
            self._end()
        finally:
            if sender is not None:
                with self._client.at_work():
                    self._client.discard_unpublished(sender.keys)

    def _end(self) -> None:
        self._ended = True
        self._sender = None
        self.chunks = []
        self._work.close()
