"""The errors of the benchmark."""

from __future__ import annotations

from rollferry import RollferryError

__all__ = ["BenchError", "MismatchError", "Refused"]


class BenchError(RollferryError):
    """The benchmark can't go on."""


class MismatchError(BenchError):
    """What rollferry gave back differs from what was put."""


class Refused(BenchError):  # noqa: N818  # it is an answer
    """A request failed in a child, which goes on."""
