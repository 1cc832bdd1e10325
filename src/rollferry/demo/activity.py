"""What each process did when, for the timeline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["KINDS", "Activity", "Recorder", "Stopwatch"]

KINDS = ("generate", "put", "get", "check", "train", "wait")


class Activity(NamedTuple):
    """One stretch of work of one process.

    Times are seconds of the system-wide monotonic clock, so that those of different processes compare.
    """

    kind: str
    step: int
    start: float
    end: float


@dataclass(slots=True)
class Stopwatch:
    """Filled by `Recorder.record` when its block ends."""

    seconds: float = 0.0


class Recorder:
    """Collects the activities of one process."""

    def __init__(self) -> None:
        self._activities: list[Activity] = []

    def add(self, kind: str, step: int, start: float, end: float) -> None:
        """Note one activity."""
        self._activities.append(Activity(kind, step, start, end))

    @contextmanager
    def record(self, kind: str, step: int) -> Iterator[Stopwatch]:
        """Note the block as one activity, and how long it took."""
        watch = Stopwatch()
        start = time.monotonic()
        try:
            yield watch
        finally:
            end = time.monotonic()
            watch.seconds = end - start
            self.add(kind, step, start, end)

    def drain(self) -> list[Activity]:
        """Return what was noted since the last call."""
        activities, self._activities = self._activities, []
        return activities
