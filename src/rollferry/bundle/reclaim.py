"""Bundles whose time is over: found, and removed."""

import time
from contextlib import suppress
from typing import Literal

import msgspec

from rollferry.bundle.lifetime import expired, state_of
from rollferry.bundle.manifest import Lifetime
from rollferry.bundle.stages import open_manifest
from rollferry.engines.base import Engine
from rollferry.errors import RollferryError

__all__ = ["Reclaimed", "Reclaimer"]

SECONDS = 5.0  # between two looks by the way


class Reclaimed(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that was reclaimed, or would be.

    Parameters
    ----------
    key
        ``namespace.id``.
    nbytes
        Bytes of memory that it took.
    reason
        ``time``: its time was over. ``orphan``: it has none, and its producer has been dead for a day.
    """

    key: str
    nbytes: int
    reason: Literal["time", "orphan"]


class Reclaimer:
    """Looks for bundles whose time is over. Thread-safe.

    Parameters
    ----------
    engine
        Where.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lifetimes: dict[str, Lifetime | None] = {}  # of the bundles last seen, which don't change
        self._next = time.monotonic() + SECONDS

    def by_the_way(self) -> None:
        """Reclaim, unless that was done just now, or takes a network."""
        if self._engine.networked or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SECONDS
        self.reclaim()

    def reclaim(self, *, dry_run: bool = False) -> list[Reclaimed]:
        """Remove what is to be reclaimed, unless this is a dry run; say what it was."""
        sizes = self._engine.sizes()
        self._lifetimes = {key: self._lifetimes.get(key) or self._lifetime(key) for key in sizes}
        found = []
        for key, lifetime in list(self._lifetimes.items()):
            if lifetime is None:
                continue
            reason = expired(state_of(lifetime, set()))
            if reason is None:
                continue
            with suppress(RollferryError):  # one that is out of reach must not keep the others
                reason = expired(state_of(lifetime, self._engine.notes(key)))  # somebody may have kept it
                if reason is not None and (dry_run or self._engine.remove(key)):
                    found.append(Reclaimed(key=key, nbytes=sizes[key], reason=reason))
        return found

    def _lifetime(self, key: str) -> Lifetime | None:
        try:
            return open_manifest(self._engine, key)[0].lifetime
        except RollferryError:  # damaged or gone: nothing says that its time is over
            return None
