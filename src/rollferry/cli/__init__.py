"""The command line: ``rollferry`` with one module a command; `store` has what those that look at an engine share."""

from __future__ import annotations

import typer

from rollferry.cli import bench as _bench
from rollferry.cli import demo as _demo
from rollferry.cli import doctor as _doctor
from rollferry.cli import explain as _explain
from rollferry.cli import gc as _gc
from rollferry.cli import ls as _ls
from rollferry.cli import show as _show
from rollferry.cli import stat as _stat
from rollferry.cli import top as _top
from rollferry.cli import verify as _verify
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
app.command("gc")(_gc.gc)
app.command("ls")(_ls.ls)
app.command("show")(_show.show)
app.command("stat")(_stat.stat)
app.command("top")(_top.top)
app.command("verify")(_verify.verify)
app.command("version")(_version.version)
