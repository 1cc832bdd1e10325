"""The command line: ``rollferry`` with ``bench``, ``demo``, ``doctor [URL]``, ``explain FILE`` and ``version``."""

from __future__ import annotations

import typer

from rollferry.cli import bench as _bench
from rollferry.cli import demo as _demo
from rollferry.cli import doctor as _doctor
from rollferry.cli import explain as _explain
from rollferry.cli import version as _version

__all__ = ["app"]

app = typer.Typer(
    name="rollferry",
    help="Carry rollout batches between the processes that generate them and the processes that train on them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("bench")(_bench.bench)
app.command("demo")(_demo.demo)
app.command("doctor")(_doctor.doctor)
app.command("explain")(_explain.explain)
app.command("version")(_version.version)
