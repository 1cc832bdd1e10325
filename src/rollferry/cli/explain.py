"""``rollferry explain FILE``."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["explain", "load_batch"]


def explain(
    file: Annotated[
        Path, typer.Argument(help="A batch: .npz (arrays) or .json (an object).", exists=True, dir_okay=False)
    ],
    url: Annotated[str, typer.Option(help="The engine that the batch would go through.")] = "shm://",
) -> None:
    """Show how a batch would be laid out: one line for each field. Nothing is put."""
    from rich.console import Console  # here, to keep `--help` fast

    import rollferry

    try:
        batch = load_batch(file)
        with rollferry.connect(url, namespace="explain") as ferry:
            Console().print(ferry.explain(batch))
    except (ValueError, rollferry.RollferryError) as error:
        typer.echo(f"rollferry explain: {file}: {error}", err=True)
        raise typer.Exit(1) from None


def load_batch(file: Path) -> dict[str, Any]:
    """Read a batch from a file; pickled content is refused.

    Raises
    ------
    ValueError
        The file holds something else.
    """
    import numpy as np  # here, to keep `--help` fast

    match file.suffix.lower():
        case ".npz":
            try:
                with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                    return {name: archive[name] for name in archive.files}
            except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
                raise ValueError("not an .npz archive of plain arrays; pickled ones are refused") from error
        case ".json":
            try:
                batch = json.loads(file.read_text(encoding="utf-8"))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise ValueError(f"not JSON: {error}") from error
            if isinstance(batch, dict):
                return batch
            raise ValueError(f"a batch is an object with a field for each name, not {type(batch).__name__}")
        case suffix:
            raise ValueError(f"a batch is read from .npz or .json, not {suffix or 'a file without suffix'}")
