"""A whole benchmark: run, shown, written and drawn."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rollferry.bench.arms import ARMS
from rollferry.bench.children import on_signal
from rollferry.bench.machine import describe_machine
from rollferry.bench.options import BenchOptions
from rollferry.bench.report import Progress, left_out_lines, machine_line
from rollferry.bench.results import Report
from rollferry.bench.runner import run_bench
from rollferry.bench.workloads import WORKLOADS

__all__ = ["choices", "run_and_show"]

_WIDTH = 160  # of tables where there is no terminal


def run_and_show(options: BenchOptions, console: Console | None = None) -> Report:
    """Run the benchmark; show, write and draw what it finds.

    Parameters
    ----------
    options
        What to measure, and where to write it.
    console
        Where to show it; standard output by default.

    Raises
    ------
    BenchError
        A result of rollferry's differs from what was put, a process died, or there is nothing to measure.
    """
    console = console or default_console()
    machine = describe_machine()
    _say(console, machine_line(machine))
    # SIGTERM does what Ctrl-C does, so that nothing is left behind.
    with on_signal(signal.SIGTERM, signal.default_int_handler), Progress(console, options.baseline) as progress:
        report = run_bench(options, machine, progress)
    console.print(left_out_lines(report))
    if options.json_file:
        Path(options.json_file).write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
        _say(console, f"Everything: {options.json_file}")
    if options.png:
        _say(console, _draw(report, options))
    return report


def choices() -> Table:
    """Give all arms and workloads, and which arms lack something here."""
    table = Table("", "", "")
    for name, arm in ARMS.items():
        table.add_row(
            name, arm.title, arm.missing() or " ".join(arm.version() or ()), style="dim" if arm.missing() else ""
        )
    table.add_section()
    for name, workload in WORKLOADS.items():
        table.add_row(name, workload.title, f"{workload.samples:,} samples")
    return table


def default_console() -> Console:
    """Give standard output, wide enough for tables where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _draw(report: Report, options: BenchOptions) -> str:
    """Draw the picture; give what to say of it."""
    from rollferry.bench.plot import draw

    if not any(run.arms for run in report.runs):
        return "No picture: no arm is left."
    try:
        draw(report, options.baseline, Path(options.png))
    except ImportError:
        return "No picture: matplotlib is missing; `pip install 'rollferry[bench]'` adds it."
    return f"Picture: {options.png}"


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
