"""The errors of the demo."""

from __future__ import annotations

from rollferry import RollferryError

__all__ = ["DemoError", "MismatchError", "ProcessFailedError", "StalenessError"]


class DemoError(RollferryError):
    """The demo cannot go on."""


class MismatchError(DemoError):
    """A batch that arrived differs from the batch that was put."""


class StalenessError(DemoError):
    """A batch was sampled from weights older than allowed."""


class ProcessFailedError(DemoError):
    """A rollout or trainer process failed; the message carries its traceback."""
