"""How long the parts of a put or get took."""

import time
from typing import Literal

import msgspec

__all__ = ["Stopwatch", "Timing"]

Operation = Literal["put", "get"]


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """One finished put, as which an append counts, or get, as which reading packed, padded or nested rows does.

    Parameters
    ----------
    operation
        ``put`` or ``get``.
    id
        Id of the bundle.
    nbytes
        Bytes of its payload.
    rows
        Rows of the batch, where its row-aligned fields agree.
    fetched_nbytes
        Of a get, bytes of the payload that were fetched, or mapped: all of them, or what fields and rows
        needed, with what was fetched to verify that.
    phases
        Phase -> seconds, in the order in which they came. Of a put: ``choose`` (layouts, and where the bytes lie), ``wait`` (for
        room, or to make it, where there was none at first), ``pack``
        (copying them to the engine's memory, which may be sent meanwhile), ``publish`` (manifest, and sending what is left). Of
        a get: ``open`` (the manifest), ``fetch`` (the payload), ``verify`` (its checksums; with fields or rows part of
        ``fetch``), ``rebuild`` (the batch).
    """

    operation: Operation
    id: str
    nbytes: int
    rows: int | None
    phases: dict[str, float]
    fetched_nbytes: int = 0

    @property
    def seconds(self) -> float:
        """All phases together."""
        return sum(self.phases.values())


class Stopwatch:
    """Measures the phases of one operation, one after the other."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self.fetched_nbytes = 0
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """End a phase, which began where the last one ended; what comes several times is added up."""
        now = time.perf_counter()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._last
        self._last = now
