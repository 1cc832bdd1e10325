"""``rollferry stat [URL]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollferry.cli.store import Json, Url, connected, duration, print_json, print_table, shown_url

if TYPE_CHECKING:
    from rollferry import Usage

__all__ = ["COLUMNS", "rows_of", "stat"]

COLUMNS = ("namespace", "bundles", "live", "peak", "pooled", "guaranteed", "oldest")


def stat(url: Url = None, *, json_output: Json = False) -> None:
    """Show what an engine holds, in all and by namespace.

    The exit status is 2 if the engine can't be used.
    """
    with connected("stat", url) as ferry:
        usage = ferry.usage(ages=True)
    if json_output:
        print_json({"url": shown_url(url), "usage": usage})
    else:
        print_table(COLUMNS, rows_of(usage))


def rows_of(usage: Usage) -> list[tuple[object, ...]]:
    """Give the rows of a table of what is held."""
    from rollferry.checks import size

    named = [
        (
            name,
            held.bundles,
            size(held.live_nbytes),
            size(held.peak_nbytes),
            size(held.pooled_nbytes),
            size(held.guaranteed_nbytes) if held.guaranteed_nbytes else "",
            duration(held.oldest_age),
        )
        for name, held in usage.namespaces.items()
    ]
    free = "" if usage.free_nbytes is None else size(usage.free_nbytes)
    return [
        *named,
        ("(all)", usage.bundles, size(usage.live_nbytes), "", size(usage.pooled_nbytes), "", ""),
        ("(free, with what is pooled)", "", free, "", "", "", ""),
    ]
