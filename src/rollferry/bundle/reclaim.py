"""Bundles whose time is over: found, and removed."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from rollferry.bundle.inventory import Inventory
from rollferry.bundle.lifetime import expired, state_of
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
        ``time``: its time was over. ``orphan``: it has none, and its producer has been dead for a day. ``unfinished``: its
        producer has left it half-written.
    """

    key: str
    nbytes: int
    reason: Literal["time", "orphan", "unfinished"]


class Reclaimer:
    """Looks for bundles whose time is over. Thread-safe.

    Parameters
    ----------
    engine
        Where.
    inventory
        What is there.
    reclaimed
        Called with what was removed, whatever the occasion.
    """

    def __init__(self, engine: Engine, inventory: Inventory, reclaimed: Callable[[Sequence[Reclaimed]], None]) -> None:
        self._engine = engine
        self._inventory = inventory
        self._reclaimed = reclaimed
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
        found = self._unfinished(dry_run=dry_run)
        for key, lifetime in self._inventory.lifetimes(sizes).items():
            if lifetime is None:
                continue
            reason = expired(state_of(lifetime, set()))
            if reason is None:
                continue
            with suppress(RollferryError):  # one that is out of reach must not keep the others
                reason = expired(state_of(lifetime, self._engine.notes(key)))  # somebody may have kept it
                if reason is not None and (dry_run or self._engine.remove(key)):
                    found.append(Reclaimed(key=key, nbytes=sizes[key], reason=reason))
        if not dry_run:
            self._reclaimed(found)
        return found

    def _unfinished(self, *, dry_run: bool) -> list[Reclaimed]:
        """Remove what producers have left half-written, unless this is a dry run."""
        found = []
        for key, nbytes in self._engine.unfinished().items():
            with suppress(RollferryError):
                if not dry_run:
                    self._engine.remove(key)  # False, since it was never there as a whole
                found.append(Reclaimed(key=key, nbytes=nbytes, reason="unfinished"))
        return found
