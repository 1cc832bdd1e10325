"""The contract of an engine."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from rollferry.memory.leases import Bytes
from rollferry.memory.plan import Ready

__all__ = ["Bytes", "Engine", "NamespaceUsage", "Reader", "Ready", "Usage", "Writer"]


class NamespaceUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine holds of one namespace.

    Parameters
    ----------
    bundles
        Published bundles.
    live_nbytes
        Bytes of memory that they take.
    pooled_nbytes
        Bytes of free memory, kept for reuse by whoever puts next, in which bundles of the namespace were before.
    peak_nbytes
        Most live bytes at a time, of whatever process, since the engine was first used: on ``inproc://`` and ``ray://`` of every
        moment, on ``shm://`` as seen after puts, a hundred times a second at most by each process, and by whoever asks; on
        ``mooncake://`` only what this process saw when it asked.
    guaranteed_nbytes
        Bytes of the engine that are kept for it.
    oldest_age
        Seconds since the oldest of its bundles was put; None where there is none, or none of a known age, or it was not looked
        for.
    """

    bundles: int
    live_nbytes: int
    pooled_nbytes: int
    peak_nbytes: int
    guaranteed_nbytes: int
    oldest_age: float | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine holds.

    Parameters
    ----------
    bundles
        Published bundles.
    live_nbytes
        Bytes of memory that they take.
    pooled_nbytes
        Bytes of free memory kept for reuse.
    free_nbytes
        Bytes that further bundles can have, the pooled ones among them; None where the engine doesn't know.
    namespaces
        The same by namespace: those with bundles, and those in which the engine knows of some before.
    """

    bundles: int
    live_nbytes: int
    pooled_nbytes: int
    free_nbytes: int | None
    namespaces: dict[str, NamespaceUsage]


class Writer(Protocol):
    """One bundle being written; visible to nobody until `publish`."""

    @property
    def chunks(self) -> Iterable[Bytes]:
        """Memory for the payload, in order, as long together as was asked for; to be iterated over once, to the end.

        Each chunk is full when the next one is asked for, or publish is called: it may be on its way from then on. Chunks are
        writable, but for those that are `ready` memory themselves, which are full already.
        """

    def publish(self, manifest: bytes) -> None:
        """Make the bundle visible, whole, at once; `manifest` is as long as was announced. On failure nothing is left."""

    def abort(self) -> None:
        """Give everything back. Does nothing after `publish` or a second time."""


class Reader(Protocol):
    """One bundle being read; it can't be changed or recycled before all that was fetched is dropped."""

    @property
    def manifest(self) -> bytes:
        """Bytes of the manifest, unchecked."""

    @property
    def payload_nbytes(self) -> int:
        """Bytes of the payload."""

    def fetch(self, ranges: Sequence[tuple[int, int]], *, writable: bool = True) -> list[Bytes]:
        """Give the bytes of (offset, nbytes) ranges, which the caller has checked to lie in the payload.

        The arrays are private to the caller, and writable if they are to be; an engine may give writable ones in any case.
        What is not writable may be memory of the stored bundle itself. Their memory lives as long as any view of them, also after
        `close`, removal of the bundle and the end of the engine.

        It may be called several times; where ranges overlap, those of one call or of several, their memory may be the same. An
        engine to which reading costs time reads little more than the ranges.

        Raises BundleNotFoundError if the bundle was removed after it was opened, unless the engine keeps it for its readers.
        """

    def close(self) -> None:
        """End reading. Does nothing the second time."""


class Engine(Protocol):
    """A store of bundles.

    All methods may be called from several threads at once, and after a fork, where a networked engine may refuse. Keys
    are ``namespace.id``, made by rollferry and never used twice.

    Attributes
    ----------
    scheme
        Scheme of its URLs.
    networked
        Whether bytes pass a network. Then checksums of the payload are made by every put and checked by every get, unless
        the get asks for less.
    retries
        How often this process tried something again that had failed in passing. It only grows.
    """

    scheme: str
    networked: bool
    retries: int

    def begin(self, key: str, payload_nbytes: int, manifest_nbytes: int, ready: Sequence[Ready] = ()) -> Writer:
        """Lend memory for a new bundle. Raises EngineFullError where there is none, but for what is guaranteed to others.

        An engine may also find that out in `publish`.

        An engine that can send from any memory may take parts of the payload that are `ready` as they are. They don't
        change before publish or abort.
        """

    def open(self, key: str) -> Reader:
        """Open a published bundle. Raises BundleNotFoundError, or BundleError where its frame is damaged."""

    def remove(self, key: str) -> bool:
        """Remove a bundle; False if it isn't there. What readers have fetched stays valid."""

    def list(self) -> list[str]:
        """Give the keys of all published bundles."""

    def sizes(self) -> dict[str, int]:
        """Give the keys of all published bundles, and the bytes of memory that each takes."""

    def note(self, key: str, text: str) -> None:
        """Write something down beside a bundle, for all to see: up to 100 letters, digits, ``-``, ``_`` and ``.``.

        Raises BundleNotFoundError where the bundle isn't there. Removing the bundle removes its notes.
        """

    def notes(self, key: str) -> set[str]:
        """Give what was written down; nothing where the bundle isn't there."""

    def reserve(self, namespace: str, key: str, nbytes: int, quota: int, *, queue: bool) -> bool:
        """Set bytes of a namespace aside for a bundle to be put; False where its bundles and what is set aside leave none.

        Nobody else gets them meanwhile: it is one step over all processes. What a process that ends had set aside is free. Who
        is told False, and asked to `queue`, has a place in a queue, which it keeps by trying again: whoever comes later is told
        False too, until it has its bytes or calls `unreserve`.
        """

    def unreserve(self, key: str) -> None:
        """End what `reserve` set aside, once the bundle is published or aborted; and leave the queue."""

    def guarantee(self, namespace: str, nbytes: int) -> None:
        """Keep so many bytes, for live bundles, from all other namespaces, until this engine is closed or its process ends.

        What the bundles of the namespace take counts. Of several guarantees to one namespace the largest holds. Raises
        EngineFullError where the engine hasn't got the bytes, or has guaranteed them to others, and EngineError where it can't
        keep them.
        """

    def unfinished(self) -> dict[str, int]:
        """Give the keys of bundles that were left half-written so long ago that no producer is at work on them, and their bytes.

        `remove` removes what there is of them. An engine that rids itself of them gives none.
        """

    def usage(self) -> Usage:
        """Say what is held; see `accounts.usage_of`. Without ages."""

    def close(self) -> None:
        """Drop this process's share of the engine; published bundles stay. Does nothing the second time."""
