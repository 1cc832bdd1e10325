"""``rollferry gc [URL]``."""

from __future__ import annotations

from typing import Annotated

import typer

from rollferry.cli.store import Json, Url, connected, print_json, print_table, shown_url

__all__ = ["gc"]


def gc(
    url: Url = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing; say what would be.")] = False,
    json_output: Json = False,
) -> None:
    """Remove bundles whose time is over, and those without one whose producer has been dead for a day.

    The exit status is 2 if the engine can't be used.
    """
    from rollferry.checks import size

    with connected("gc", url) as ferry:
        found = ferry.gc(dry_run=dry_run)
    if json_output:
        print_json({"url": shown_url(url), "dry_run": dry_run, "reclaimed": found})
        return
    if found:
        print_table(("bundle", "bytes", "why"), [(one.key, f"{one.nbytes:,}", one.reason) for one in found])
    done = "would be removed" if dry_run else "removed"
    typer.echo(f"{len(found)} bundles {done}, {size(sum(one.nbytes for one in found))}")
