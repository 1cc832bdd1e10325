"""``rollferry doctor [URL]``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from rollferry.checks import Check

__all__ = ["doctor"]

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "absent": "dim", "skipped": "dim"}
_ARROW = "->"


def doctor(
    url: Annotated[
        str | None,
        typer.Argument(help="The engine. By default ROLLFERRY_URL, and without it shm:// and all optional packages."),
    ] = None,
    *,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one check may take.")] = 60,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show on stderr what libraries log.")] = False,
) -> None:
    """Look what is installed, reachable and big enough, and say what to do about the rest.

    Nothing is left of what is put to try it. The exit status is 0 if all that was asked for works, perhaps with
    warnings; 1 if something fails; 2 for a URL that makes no sense.
    """
    from rich.console import Console  # here, to keep `--help` fast

    from rollferry import EngineError
    from rollferry.doctor import chosen_url, diagnose

    chosen = chosen_url(url)
    try:
        checks = diagnose(chosen, seconds=timeout, verbose=verbose)
    except EngineError as error:
        typer.echo(f"rollferry doctor: {error}", err=True)
        raise typer.Exit(2) from None
    shown = chosen or "shm://"
    console = Console(highlight=False, soft_wrap=True)
    if json_output:
        made = list(checks)
    elif console.is_terminal:
        made = _wait(checks, console)
    else:
        made = _print_lines(shown, checks)
    failed = any(check.state == "fail" for check in made)
    if json_output:
        _print_json(shown, made, failed=failed)
    else:
        if console.is_terminal:
            _print_table(shown, made, console)
        typer.echo(_summary(made))
    raise typer.Exit(1 if failed else 0)


def _print_json(url: str, made: list[Check], *, failed: bool) -> None:
    """Print all as JSON."""
    import msgspec

    document = msgspec.json.encode({"url": url, "ok": not failed, "checks": made})
    typer.echo(msgspec.json.format(document, indent=2).decode())


def _print_lines(url: str, checks: Iterable[Check]) -> list[Check]:
    """Print plain lines, each as soon as it is known; give the checks."""
    typer.echo(url)
    made = []
    for check in checks:
        made.append(check)
        typer.echo(f"{check.state:<8}{check.name:<16}{check.found}")
        if check.advice:
            typer.echo(f"{'':<24}{_ARROW} {check.advice}")
    return made


def _wait(checks: Iterable[Check], console: Console) -> list[Check]:
    """Show what is going on; give the checks."""
    from rich.text import Text

    made = []
    with console.status("looking ...") as status:
        for check in checks:
            made.append(check)
            status.update(Text(f"looking ... {check.name}: {check.state}"))
    return made


def _print_table(url: str, made: list[Check], console: Console) -> None:
    """Print a table, and below it what to do, so that commands can be copied."""
    from rich.table import Table
    from rich.text import Text

    table = Table("check", "state", "found", title=Text(url), title_justify="left")
    for check in made:
        table.add_row(Text(check.name), Text(check.state, style=_STYLES[check.state]), Text(check.found))
    console.print(table, soft_wrap=False)
    for check in made:
        if check.advice:
            console.print(Text.assemble((check.name, _STYLES[check.state]), f" {_ARROW} {check.advice}"))


def _summary(checks: list[Check]) -> str:
    """Say how many checks ended how."""
    counts = {state: sum(check.state == state for check in checks) for state in _STYLES}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)
