"""What is the same for all arms over Mooncake: its distributions, and how much memory the clients give it."""

from __future__ import annotations

__all__ = ["MOONCAKE", "client_nbytes"]

MOONCAKE = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")

_LEAST = 128 << 20


def client_nbytes(payload_nbytes: int) -> int:
    """Give the size of the segment that one side lends, and of the registered memory for the puts and gets of each client.

    It has room for payloads that are stored less compactly than expected.
    """
    return _LEAST + 3 * payload_nbytes
