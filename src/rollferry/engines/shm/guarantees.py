"""Bytes of the file system that are kept for a namespace: a claim for each, and one for each of its bundles being written.

As long as there are guarantees, puts take their memory one after the other, so that none counts on what another just took.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rollferry.engines.accounts import namespace_of, totals, unspent
from rollferry.engines.shm import claims
from rollferry.engines.shm.claims import Claim
from rollferry.engines.shm.directory import Directory
from rollferry.engines.shm.pool import Pool
from rollferry.errors import EngineFullError

__all__ = ["Guarantees"]

GIVEN = re.compile(r"([A-Za-z0-9_-]+)\+([0-9a-f]{1,16})-[0-9a-f]{16}")  # namespace, bytes
WRITING = re.compile(r"([A-Za-z0-9_-]+\.[0-9a-f]{32})-([0-9a-f]{1,16})")  # key, bytes
Admit = Callable[[int], Claim | None]


class Books(NamedTuple):
    """What is guaranteed, and used, by namespace."""

    given: dict[str, int]
    used: dict[str, int]


class Guarantees:
    """The guarantees of a directory. Thread-safe.

    Parameters
    ----------
    directory, pool
        Where bundles lie, and free segments.
    """

    def __init__(self, directory: Directory, pool: Pool) -> None:
        self._directory = directory
        self._pool = pool
        self._alone = f"{directory.guarantees}/lock"
        self._own: list[Claim] = []

    def give(self, namespace: str, nbytes: int) -> None:
        """Keep bytes for a namespace until `close`. Raises EngineFullError where there are not so many."""
        with claims.alone(self._alone):
            given, used = self._books()
            others = unspent(given, used, namespace)
            free = self._free_nbytes() - others + used.get(namespace, 0)
            if nbytes > free:
                raise EngineFullError(
                    f"{self._directory.root} can't keep {nbytes:,} bytes for the namespace {namespace!r}: {max(free, 0):,} are "
                    f"left, beside {others:,} that others were guaranteed",
                    needed=nbytes,
                    free=max(free, 0),
                )
            path = f"{self._directory.guarantees}/{namespace}+{nbytes:x}-{secrets.token_hex(8)}"
            self._own.append(claims.make(path))

    def given(self) -> dict[str, int]:
        """Give the bytes that are guaranteed, by namespace."""
        return {} if self._none() else self._books().given

    @contextmanager
    def admitting(self, key: str) -> Iterator[Admit]:
        """Give what a put is to call, as long as this lasts, with the bytes of the segment that it has found, before it uses them.

        That raises EngineFullError where they are guaranteed to others, or gives a claim to hold until the bundle is published.
        """
        if self._none():
            yield lambda _: None
            return
        with claims.alone(self._alone):
            given, used = self._books()
            namespace = namespace_of(key)
            others = unspent(given, used, namespace)
            free = self._free_nbytes() - others if others else None

            def admit(nbytes: int) -> Claim | None:
                if free is not None and nbytes > free:
                    raise EngineFullError(
                        f"{self._directory.root} has {max(free, 0):,} bytes free for the namespace {namespace!r}, beside {others:,} "
                        f"that others were guaranteed; the bundle needs {nbytes:,}. Remove bundles that were read",
                        needed=nbytes,
                        free=max(free, 0),
                    )
                if namespace not in given:
                    return None
                return claims.make(f"{self._directory.guarantees}/{key}-{nbytes:x}")

            yield admit

    def close(self) -> None:
        """End the guarantees that were given here."""
        while self._own:
            claims.withdraw(self._own.pop())

    def after_fork(self) -> None:
        """Leave what the parent has given to it."""
        self._own.clear()

    def _none(self) -> bool:
        return not any(map(GIVEN.fullmatch, os.listdir(self._directory.guarantees)))

    def _books(self) -> Books:
        """Look what is guaranteed, and what live bundles and those being written take."""
        given: dict[str, int] = {}
        writing: dict[str, int] = {}
        for name in os.listdir(self._directory.guarantees):
            guarantee, written = GIVEN.fullmatch(name), WRITING.fullmatch(name)
            if (guarantee or written) and claims.holds(f"{self._directory.guarantees}/{name}"):
                if guarantee:
                    given[guarantee[1]] = max(given.get(guarantee[1], 0), int(guarantee[2], 16))
                elif written:
                    writing[written[1]] = int(written[2], 16)
        return Books(given, totals(writing | self._directory.live_sizes()))

    def _free_nbytes(self) -> int:
        return self._directory.free_nbytes() + self._pool.free_nbytes()
