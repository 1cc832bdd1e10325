"""Checksums of the blocks of members: made while the payload is packed, checked in what was fetched of it."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from rollferry.engines.base import Bytes
from rollferry.errors import BundleError
from rollferry.layouts.base import Int64Array
from rollferry.layouts.rows import Rows
from rollferry.memory.plan import Member

__all__ = ["BLOCK_NBYTES", "Checksums", "Verification", "Verify", "checksums_nbytes"]

Verify = Literal["auto", "manifest", "full"]

BLOCK_NBYTES = 1 << 14  # the last block of a member may be shorter
SUM = np.dtype("<u8")  # an xxh3-64

#: What is verified -> bytes of the shortest range that is widened to whole blocks.
WIDENED: dict[Verify, int] = {"full": 1, "auto": BLOCK_NBYTES}


class Blocks:
    """The blocks of a payload, numbered through.

    Parameters
    ----------
    members
        Their places, rising.

    Attributes
    ----------
    starts, stops
        Their places, rising.
    members
        For each the number of its member.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        places = np.array([(member.offset, member.nbytes) for member in members], np.int64).reshape(-1, 2)
        offsets, sizes = places[:, 0], places[:, 1]
        counts = -(-sizes // BLOCK_NBYTES)
        self.members: Int64Array = np.repeat(np.arange(len(members)), counts)
        numbers = np.arange(len(self.members)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.starts: Int64Array = offsets[self.members] + numbers * BLOCK_NBYTES
        self.stops: Int64Array = np.minimum(self.starts + BLOCK_NBYTES, (offsets + sizes)[self.members])

    def sums(self, ranges: Rows, memory: Sequence[Bytes]) -> tuple[Int64Array, npt.NDArray[np.uint64]]:
        """Give the numbers of the blocks that lie whole in ranges of the payload, and their checksums.

        Parameters
        ----------
        ranges
            Where the ranges are.
        memory
            For each its bytes.
        """
        first = np.searchsorted(self.starts, ranges.starts)
        last = np.maximum(first, np.searchsorted(self.stops, ranges.stops, side="right"))
        blocks = Rows(first, last).indices()
        places = np.repeat(np.arange(len(first)), last - first)  # in which range each is
        # Those of one member that are in one range lie one after the other.
        edges = np.flatnonzero((np.diff(self.members[blocks]) != 0) | (np.diff(places) != 0)) + 1
        begin, end = np.r_[0, edges][: len(blocks)], np.r_[edges, len(blocks)][: len(blocks)] - 1
        lows = self.starts[blocks[begin]] - ranges.starts[places[begin]]
        highs = self.stops[blocks[end]] - ranges.starts[places[begin]]
        sums: list[int] = []
        for place, low, high in zip(places[begin].tolist(), lows.tolist(), highs.tolist(), strict=True):
            sums += sums_of(memory[place][low:high])
        return blocks, np.array(sums, SUM)


class Checksums:
    """Takes the chunks of a payload, in order.

    Parameters
    ----------
    members
        Their places, rising.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._blocks = Blocks(members)
        self._sums = np.empty(len(self._blocks.starts), SUM)
        self._open = xxhash.xxh3_64()  # of the block that the next chunk goes on with
        self._start = 0

    def add(self, chunk: Bytes) -> None:
        """Take the next chunk."""
        starts, stops = self._blocks.starts, self._blocks.stops
        start, stop = self._start, self._start + len(chunk)
        block = int(np.searchsorted(starts, start)) - 1
        if block >= 0 and stops[block] > start:
            self._open.update(chunk[: stops[block] - start].data)
            if stops[block] <= stop:
                self._sums[block] = self._open.intdigest()
                self._open.reset()
        whole, sums = self._blocks.sums(Rows.span(start, stop), [chunk])
        self._sums[whole] = sums
        block = int(np.searchsorted(starts, stop)) - 1
        if block >= 0 and starts[block] >= start and stops[block] > stop:
            self._open.update(chunk[starts[block] - start :].data)
        self._start = stop

    def dump(self) -> bytes:
        """Give all checksums, one after the other."""
        return self._sums.tobytes()


class Verification:
    """What is verified of a payload.

    Parameters
    ----------
    members
        Their places, rising.
    sums
        The checksums of their blocks.
    verify
        ``full``, or ``auto`` as on an engine that uses a network.
    of
        Whose members they are, to be told in errors.

    Raises
    ------
    BundleError
        There are no checksums.
    """

    def __init__(self, members: Sequence[Member], sums: bytes | None, verify: Verify, of: str = "") -> None:
        if sums is None:
            raise BundleError('verify="full" needs checksums; connect the putting side with checksum=True')
        self._blocks = Blocks(members)
        self._sums = np.frombuffer(sums, SUM)
        self._widened = WIDENED[verify]
        self._of = of

    def widened(self, ranges: Rows) -> Rows:
        """Give the ranges to fetch so that all that is to be verified is whole; none of those given is empty."""
        starts, stops = self._blocks.starts, self._blocks.stops
        first = np.searchsorted(starts, ranges.starts, side="right") - 1
        last = np.searchsorted(stops, ranges.stops)
        wide = ranges.stops - ranges.starts >= self._widened
        return Rows(np.where(wide, starts[first], ranges.starts), np.where(wide, stops[last], ranges.stops))

    def check(self, ranges: Rows, fetched: Sequence[Bytes]) -> None:
        """Raise BundleError unless every block that lies whole in one of the ranges has its checksum."""
        blocks, sums = self._blocks.sums(ranges, fetched)
        wrong = blocks[sums != self._sums[blocks]]
        if len(wrong):
            member = self._blocks.members[wrong[0]]
            block = wrong[0] - np.searchsorted(self._blocks.members, member)
            raise BundleError(f"block {block} of member {member}{self._of} is corrupt: its checksum does not match")


def sums_of(memory: Bytes) -> list[int]:
    """Give the checksums of blocks that lie one after the other."""
    digest: Callable[[Any], int] = (
        xxhash.xxh3_64_intdigest
    )  # of arrays; the memoryviews of 16 KiB cost more than the sums
    if len(memory) <= BLOCK_NBYTES:
        return [digest(memory)]
    whole = len(memory) // BLOCK_NBYTES * BLOCK_NBYTES
    sums = [digest(block) for block in memory[:whole].reshape(-1, BLOCK_NBYTES)]  # the fastest way to cut memory
    return sums + sums_of(memory[whole:]) if whole < len(memory) else sums


def checksums_nbytes(members: Sequence[Member]) -> int:
    """Give the bytes of the checksums of members."""
    return SUM.itemsize * sum(-(-member.nbytes // BLOCK_NBYTES) for member in members)
