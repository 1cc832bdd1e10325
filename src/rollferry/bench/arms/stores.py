"""What is the same for all arms over Mooncake: its distributions, and how much memory the clients give it."""

from __future__ import annotations

__all__ = ["MOONCAKE", "buffer_nbytes", "segment_nbytes"]

MOONCAKE = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")

_LEAST = 128 << 20


def segment_nbytes(room: int) -> int:
    """Give the size of the segment that one side lends: room for payloads stored less compactly than expected."""
    return _LEAST + 3 * room


def buffer_nbytes(room: int) -> int:
    """Give the size of the registered memory that each client keeps for its puts and gets."""
    return _LEAST + 3 * room
