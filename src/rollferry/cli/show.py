"""``rollferry show REF|ID [URL]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rollferry.cli.ls import life
from rollferry.cli.store import Id, Json, Namespace, Url, connected, print_json, print_table, read_ref, shown_url

if TYPE_CHECKING:
    from rollferry import BundleReport

__all__ = ["show"]


def show(ref: Id, url: Url = None, *, namespace: Namespace = "default", json_output: Json = False) -> None:
    """Show a bundle and its fields, by its manifest; the payload is not read.

    The exit status is 1 if it is damaged or gone, and 2 for a bad reference or an engine that can't be used.
    """
    with connected("show", url, namespace) as ferry:
        report = ferry.describe(read_ref(ref))
    if json_output:
        print_json(
            {
                "url": shown_url(url),
                "ref": report.ref.to_dict(),
                "bundle": report.info,
                "fields": report.fields,
                "checksums": report.checksums,
            }
        )
        return
    _print(report)


def _print(report: BundleReport) -> None:
    """Print it for people."""
    info, ref = report.info, report.ref
    age, left, readers, producer = life(info)
    facts = {
        "bundle": info.key,
        "type": info.type,
        "rows": info.rows,
        "stages": ref.stages,
        "payload": f"{ref.nbytes:,} bytes",
        "checksums": "of all members" if report.checksums else "none",
        "age": age,
        "time left": left or "no limit",
        "readers": readers,
        "producer": producer,
        "policy version": ref.policy_version,
    }
    for name, value in facts.items():
        if value not in (None, ""):
            typer.echo(f"{name:<16}{value}")
    names = [f"{field.section}.{field.name}" if field.section else field.name for field in report.fields]
    cells = [
        (name, field.layout, field.dtype, "" if field.rows is None else field.rows, f"{field.nbytes:,}")
        for name, field in zip(names, report.fields, strict=True)
    ]
    print_table(("field", "layout", "dtype", "rows", "bytes"), cells)
