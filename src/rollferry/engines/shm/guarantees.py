"""Bytes of the file system that are kept for a namespace: a claim for each, and for each bundle that is written meanwhile."""

import os
import re
import secrets
import time
from typing import NamedTuple

from rollferry.engines.accounts import namespace_of, totals, unspent
from rollferry.engines.shm import claims
from rollferry.engines.shm.claims import Claim
from rollferry.engines.shm.directory import Directory
from rollferry.engines.shm.pool import Pool
from rollferry.errors import EngineFullError

__all__ = ["PATIENCE", "PAUSE", "Guarantees"]

GIVEN = re.compile(r"([A-Za-z0-9_-]+)\+([0-9a-f]{1,16})-[0-9a-f]{16}")  # namespace, bytes
WRITING = re.compile(
    r"([A-Za-z0-9_-]+\.[0-9a-f]{32})-([0-9a-f]{1,16})(?:!([0-9a-f]{1,16}))?"
)  # key, bytes, those yet to be taken
PAUSE = 0.001
PATIENCE = 1.0  # with processes that take memory, or give it back


class Books(NamedTuple):
    """What there is of bytes.

    Parameters
    ----------
    given, used
        What is guaranteed, and what live bundles and those being written take, by namespace.
    free
        What nobody has, less `taking`.
    taking
        What those who write are about to take, or have just taken.
    """

    given: dict[str, int]
    used: dict[str, int]
    free: int
    taking: int


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
        self._folder = f"{directory.guarantees}/"
        self._lock = f"{directory.guarantees}/lock"
        self._own: list[Claim] = []

    def give(self, namespace: str, nbytes: int) -> None:
        """Keep bytes for a namespace until `close`. Raises EngineFullError where there are not so many."""
        with claims.alone(self._lock):
            books = self._books()
            others = unspent(books.given, books.used, namespace)
            free = books.free - others + books.used.get(namespace, 0)
            if nbytes > free:
                raise EngineFullError(
                    f"{self._directory.root} can't keep {nbytes:,} bytes for the namespace {namespace!r}: {max(free, 0):,} are "
                    f"left, beside {others:,} that others were guaranteed",
                    needed=nbytes,
                    free=max(free, 0),
                )
            self._own.append(claims.make(f"{self._folder}{namespace}+{nbytes:x}-{secrets.token_hex(8)}"))

    def given(self) -> dict[str, int]:
        """Give the bytes that are guaranteed, by namespace."""
        return self._books().given if self._any() else {}

    def admit(self, key: str, capacity: int, memory: int) -> Claim | None:
        """Let a put take the memory that its segment still needs; give a claim to hold until the bundle is published.

        Raises EngineFullError where it is guaranteed to others. There is no claim where nothing is guaranteed to anybody.
        """
        late = time.monotonic() + PATIENCE
        namespace = namespace_of(key)
        while self._any():
            with claims.alone(self._lock):
                books = self._books()
                others = unspent(books.given, books.used, namespace)
                if not others or memory <= books.free - others:
                    return claims.make(f"{self._folder}{key}-{capacity:x}!{memory:x}")
            if not books.taking or time.monotonic() > late:
                free = max(books.free - others, 0)
                raise EngineFullError(
                    f"{self._directory.root} has {free:,} bytes left for the namespace {namespace!r}, beside {others:,} that others "
                    f"were guaranteed; the bundle needs {memory:,}. Remove bundles that were read",
                    needed=memory,
                    free=free,
                )
            time.sleep(PAUSE)
        return None

    def cover(self, key: str) -> bool:
        """Whether all that the namespace of an admitted put uses, with what it is about to take, is guaranteed to it."""
        books = self._books()
        return books.used.get(namespace_of(key), 0) <= books.given.get(namespace_of(key), 0)

    @staticmethod
    def taken(claim: Claim | None) -> Claim | None:
        """Say that a put has taken its memory; give its claim from now on."""
        if claim is None:
            return None
        path = claim.path.rpartition("!")[0]
        os.rename(claim.path, path)
        return Claim(claim.fd, path)

    def close(self) -> None:
        """End the guarantees that were given here."""
        while self._own:
            claims.withdraw(self._own.pop())

    def after_fork(self) -> None:
        """Leave what the parent has given to it."""
        self._own.clear()

    def _any(self) -> bool:
        return any(map(GIVEN.fullmatch, os.listdir(self._folder)))

    def _books(self) -> Books:
        given: dict[str, int] = {}
        writing: dict[str, int] = {}
        taking = 0
        for name in os.listdir(self._folder):
            guarantee, written = GIVEN.fullmatch(name), WRITING.fullmatch(name)
            if (guarantee or written) and claims.holds(self._folder + name):
                if guarantee:
                    given[guarantee[1]] = max(given.get(guarantee[1], 0), int(guarantee[2], 16))
                elif written:
                    writing[written[1]] = int(written[2], 16)
                    taking += int(written[3] or "0", 16)
        used = totals(writing | self._directory.live_sizes())
        free = self._directory.free_nbytes() + self._pool.free_nbytes()
        return Books(given, used, free - taking, taking)
