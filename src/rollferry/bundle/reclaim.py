"""Bundles whose time is over: found, and removed."""

import time
from typing import Literal

import msgspec

from rollferry.bundle.inventory import Inventory
from rollferry.bundle.lifetime import expired, state_of
from rollferry.engines.base import Engine

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
    inventory
        What is there.
    """

    def __init__(self, engine: Engine, inventory: Inventory) -> None:
        self._engine = engine
        self._inventory = inventory
        self._next = time.monotonic() + SECONDS

    def by_the_way(self) -> list[Reclaimed]:
        """Reclaim, unless that was done just now, or takes a network; say what it was."""
        if self._engine.networked or time.monotonic() < self._next:
            return []
        self._next = time.monotonic() + SECONDS
        return self.reclaim()

    def reclaim(self, *, dry_run: bool = False) -> list[Reclaimed]:
        """Remove what is to be reclaimed, unless this is a dry run; say what it was."""
        sizes = self._inventory.sizes()
        found = []
        for key, lifetime in self._inventory.lifetimes(sizes).items():
            if lifetime is None:
                continue
            reason = expired(state_of(lifetime, set()))
            if reason is not None:  # by what it was put with; somebody may have kept it
                reason = expired(state_of(lifetime, self._engine.notes(key)))
            if reason is not None and (dry_run or self._engine.remove(key)):
                found.append(Reclaimed(key=key, nbytes=sizes[key], reason=reason))
        return found
