"""The status codes of Mooncake Store, in words."""

from rollferry.errors import EngineError

__all__ = ["EXISTS", "FULL", "INVALID", "MISSING", "OVER_QUOTA", "PASSING", "STATUS", "failure"]

FULL, INVALID, MISSING, EXISTS, OVER_QUOTA = -200, -600, -704, -705, -1700
STATUS = {
    -1: "internal error",
    -101: "the segment is gone",
    FULL: "no room",
    -500: "the write failed",
    INVALID: "invalid parameters",
    -601: "the client is unknown to the master",
    -700: "invalid write",
    -701: "invalid read",
    -702: "the replica is invalid",
    -703: "the replica is not ready: its writer is at work, or died",
    MISSING: "there is no such object",
    EXISTS: "the object exists already",
    -706: "the object is being read",
    -707: "the lease expired",
    -708: "the object is being replicated",
    -800: "the transfer failed: the process that lends the memory is gone, or the network is down",
    -900: "the master can't be reached",
    -901: "the master gave no answer in time",
    -1010: "the master isn't ready",
    OVER_QUOTA: "the tenant's quota is used up",
}
PASSING = frozenset({-703, -707, -800})  # what may be over the next time


def failure(status: int, what: str) -> EngineError:
    """Make the error of a status code."""
    return EngineError(f"{what}: {STATUS.get(status, 'an unknown error')} (Mooncake status {status})")
