"""The copy plan: sources of bytes, where each goes in the payload, and the copying itself."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from rollferry import _native
from rollferry.memory.leases import Bytes, bytes_of, gather

__all__ = ["ALIGNMENT", "CopyPlan", "Member", "Ready", "Source", "SpanSource"]

ALIGNMENT = 64
READY_NBYTES = 1 << 20  # below it a copy costs less than what saves it


class Member(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One contiguous byte range of the payload."""

    offset: int
    nbytes: int


class Ready(NamedTuple):
    """A part of the payload that lies in the batch's own memory as it is to be stored.

    Parameters
    ----------
    offset
        Where it is in the payload.
    memory
        Its bytes, read-only; they stay in place as long as the array lives.
    """

    offset: int
    memory: Bytes


class Source(Protocol):
    """Where the bytes of one member come from.

    Attributes
    ----------
    copies
        How often each byte is copied until it is in its member.
    """

    copies: int

    @property
    def nbytes(self) -> int:
        """Bytes that `fill` writes."""

    def fill(self, dest: Bytes) -> None:
        """Write all bytes to `dest`, a uint8 array of `nbytes` items."""


class SpanSource:
    """Bytes that lie ready in memory, in any number of pieces; copied natively, without the GIL.

    Parameters
    ----------
    spans
        Address ranges in order.
    """

    def __init__(self, spans: _native.Spans) -> None:
        self._spans = spans
        self.nbytes = spans.nbytes
        self.copies = 2 if spans.copied else 1

    def fill(self, dest: Bytes) -> None:
        """Write all bytes to `dest`."""
        gather(self._spans, dest, 0)

    def gather(self, dest: Bytes, start: int) -> None:
        """Fill `dest` with the bytes from `start` on."""
        gather(self._spans, dest, start)

    def in_place(self) -> Bytes | None:
        """Give the memory itself if it is one piece."""
        return bytes_of(self._spans) if self._spans.contiguous else None


class CopyPlan:
    """Places sources in 64-byte-aligned members of one payload, and copies them there.

    Parameters
    ----------
    sources
        One for each member.

    Attributes
    ----------
    members
        Their places, in the order of the sources, rising.
    nbytes
        Bytes of the payload.
    ready
        Large parts that need no copying, rising.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.members: list[Member] = []
        position = 0
        self.ready: list[Ready] = []
        for source in sources:
            nbytes = source.nbytes
            self.members.append(Member(position, nbytes))
            if nbytes >= READY_NBYTES and isinstance(source, SpanSource):
                memory = source.in_place()
                if memory is not None:
                    self.ready.append(Ready(position, memory))
            position = round_up(position + nbytes)
        self.nbytes = position
        self._ready = dict(self.ready)

    def packed(self, chunks: Iterable[Bytes]) -> Iterator[Bytes]:
        """Give chunks, which together are as long as the payload, in order, each when it was filled.

        Bytes between members are left as they are; a chunk boundary may lie anywhere. A chunk that is `ready` memory itself
        needs no filling.
        """
        start = 0
        first = 0
        staged: dict[int, Bytes] = {}
        for chunk in chunks:
            stop = start + len(chunk)
            while first < len(self.members) and self.members[first].offset + self.members[first].nbytes <= start:
                first += 1
            for index in range(first, len(self.members)):
                offset, nbytes = self.members[index].offset, self.members[index].nbytes
                if offset >= stop:
                    break
                if start <= offset and offset + nbytes <= stop and offset not in self._ready:
                    if nbytes:
                        self._sources[index].fill(chunk[offset - start : offset - start + nbytes])
                else:
                    self._pack_part(index, chunk, start, staged)
            yield chunk
            start = stop

    def _pack_part(self, index: int, chunk: Bytes, chunk_start: int, staged: dict[int, Bytes]) -> None:
        member, source = self.members[index], self._sources[index]
        low = max(member.offset, chunk_start)
        high = min(member.offset + member.nbytes, chunk_start + len(chunk))
        if low >= high:
            return
        dest = chunk[low - chunk_start : high - chunk_start]
        ready = self._ready.get(member.offset)
        if ready is not None and dest.ctypes.data == ready.ctypes.data + low - member.offset:
            return
        if len(dest) == member.nbytes:
            source.fill(dest)
        elif isinstance(source, SpanSource):
            source.gather(dest, low - member.offset)
        else:
            # A source that can only write as a whole goes through memory of its own where a chunk ends within it.
            if index not in staged:
                staged.clear()
                staged[index] = np.empty(member.nbytes, np.uint8)
                source.fill(staged[index])
            dest[:] = staged[index][low - member.offset : high - member.offset]


def round_up(nbytes: int) -> int:
    """Give the next multiple of the alignment."""
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT
