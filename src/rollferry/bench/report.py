"""What the terminal shows: progress, or plain lines where there is no terminal, and tables."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from rich import progress
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from rollferry.bench.results import FIGURES, ArmResult, Report, Run, Spread

__all__ = ["Progress", "left_out_lines", "machine_line", "tables"]

_MIB = 1 << 20
_HINTS = {
    "put": "stored",
    "get": "rebuilt",
    "collect": "looked at",
    "touch": "all read",
    "release": "given back",
    "remove": "deleted",
}


class Progress:
    """How far a run is: a bar that goes when its work is done, or a line for each workload where there is no terminal.

    Used as a context.

    Parameters
    ----------
    console
        Where to.
    baseline
        Arm that others are compared with.
    """

    def __init__(self, console: Console, baseline: str) -> None:
        self._console = console
        self._baseline = baseline
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("[dim]{task.fields[step]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task("", step="")

    def begin(self, what: str, steps: int = 0) -> None:
        """Begin with something that takes so many steps; 0 where these aren't known."""
        if self._bars.disable:
            self._console.print(f"{what} ...", highlight=False)
        self._bars.remove_task(self._task)
        self._task = self._bars.add_task(what, total=steps or None, step="", completed=-1 if steps else 0)

    def step(self, what: str) -> None:
        """Name the step that begins; the one before it is done."""
        self._bars.update(self._task, advance=1, step=what)

    def finish(self, run: Run) -> None:
        """Print the tables of a batch."""
        self._console.print(tables(run, self._baseline))

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


def machine_line(machine: dict[str, Any]) -> str:
    """Name the machine in a line."""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"Python {machine['python']}; a producer and a consumer process on this one machine"
    )


def tables(run: Run, baseline: str) -> Group:
    """Give everything on a batch: times, first calls and memory, phases, and what to know."""
    if not run.arms:
        return Group(Text(f"{run.workload}: no arm is left", style="yellow"), *_remarks(run), "")
    parts: list[Any] = [_times(run, baseline), _first_and_memory(run)]
    if any(result.trials[0].put_phases for result in run.arms.values()):
        parts.append(_phases(run))
    return Group(*parts, *_remarks(run), "")


def left_out_lines(report: Report) -> Group:
    """Give what was left out of the whole."""
    return Group(*(Text(f"left out: {left.what}: {left.reason}", style="yellow") for left in report.left_out))


def _times(run: Run, baseline: str) -> Table:
    """Give the times of all arms, as multiples of the floors, and how many times as long the baseline takes."""
    size = f"{run.nbytes / _MIB:,.1f} MiB"
    samples = f"{run.samples:,} samples, " if run.samples else ""
    trials = max((len(result.trials) for result in run.arms.values()), default=0)
    title = f"{run.workload}: {run.title}, {samples}{size}. Milliseconds: median of {trials}, smallest - largest"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for figure in FIGURES:
        table.add_column(f"{figure}\n[dim]{_HINTS[figure]}", justify="right", no_wrap=True)
    table.add_column("x floor\n[dim]put, get", justify="right", no_wrap=True)
    table.add_column(f"vs {baseline}\n[dim]put, get", justify="right", no_wrap=True)
    for name, result in run.arms.items():
        over = [run.over_floor(name, figure) for figure in ("put", "get")]
        speedups = [run.speedup(name, figure, baseline) for figure in ("put", "get")]
        cells = (_spread(result.spread(figure)) for figure in FIGURES)
        table.add_row(_title(result), *cells, _ratios(over), _ratios(speedups))
    table.add_section()
    for floor in run.floors.values():
        cells = (_spread(floor.spread) if figure == floor.against else "" for figure in FIGURES)
        table.add_row(f"floor: {floor.title}", *cells, "", "", style="dim")
    return table


def _first_and_memory(run: Run) -> Table:
    """Give the first calls of fresh processes, and memory."""
    alone = all(result.cold for result in run.arms.values())
    title = (
        "First calls of fresh processes, ms; memory, MiB" if alone else "Memory, MiB, of processes that have all arms"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("first put", "first get", "peak of producer", "peak of consumer", "stored", "reference"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in run.arms.values():
        cold, last = result.cold, result.trials[-1]
        peaks = cold or last
        table.add_row(
            _title(result),
            _ms(cold.put) if cold else "",
            _ms(cold.get) if cold else "",
            f"{peaks.producer_peak / _MIB:,.0f} (+{max(peaks.producer_peak - peaks.producer_before, 0) / _MIB:,.0f})",
            f"{peaks.consumer_peak / _MIB:,.0f} (+{max(peaks.consumer_peak - peaks.consumer_before, 0) / _MIB:,.0f})",
            f"{last.stored_nbytes / _MIB:,.1f}",
            f"{last.ref_nbytes:,} B",
        )
    return table


def _phases(run: Run) -> Table:
    """Give where rollferry's own time goes."""
    table = Table(title="Within rollferry's put and get: median ms of each phase", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("put")
    table.add_column("get")
    for result in run.arms.values():
        put, get = (
            ", ".join(f"{name} {_ms(seconds)}" for name, seconds in result.phases(figure).items())
            for figure in ("put", "get")
        )
        if put or get:
            table.add_row(_title(result), put, get)
    return table


def _remarks(run: Run) -> Iterator[Text]:
    """Give what to know of arms, differences between results and batches, and arms that failed."""
    for result in run.arms.values():
        if result.remark:
            yield Text(f"{result.title}: {result.remark}", style="dim")
        if result.fidelity != "exact":
            kind = "the values are the same, but not their types" if result.fidelity == "types" else "values differ"
            yield Text(f"{result.title} is lossy: {kind}: {'; '.join(result.notes)}", style="yellow")
        if not all(trial.peaks_are_clean for trial in (result.cold, *result.trials) if trial):
            yield Text(f"{result.title}: the peaks are those of the processes' whole lives", style="yellow")
    for left in run.left_out:
        yield Text(f"left out here: {left.what}: {left.reason}", style="yellow")


def _title(result: ArmResult) -> str:
    return result.title if result.fidelity == "exact" else f"{result.title} (lossy)"


def _spread(spread: Spread) -> str:
    return f"{_ms(spread.median)}\n[dim]{_ms(spread.min)}-{_ms(spread.max)}"


def _ms(seconds: float) -> str:
    """Give milliseconds with three digits that mean something."""
    ms = 1e3 * seconds
    return f"{ms:,.0f}" if ms >= 99.95 else f"{ms:.1f}" if ms >= 9.995 else f"{ms:.2f}" if ms >= 0.0995 else f"{ms:.3f}"


def _ratios(pair: list[float | None]) -> str:
    return "\n".join("-" if ratio is None else f"{_digits(ratio)}x" for ratio in pair)


def _digits(number: float) -> str:
    """Give a number with two or three digits that mean something."""
    return f"{number:,.0f}" if number >= 99.5 else f"{number:.1f}" if number >= 0.95 else f"{number:.2g}"
