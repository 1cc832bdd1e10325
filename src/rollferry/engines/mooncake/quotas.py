"""What the master's quotas of tenants leave, and keep from others."""

from rollferry.engines.mooncake.options import Options
from rollferry.engines.mooncake.surroundings import read_quotas, read_room
from rollferry.errors import EngineError, EngineFullError

__all__ = ["check_guarantee", "free_nbytes"]


def free_nbytes(options: Options) -> int | None:
    """Give the bytes that further bundles of the tenant can have; None where the master doesn't say."""
    try:
        free, quota = read_room(options).free, read_quotas(options).get(options.tenant)
    except OSError:
        return None
    return free if quota is None else min(free, max(quota.nbytes - quota.charged, 0))


def check_guarantee(options: Options, namespace: str, nbytes: int) -> None:
    """Raise EngineError unless the quotas of tenants keep so many bytes for this one, which only the namespace is to use."""
    advice = (
        "start mooncake_master with --enable_multi_tenants and quotas that together are no more than what clients lend, and "
        f"connect with tenant={namespace!r} (docs/mooncake.md)"
    )
    try:
        room, quotas = read_room(options), read_quotas(options)
    except OSError as error:
        raise EngineError(
            f"the master doesn't say what it can guarantee ({error}); connect with ?metrics=PORT"
        ) from error
    own = quotas.get(options.tenant)
    if own is None or options.tenant != namespace:
        raise EngineError(f"on mooncake:// only a tenant's quota keeps bytes for the namespace {namespace!r}: {advice}")
    others = sum(max(quota.nbytes, quota.charged) for name, quota in quotas.items() if name != options.tenant)
    kept = max(min(own.nbytes, room.capacity - others), 0)
    if nbytes > kept:
        raise EngineFullError(
            f"{nbytes:,} bytes can't be guaranteed to the tenant {options.tenant!r}: its quota is {own.nbytes:,}, and of "
            f"{room.capacity:,} lent others may take {others:,}; {advice}",
            needed=nbytes,
            free=kept,
        )
