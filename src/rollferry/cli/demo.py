"""``rollferry demo``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Mode", "demo"]

_STEPS = 50  # of rollferry.demo.DEFAULT_STEPS, which is not imported for `--help`; a test compares them
_INTERRUPTED = 130  # what shells use for Ctrl-C


class Mode(StrEnum):
    """Which runs to make."""

    sync = "sync"
    asynchronous = "async"
    both = "both"


def demo(
    *,
    steps: Annotated[int, typer.Option(min=1, help="Training steps for each mode.")] = _STEPS,
    mode: Annotated[Mode, typer.Option(help="Alternate, overlap, or one after the other.")] = Mode.both,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Rollout processes.")] = 2,
    trainers: Annotated[int, typer.Option(min=1, max=16, help="Trainer processes.")] = 2,
    max_staleness: Annotated[
        int, typer.Option(min=0, help="Async: how many steps older than those in training the sampling weights may be.")
    ] = 1,
    url: Annotated[str, typer.Option(help="The engine.")] = "shm://",
    out: Annotated[Path, typer.Option(help="Where to draw the picture; needs matplotlib.")] = Path(
        "rollferry-demo.png"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of all random streams; sync runs are reproducible.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write all figures.")] = None,
) -> None:
    """Run reinforcement learning in miniature: rollout and trainer processes, with a ferry between them.

    Ends with an error unless every batch arrived equal to what was put, nothing is left behind and, given enough
    steps, reward rose.
    """
    from rollferry import RollferryError  # here, to keep `--help` fast
    from rollferry.demo import DemoOptions, run_demo

    try:
        options = DemoOptions(
            steps=steps, workers=workers, trainers=trainers, max_staleness=max_staleness, url=url, seed=seed
        )
        good = run_demo(options, mode.value, picture=out, json_file=json_file)
    except (RollferryError, ValueError) as error:
        typer.echo(f"rollferry demo: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("rollferry demo: interrupted; all processes were ended", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    raise typer.Exit(0 if good else 1)
