"""What is installed, reachable and big enough, and what to do about it.

`plan` says what to check, `child` does it in a process of its own, `supervise` sees to it that this ends, whatever happens there.
"""

import os
from collections.abc import Iterator

from rollferry.checks import Check
from rollferry.doctor.plan import plan
from rollferry.doctor.supervise import supervise

__all__ = ["chosen_url", "diagnose"]


def chosen_url(url: str | None) -> str | None:
    """Give the URL to look at, by default that of ``ROLLFERRY_URL``; None if it isn't set."""
    return url or os.environ.get("ROLLFERRY_URL") or None


def diagnose(url: str | None, *, seconds: float = 60, verbose: bool = False) -> Iterator[Check]:
    """Check what a URL needs, or, without one, what there is.

    Parameters
    ----------
    url
        URL of an engine. None for ``shm://`` and the optional packages.
    seconds
        How long one check may take.
    verbose
        Whether libraries may log to stderr.

    Returns
    -------
    iterator of Check
        One after the other, as they are made. It raises nothing.

    Raises
    ------
    EngineError
        The URL names no engine, or its options make no sense.
    """
    return supervise(url, plan(url), seconds=seconds, verbose=verbose)
