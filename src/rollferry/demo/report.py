"""What the terminal shows: a live table, or plain lines where there is no terminal, and the comparison at the end."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollferry.demo.options import MODES, DemoOptions
from rollferry.demo.records import RunRecord, StepRecord

__all__ = ["compare", "describe", "show_steps"]

_ROWS_SHOWN = 12
_BAR_WIDTH = 20
_TITLES = {"sync": "sync: generate, then train", "async": "async: generate the next step while this one trains"}


def describe(options: DemoOptions) -> str:
    """Return what runs, in two lines."""
    recipe = options.recipe
    samples = recipe.groups * recipe.group_size
    return (
        f"{options.workers} rollout and {options.trainers} trainer processes on {os.cpu_count()} cores, "
        f"{samples:,} samples a step, through {options.url}\n"
        f"The policy (a GRU, {recipe.hidden} wide) learns sums up to {recipe.operand_limit}+{recipe.operand_limit} "
        "from reward alone; only refs go through the pipes."
    )


@contextmanager
def show_steps(console: Console, mode: str, steps: int) -> Iterator[Callable[[StepRecord], None]]:
    """Lend a function that shows each finished step.

    Parameters
    ----------
    console : Console
        Where to.
    mode : str
        ``"sync"`` or ``"async"``.
    steps : int
        How many steps will come.
    """
    if not console.is_terminal:
        console.print(_TITLES[mode], highlight=False)
        yield lambda record: console.print(_line(record), highlight=False, soft_wrap=True)
        return
    shown: deque[StepRecord] = deque(maxlen=_ROWS_SHOWN)
    with Live(_live_view(mode, steps, shown), console=console, auto_refresh=False) as live:

        def show(record: StepRecord) -> None:
            shown.append(record)
            live.update(_live_view(mode, steps, shown), refresh=True)

        live.refresh()
        yield show


def _line(record: StepRecord) -> str:
    """Return a step as one plain line."""
    return (
        f"{record.mode:>5} step {record.step:3d}  reward {record.reward:.3f}  exact {record.exact:.3f}  "
        f"put {record.put_ms:6.2f} ms  get {record.get_ms:6.2f} ms  {_size(record.nbytes)} in {record.bundles}  "
        f"stall {record.stall_ms:6.1f} ms  staleness {record.staleness}"
    )


def _live_view(mode: str, steps: int, shown: deque[StepRecord]) -> Group:
    """Return the table of the last steps."""
    table = Table(title=_TITLES[mode], title_justify="left", title_style="bold", expand=False)
    for heading in ("step", "reward", "", "exact", "put ms", "get ms", "handed over", "trainer stall", "staleness"):
        width = None if heading else _BAR_WIDTH
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True, min_width=width)
    for record in shown:
        table.add_row(
            f"{record.step + 1}/{steps}",
            f"{record.reward:.3f}",
            Text("━" * round(record.reward * _BAR_WIDTH), style="green"),
            f"{record.exact:.0%}",
            f"{record.put_ms:.2f}",
            f"{record.get_ms:.2f}",
            _size(record.nbytes),
            f"{record.stall_ms:.0f} ms",
            str(record.staleness),
        )
    return Group(table) if shown else Group(table, Text("starting the processes ...", style="dim"))


def compare(records: list[RunRecord]) -> Table:
    """Return the summary: one column for each mode and, for two, what the second does to the first."""
    table = Table(title="In all", title_justify="left", title_style="bold")
    table.add_column("")
    for record in records:
        table.add_column(record.mode, justify="right", no_wrap=True)
    both = len(records) == len(MODES)
    if both:
        table.add_column("change", justify="right", no_wrap=True)

    def add(label: str, values: list[float], form: Callable[[float], str], *, relative: bool = True) -> None:
        cells = [form(value) for value in values]
        if both:
            first, second = values
            cells.append(f"{second / first - 1.0:+.0%}" if relative and first else "")
        table.add_row(label, *cells)

    add("wall time", [record.seconds for record in records], "{:.1f} s".format)
    add("CPU time of all processes", [record.cpu_seconds for record in records], "{:.1f} s".format)
    add("samples per second", [record.samples_per_second for record in records], "{:,.0f}".format)
    add("trainer stall", [record.stall_seconds for record in records], "{:.2f} s".format)
    add(
        "  of wall time", [record.stall_seconds / record.seconds for record in records], "{:.0%}".format, relative=False
    )
    add("reward at the start", [record.first_reward for record in records], "{:.3f}".format, relative=False)
    add("reward at the end", [record.last_reward for record in records], "{:.3f}".format, relative=False)
    add("put of a bundle, median", [_median(record, "put_ms") for record in records], "{:.2f} ms".format)
    add("get of a bundle, median", [_median(record, "get_ms") for record in records], "{:.2f} ms".format)
    add("oldest weights, in steps", [_oldest(record) for record in records], "{:.0f}".format, relative=False)
    add("arrived, all equal", [record.equal for record in records], "{:,.0f}".format, relative=False)
    add("left behind", [record.left for record in records], "{:.0f}".format, relative=False)
    return table


def _median(record: RunRecord, name: str) -> float:
    """Return the median of a figure over steps."""
    return float(median(getattr(step, name) for step in record.steps))


def _oldest(record: RunRecord) -> float:
    """Return the largest staleness of a run."""
    return max(step.staleness for step in record.steps)


def _size(nbytes: int) -> str:
    """Return a size for reading."""
    return f"{nbytes / 2**20:.2f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.0f} KiB"
