"""A whole benchmark: run, shown, written and drawn."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from rollferry.bench.arms import ARMS
from rollferry.bench.machine import describe_machine
from rollferry.bench.options import BenchOptions
from rollferry.bench.report import describe, end, show_progress
from rollferry.bench.results import Report
from rollferry.bench.runner import run_bench
from rollferry.bench.workloads import WORKLOADS

__all__ = ["bench", "choices"]

_WIDTH = 150  # of tables where there is no terminal


def bench(
    options: BenchOptions,
    *,
    json_file: Path | None = None,
    picture: Path | None = None,
    console: Console | None = None,
) -> Report:
    """Run the benchmark and show it.

    Parameters
    ----------
    options
        What to measure.
    json_file
        Where to write everything that was measured.
    picture
        Where to draw it.
    console
        Where to show it; standard output by default.

    Raises
    ------
    BenchError
        A result of rollferry's differs from what was put, a process died, or there is nothing to measure.
    """
    console = console or default_console()
    console.print(describe(describe_machine()), highlight=False, markup=False, soft_wrap=True)
    with _termination_interrupts(), show_progress(console, options.baseline) as progress:
        report = run_bench(options, progress)
    console.print(end(report))
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="utf-8")
        console.print(f"Everything: {json_file}", highlight=False, markup=False, soft_wrap=True)
    if picture is not None:
        _draw(report, options.baseline, picture, console)
    return report


def choices() -> Table:
    """Give all arms and workloads, and which arms lack something here."""
    table = Table("", "", "")
    for name, arm in ARMS.items():
        table.add_row(name, arm.title, arm.missing() or arm.version(), style="dim" if arm.missing() else "")
    table.add_section()
    for name, workload in WORKLOADS.items():
        table.add_row(name, workload.title, f"{workload.samples:,} samples")
    return table


def default_console() -> Console:
    """Give standard output, wide enough for tables where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)


def _draw(report: Report, baseline: str, path: Path, console: Console) -> None:
    """Draw the picture, or say what is missing."""
    from rollferry.bench.plot import draw

    try:
        draw(report, baseline, path)
    except ImportError:
        console.print(
            "No picture: matplotlib is missing; `pip install 'rollferry[bench]'` adds it.",
            highlight=False,
            markup=False,
        )
    else:
        console.print(f"Picture: {path}", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that nothing is left behind; only the main thread can say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
