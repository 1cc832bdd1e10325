"""``rollferry ls [URL]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rollferry.cli.store import FINDING, Json, Url, connected, duration, print_json, print_table, shown_url

if TYPE_CHECKING:
    from rollferry import BundleInfo

__all__ = ["life", "ls"]

_COLUMNS = ("namespace", "id", "bytes", "type", "rows", "fields", "age", "left", "readers", "producer")
_ALIVE = {True: "alive", False: "dead", None: ""}


def ls(
    url: Url = None,
    *,
    namespace: Annotated[str | None, typer.Option(help="Only this namespace.")] = None,
    json_output: Json = False,
) -> None:
    """List the bundles that an engine holds, the newest last.

    The exit status is 1 if one is damaged, and 2 if the engine can't be used.
    """
    with connected("ls", url) as ferry:
        bundles = ferry.bundles(namespace)
    if json_output:
        print_json({"url": shown_url(url), "bundles": bundles})
    else:
        print_table(_COLUMNS, [_row(info) for info in bundles])
    raise typer.Exit(FINDING if any(info.damage for info in bundles) else 0)


def _row(info: BundleInfo) -> tuple[object, ...]:
    """Give the cells of a bundle."""
    rows = "" if info.rows is None else info.rows
    kind = info.type if info.damage is None else f"damaged: {info.damage}"
    return info.namespace, info.id, f"{info.nbytes:,}", kind, rows, len(info.fields), *life(info)


def life(info: BundleInfo) -> tuple[str, str, str, str]:
    """Write age, time left, readers and whether the producer lives."""
    readers = "" if info.readers is None else f"{len(info.done)} of {info.readers} done"
    return duration(info.age), duration(info.left), readers, _ALIVE[info.owner_alive]
