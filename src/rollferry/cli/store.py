"""What the commands that look at an engine share: arguments, errors, tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import typer

if TYPE_CHECKING:
    from rollferry import Ferry

__all__ = [
    "Id",
    "Json",
    "Namespace",
    "Url",
    "connected",
    "duration",
    "line",
    "print_json",
    "print_table",
    "read_ref",
    "shown_url",
]

Url = Annotated[str | None, typer.Argument(help="The engine. By default ROLLFERRY_URL, and without it shm://.")]
Id = Annotated[str, typer.Argument(metavar="REF|ID", help="A reference as JSON, - to read one from stdin, or an id.")]
Namespace = Annotated[str, typer.Option(help="Namespace of the id.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

FINDING, FAILED = 1, 2
#: Scheme -> options of a process that only looks: what it lent to mooncake's store would be lost when it ends.
ONLOOKER = {"mooncake": {"segment": "0"}}


@contextmanager
def connected(command: str, url: str | None, namespace: str = "default") -> Iterator[Ferry]:
    """Have a Ferry; print what is raised in one line, and end: 1 for a bundle that is damaged or gone, else 2."""
    import rollferry  # here, to keep `--help` fast

    try:
        with rollferry.connect(onlooker(shown_url(url)), namespace=namespace) as ferry:
            yield ferry
    except (rollferry.BundleError, rollferry.BundleNotFoundError) as error:
        end(command, error, FINDING)
    except (rollferry.RollferryError, ValueError) as error:
        end(command, error, FAILED)


def end(command: str, error: Exception, status: int) -> None:
    """Print an error, and end."""
    typer.echo(f"rollferry {command}: {line(str(error))}", err=True)
    raise typer.Exit(status) from None


def shown_url(url: str | None) -> str:
    """Give the URL that is meant."""
    return url or os.environ.get("ROLLFERRY_URL") or "shm://"


def onlooker(url: str) -> str:
    """Give the URL for a process that only looks."""
    parts = urlsplit(url)
    options = ONLOOKER.get(parts.scheme)
    if options is None:
        return url
    return urlunsplit(parts._replace(query=urlencode(dict(parse_qsl(parts.query, keep_blank_values=True)) | options)))


def read_ref(text: str) -> str:
    """Give a reference or id; from stdin for ``-``."""
    return (sys.stdin.read() if text == "-" else text).strip()


def line(text: str) -> str:
    """Give text as one line that a terminal shows as it is, whatever a bundle says."""
    joined = " ".join(text.split())
    return joined if joined.isprintable() else joined.encode("unicode_escape").decode("ascii")


def duration(seconds: float | None) -> str:
    """Write seconds, such as ``2.5 h``; nothing for None."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} s"


def print_json(document: Any) -> None:
    """Print one JSON object."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: one of rich's on a terminal, else columns of plain text."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(table_of(columns, rows))
        return
    cells = [list(columns), *([line(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def table_of(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Any:
    """Make a table of rich's."""
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(line(str(cell))) for cell in row))
    return table
