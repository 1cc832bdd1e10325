"""An engine that fails on purpose, to see that nothing is left behind."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rollferry.engines.base import Bytes, Engine, Reader, Ready, Usage, Writer
from rollferry.errors import EngineError

__all__ = ["FaultyEngine"]


class FaultyEngine:
    """An engine that fails on purpose, and counts what is left open; see `Engine`.

    Parameters
    ----------
    engine
        The engine that does the work.
    faults
        Step -> which call of it raises EngineError, from 1; instead of doing anything. Steps are ``begin``, ``chunks``,
        ``publish``, ``abort``, ``open``, ``fetch`` and ``remove``.

    Attributes
    ----------
    calls
        Step -> how often it was called.
    unpublished
        Writers that were neither published nor aborted.
    unclosed
        Readers that were not closed.
    """

    def __init__(self, engine: Engine, **faults: int) -> None:
        self.scheme = engine.scheme
        self.networked = engine.networked
        self.retries = 0
        self.calls: Counter[str] = Counter()
        self.unpublished = 0
        self.unclosed = 0
        self._engine = engine
        self._faults = faults

    def step(self, name: str) -> None:
        """Count a call. Raises EngineError where it is the one to fail."""
        self.calls[name] += 1
        if self._faults.get(name) == self.calls[name]:
            raise EngineError(f"{name} fails on purpose")

    def begin(self, key: str, payload_nbytes: int, manifest_nbytes: int, ready: Sequence[Ready] = ()) -> Writer:
        """Do as the engine does, or fail; likewise all others."""
        self.step("begin")
        return FaultyWriter(self, self._engine.begin(key, payload_nbytes, manifest_nbytes, ready))

    def open(self, key: str) -> Reader:  # noqa: D102
        self.step("open")
        return FaultyReader(self, self._engine.open(key))

    def remove(self, key: str) -> bool:  # noqa: D102
        self.step("remove")
        return self._engine.remove(key)

    def list(self) -> list[str]:  # noqa: D102
        return self._engine.list()

    def sizes(self) -> dict[str, int]:  # noqa: D102
        return self._engine.sizes()

    def note(self, key: str, text: str) -> None:  # noqa: D102
        self._engine.note(key, text)

    def notes(self, key: str) -> set[str]:  # noqa: D102
        return self._engine.notes(key)

    def reserve(self, namespace: str, key: str, nbytes: int, quota: int, *, queue: bool) -> bool:  # noqa: D102
        return self._engine.reserve(namespace, key, nbytes, quota, queue=queue)

    def unreserve(self, key: str) -> None:  # noqa: D102
        self._engine.unreserve(key)

    def guarantee(self, namespace: str, nbytes: int) -> None:  # noqa: D102
        self._engine.guarantee(namespace, nbytes)

    def unfinished(self) -> dict[str, int]:  # noqa: D102
        return self._engine.unfinished()

    def usage(self) -> Usage:  # noqa: D102
        return self._engine.usage()

    def close(self) -> None:  # noqa: D102
        self._engine.close()


class FaultyWriter:
    """A writer of a FaultyEngine."""

    def __init__(self, engine: FaultyEngine, writer: Writer) -> None:
        self._engine = engine
        self._writer = writer
        self._open = 1
        engine.unpublished += 1

    @property
    def chunks(self) -> Iterable[Bytes]:
        self._engine.step("chunks")
        return self._writer.chunks

    def publish(self, manifest: bytes) -> None:
        self._engine.step("publish")
        self._writer.publish(manifest)
        self._end()

    def abort(self) -> None:
        self._writer.abort()
        self._end()
        self._engine.step("abort")

    def _end(self) -> None:
        self._engine.unpublished -= self._open
        self._open = 0


class FaultyReader:
    """A reader of a FaultyEngine."""

    def __init__(self, engine: FaultyEngine, reader: Reader) -> None:
        self._engine = engine
        self._reader = reader
        self._open = 1
        engine.unclosed += 1
        self.manifest = reader.manifest
        self.payload_nbytes = reader.payload_nbytes

    def fetch(self, ranges: Sequence[tuple[int, int]], *, writable: bool = True) -> list[Bytes]:
        self._engine.step("fetch")
        return self._reader.fetch(ranges, writable=writable)

    def close(self) -> None:
        self._engine.unclosed -= self._open
        self._open = 0
        self._reader.close()
