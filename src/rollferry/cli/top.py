"""``rollferry top [URL]``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from rollferry.cli.stat import COLUMNS, rows_of
from rollferry.cli.store import Url, connected, print_table, shown_url, table_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollferry import Usage

__all__ = ["top"]


def top(
    url: Url = None,
    *,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Show what an engine holds, again and again, until Ctrl-C.

    The exit status is 2 if the engine can't be used, or no more.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with connected("top", url) as ferry:

        def watch(show: Callable[[Usage], None]) -> None:
            while True:
                show(ferry.usage(ages=True))
                time.sleep(interval)

        try:
            if json_output:
                watch(lambda usage: _print_line(shown_url(url), usage))
            elif console.is_terminal:
                with Live(console=console, auto_refresh=False) as live:
                    watch(lambda usage: live.update(table_of(COLUMNS, rows_of(usage)), refresh=True))
            else:
                watch(_print_plain)
        except KeyboardInterrupt:
            return


def _print_line(url: str, usage: Usage) -> None:
    """Print one look as a line of JSON."""
    import msgspec

    typer.echo(msgspec.json.encode({"url": url, "time": time.time(), "usage": usage}).decode())


def _print_plain(usage: Usage) -> None:
    """Print one look as plain text."""
    print_table(COLUMNS, rows_of(usage))
    typer.echo()
