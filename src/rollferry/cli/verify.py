"""``rollferry verify REF|ID [URL]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rollferry.cli.store import (
    FINDING,
    Id,
    Json,
    Namespace,
    Url,
    connected,
    line,
    print_json,
    read_ref,
    shown_url,
)

if TYPE_CHECKING:
    from rollferry import Ferry

__all__ = ["verify"]


def verify(ref: Id, url: Url = None, *, namespace: Namespace = "default", json_output: Json = False) -> None:
    """Read a bundle whole, and see whether it is sound: by its checksums if it has them, else by its structure.

    It unpickles nothing, and is not counted as one of the bundle's readers. The exit status is 1 if it is damaged or
    gone, and 2 for a bad reference or an engine that can't be used.
    """
    import rollferry

    text = read_ref(ref)
    with connected("verify", url, namespace) as ferry:
        try:
            sound, found = True, _look(ferry, text)
        except (rollferry.BundleError, rollferry.BundleNotFoundError) as error:
            sound, found = False, line(str(error))
    if json_output:
        print_json({"url": shown_url(url), "ok": sound, "found": found})
    else:
        typer.echo(f"{'ok' if sound else 'damaged or gone'}: {found}")
    raise typer.Exit(0 if sound else FINDING)


def _look(ferry: Ferry, text: str) -> str:
    """Read it; say what was checked. Raises what `get` raises."""
    from rollferry import UnsupportedValueError

    report = ferry.describe(text)
    how = "its checksums match" if report.checksums else "it has no checksums; its structure is sound"
    try:
        # By checksums alone nothing has to be rebuilt.
        ferry.get(
            report.ref,
            type=report.info.type or "dict",
            verify="full" if report.checksums else "manifest",
            lazy=report.checksums,
            readonly=True,
        )
    except UnsupportedValueError:  # of values that are pickled; by then checksums have been checked
        how = (
            how
            if report.checksums
            else "it has no checksums, and pickled values; its structure is sound as far as it was seen"
        )
    return f"{report.info.key}: {how}"
