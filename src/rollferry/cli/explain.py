"""``rollferry explain FILE``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["explain"]


def explain(
    file: Annotated[
        Path, typer.Argument(help="A batch: .npz (arrays) or .json (an object).", exists=True, dir_okay=False)
    ],
    url: Annotated[str, typer.Option(help="The engine that the batch would go through.")] = "shm://",
) -> None:
    """Show how a batch would be laid out: one line for each field. Nothing is put."""
    from rich.console import Console  # here, to keep `--help` fast

    import rollferry
    from rollferry.files import load_batch

    try:
        batch = load_batch(file)
        with rollferry.connect(url, namespace="explain") as ferry:
            Console().print(ferry.explain(batch))
    except (ValueError, rollferry.RollferryError) as error:
        typer.echo(f"rollferry explain: {file}: {error}", err=True)
        raise typer.Exit(1) from None
