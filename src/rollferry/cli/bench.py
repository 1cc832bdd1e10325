"""``rollferry bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["bench"]

_TRIALS, _MEMORY = 5, "6gb"  # of rollferry.bench.options, which is not imported for `--help`; a test compares them
_INTERRUPTED = 130  # what shells use for Ctrl-C


def bench(
    *,
    arms: Annotated[str, typer.Option(help="Which ways to hand over, with commas; --list names them.")] = "",
    workloads: Annotated[str, typer.Option(help="Which batches, with commas; --list names them.")] = "",
    trials: Annotated[int, typer.Option(min=1, help="Trials that count, after one that warms up.")] = _TRIALS,
    samples: Annotated[int, typer.Option(min=0, help="Samples of each batch, instead of the usual number.")] = 0,
    size: Annotated[str, typer.Option(help="Payload bytes instead, such as 64mb; or a sweep, such as 1mb..2gb.")] = "",
    sweep: Annotated[bool, typer.Option("--sweep", help="Short for --size 1mb..2gb, as memory allows.")] = False,
    file: Annotated[Path | None, typer.Option(help="A batch of your own: .npz, .json, .pt or .pkl.")] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Unpickle the file, which runs code: if you trust it.")
    ] = False,
    segment_at: Annotated[
        str, typer.Option(help="Which process lends Mooncake's memory: producer or consumer.")
    ] = "consumer",
    memory: Annotated[str, typer.Option(help="Most memory to take; larger batches are left out.")] = _MEMORY,
    baseline: Annotated[str, typer.Option(help="Way that the others are compared with.")] = "pickle-shm",
    cold: Annotated[bool, typer.Option(help="Measure first calls of fresh processes, too.")] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Batches of 8 MiB at most: only to see that it works.")
    ] = False,
    listing: Annotated[bool, typer.Option("--list", help="Name ways and batches, and end.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Where to write every trial.")] = None,
    png: Annotated[Path | None, typer.Option(help="Where to draw the picture; needs matplotlib.")] = None,
) -> None:
    """Measure how long it takes to hand a batch from one process to another, in all ways that are installed here.

    Every result is compared with what was put. Ends with an error if rollferry gave back anything else.
    """
    from rich.console import Console  # here, to keep `--help` fast

    from rollferry import RollferryError
    from rollferry.bench.options import BenchOptions
    from rollferry.bench.session import choices, run_and_show

    if listing:
        Console().print(choices())
        return
    try:
        options = BenchOptions(
            arms=_names(arms),
            workloads=_names(workloads),
            trials=trials,
            samples=samples,
            size=size,
            sweep=sweep,
            file=str(file or ""),
            allow_pickle=allow_pickle,
            segment_at=segment_at,
            memory=memory,
            baseline=baseline,
            cold=cold,
            quick=quick,
            json_file=str(json_file or ""),
            png=str(png or ""),
        )
        run_and_show(options)
    except (RollferryError, ValueError, OSError) as error:
        typer.echo(f"rollferry bench: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("rollferry bench: interrupted; all processes were ended", err=True)
        raise typer.Exit(_INTERRUPTED) from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
