"""``rollferry version``."""

from __future__ import annotations

import platform

import typer

__all__ = ["version"]


def version() -> None:
    """Print the version of rollferry, Python and NumPy."""
    import numpy as np  # here, to keep `--help` fast

    import rollferry

    typer.echo(f"rollferry {rollferry.__version__} (Python {platform.python_version()}, NumPy {np.__version__})")
