"""Bundles whose time is over: found, and removed."""

import time
from typing import Literal

import msgspec

from rollferry.bundle.lifetime import expired, state_of
from rollferry.bundle.manifest import Lifetime
from rollferry.bundle.stages import open_manifest
from rollferry.engines.base import Engine
from rollferry.errors import RollferryError

__all__ = ["Reclaimed", "Reclaimer"]

PUT_SECONDS = 5.0  # between two looks of puts by the way
FULL_SECONDS = 1.0  # and of puts that have no room
NETWORK_SECONDS = 10.0  # likewise where looking takes a network


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
        self._looked = time.monotonic()

    def by_the_way(self) -> None:
        """Reclaim, unless that was done just now, or takes a network."""
        if not self._engine.networked and time.monotonic() >= self._looked + PUT_SECONDS:
            self.reclaim()

    def make_room(self) -> bool:
        """Reclaim, unless that was done just now; whether there is more room."""
        seconds = NETWORK_SECONDS if self._engine.networked else FULL_SECONDS
        if time.monotonic() < self._looked + seconds:
            return False
        try:
            return bool(self.reclaim())
        except RollferryError:  # that there is no room is what to say
            return False

    def reclaim(self, *, dry_run: bool = False) -> list[Reclaimed]:
        """Remove what is to be reclaimed, unless this is a dry run; say what it was."""
        self._looked = time.monotonic()
        sizes = self._engine.sizes()
        self._lifetimes = {key: self._lifetimes.get(key) or self._lifetime(key) for key in sizes}
        found = []
        for key, lifetime in list(self._lifetimes.items()):
            if lifetime is None:
                continue
            reason = expired(state_of(lifetime, set()))
            if reason is not None:  # by what it was put with; somebody may have kept it
                reason = expired(state_of(lifetime, self._engine.notes(key)))
            if reason is not None and (dry_run or self._engine.remove(key)):
                found.append(Reclaimed(key=key, nbytes=sizes[key], reason=reason))
        return found

    def _lifetime(self, key: str) -> Lifetime | None:
        try:
            return open_manifest(self._engine, key)[0].lifetime
        except RollferryError:  # damaged or gone: nothing says that its time is over
            return None
