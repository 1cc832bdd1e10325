"""The accounts of an engine: what it holds, in all and by namespace."""

from collections import Counter
from collections.abc import Mapping

from rollferry.engines.base import NamespaceUsage, Usage

__all__ = ["namespace_of", "totals", "unspent", "usage_of"]


def usage_of(
    sizes: Mapping[str, int],
    *,
    pooled: Mapping[str, int],
    peaks: Mapping[str, int],
    guaranteed: Mapping[str, int],
    free_nbytes: int | None,
) -> Usage:
    """Put the figures of an engine together.

    Parameters
    ----------
    sizes
        Bytes of every bundle, by key.
    pooled, peaks, guaranteed
        Bytes by namespace; free memory that was of none is pooled under an empty name.
    free_nbytes
        As in `Usage`.
    """
    bundles = Counter(map(namespace_of, sizes))
    live = totals(sizes)
    names = sorted({*bundles, *pooled, *peaks, *guaranteed} - {""})
    return Usage(
        bundles=len(sizes),
        live_nbytes=sum(sizes.values()),
        pooled_nbytes=sum(pooled.values()),
        free_nbytes=free_nbytes,
        namespaces={
            name: NamespaceUsage(
                bundles=bundles[name],
                live_nbytes=live.get(name, 0),
                pooled_nbytes=pooled.get(name, 0),
                peak_nbytes=max(peaks.get(name, 0), live.get(name, 0)),
                guaranteed_nbytes=guaranteed.get(name, 0),
            )
            for name in names
        },
    )


def namespace_of(key: str) -> str:
    """Give the namespace of a bundle."""
    return key.rpartition(".")[0]


def totals(sizes: Mapping[str, int]) -> dict[str, int]:
    """Give the bytes of all bundles of each namespace."""
    found: dict[str, int] = {}
    for key, nbytes in sizes.items():
        namespace = namespace_of(key)
        found[namespace] = found.get(namespace, 0) + nbytes
    return found


def unspent(guaranteed: Mapping[str, int], used: Mapping[str, int], namespace: str) -> int:
    """Give the bytes that are guaranteed to namespaces other than this one, and that their bundles don't take yet."""
    return sum(max(0, nbytes - used.get(other, 0)) for other, nbytes in guaranteed.items() if other != namespace)
