"""Checksums of members: made while the payload is packed, checked when it was read."""

from collections.abc import Sequence

import numpy as np
import xxhash

from rollferry.engines.base import Bytes
from rollferry.errors import BundleError
from rollferry.memory.plan import Member

__all__ = ["Checksums", "check_payload"]

NBYTES = 8  # of one: xxh3-64, little-endian


class Checksums:
    """Takes the chunks of a payload, in order.

    Parameters
    ----------
    members
        Their places, rising.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._sums: list[bytes] = []
        self._open = xxhash.xxh3_64()  # of the member that the next chunk goes on with
        self._start = 0

    def add(self, chunk: Bytes) -> None:
        """Take the next chunk."""
        stop = self._start + len(chunk)
        while len(self._sums) < len(self._members):
            member = self._members[len(self._sums)]
            end = member.offset + member.nbytes
            low, high = max(member.offset, self._start), min(end, stop)
            if low < high:
                self._open.update(chunk[low - self._start : high - self._start].data)
            if end > stop:
                break
            self._sums.append(self._open.intdigest().to_bytes(NBYTES, "little"))
            self._open.reset()
        self._start = stop

    def dump(self) -> bytes:
        """Give all checksums, one after the other."""
        self.add(np.empty(0, np.uint8))  # members of no bytes at the end
        return b"".join(self._sums)


def check_payload(members: Sequence[Bytes], sums: bytes | None) -> None:
    """Raise BundleError unless every member has its checksum."""
    if sums is None:
        raise BundleError('verify="full" needs checksums; connect the putting side with checksum=True')
    for number, member in enumerate(members):
        start = NBYTES * number
        if xxhash.xxh3_64_intdigest(member.data) != int.from_bytes(sums[start : start + NBYTES], "little"):
            raise BundleError(f"member {number} is corrupt: its checksum does not match")
