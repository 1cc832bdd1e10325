"""The picture of a run: put and get against size, or against a baseline. Needs matplotlib, imported on use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rollferry.bench.arms import ARMS
from rollferry.bench.results import Report, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["draw"]

_TEXT = "#333333"
_FLOOR = "#999999"
_FEW_DECADES = 1e3
#: One colour for each arm, whatever else is drawn: rollferry's strong, the others after them.
_COLORS = dict(
    zip(
        ARMS,
        ("#c8372d", "#e9733a", "#f2b134", "#7f7f7f", "#bdbdbd", "#2a9d8f", "#8fd3c8", "#1f4e9c", "#7aa6e0"),
        strict=True,
    )
)
_LABELS = {"put": "put: dict ready to reference returned", "get": "get: reference to dict complete"}


def draw(report: Report, baseline: str, path: Path) -> None:
    """Write the picture.

    Parameters
    ----------
    report
        What was measured; at least one batch has an arm left.
    baseline
        Arm that others are compared with.
    path
        Where to; its suffix chooses the format.

    Raises
    ------
    ImportError
        There is no matplotlib.
    """
    from matplotlib.figure import Figure  # here, for it is an extra and slow to import

    runs_with_arms = [run for run in report.runs if run.arms]
    groups: dict[str, list[Run]] = {}
    for run in runs_with_arms:
        groups.setdefault(run.workload, []).append(run)
    tall = max(len(run.arms) for run in runs_with_arms)
    figure = Figure(figsize=(13, 0.9 + len(groups) * (1.6 + 0.34 * tall)), layout="constrained")
    machine = report.machine
    where = f"one machine, {machine['cpu']}, {machine['cores']} cores, {report.date[:10]}"
    figure.suptitle(f"Handing a batch from one process to another ({where})", fontsize=13, color=_TEXT)
    grid = figure.subplots(len(groups), 2, squeeze=False)
    for row, runs in zip(grid, groups.values(), strict=True):
        for axes, what in zip(row, _LABELS, strict=True):
            if len(runs) > 1:
                _draw_sizes(axes, runs, what)
            else:
                _draw_ratios(axes, runs[0], what, baseline)
    if len(runs_with_arms) > len(groups):  # bars have names beside them
        _draw_legend(figure, report)
    figure.savefig(path, dpi=130)


def _draw_sizes(axes: Axes, runs: list[Run], what: str) -> None:
    """Draw times against sizes."""
    for name, color in _COLORS.items():
        points = [(run.nbytes / 2**20, 1e3 * run.arms[name].spread(what).median) for run in runs if name in run.arms]
        if points:
            axes.loglog(*zip(*points, strict=True), color=color, marker="o", markersize=4, linewidth=2)
    floors = [(run.nbytes / 2**20, 1e3 * floor.spread.median) for run in runs if (floor := run.floor(what))]
    if floors:
        axes.loglog(*zip(*floors, strict=True), color=_FLOOR, linestyle=":", linewidth=1.5)
    axes.set_title(f"{runs[0].workload}, {_LABELS[what]}", loc="left", color=_TEXT, fontsize=11)
    axes.set_xlabel("MiB", color=_TEXT)
    axes.set_ylabel("milliseconds", color=_TEXT)
    _plain_ticks(axes.xaxis)
    _plain_ticks(axes.yaxis)
    axes.grid(which="major", color="#e6e6e6")
    _clean(axes)


def _draw_ratios(axes: Axes, run: Run, what: str, baseline: str) -> None:
    """Draw how many times as long as each arm the baseline takes; the times themselves, without a baseline."""
    names = list(run.arms)
    medians = [1e3 * run.arms[name].spread(what).median for name in names]
    ratios = [run.speedup(name, what, baseline) for name in names]
    compared = baseline in run.arms
    values = [ratio or 0.0 for ratio in ratios] if compared else medians
    axes.barh(range(len(names)), values, color=[_COLORS[name] for name in names], height=0.72)
    for place, (value, median) in enumerate(zip(values, medians, strict=True)):
        text = f"{value:.3g}x  ({median:.3g} ms)" if compared else f"{median:.3g} ms"
        axes.annotate(text, (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9, color=_TEXT)
    if compared:
        axes.axvline(1.0, color=_FLOOR, linewidth=1.0, linestyle=":")
    axes.set_yticks(range(len(names)), [ARMS[name].title for name in names])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 2, max(values) * 6)  # room for the labels
    _plain_ticks(axes.xaxis)
    axes.set_xlabel(f"times as fast as {ARMS[baseline].title}" if compared else "milliseconds", color=_TEXT)
    axes.set_title(
        f"{run.workload} ({run.nbytes / 2**20:,.3g} MiB), {_LABELS[what]}", loc="left", color=_TEXT, fontsize=11
    )
    _clean(axes)
    axes.tick_params(axis="y", length=0)


def _draw_legend(figure: Figure, report: Report) -> None:
    """Name the colours, below everything."""
    from matplotlib.lines import Line2D

    present = [name for name in _COLORS if any(name in run.arms for run in report.runs)]
    handles = [Line2D([], [], color=_COLORS[name], linewidth=6) for name in present]
    labels = [ARMS[name].title for name in present]
    handles.append(Line2D([], [], color=_FLOOR, linestyle=":"))
    labels.append("floor: copying the bytes (put), making the views (get)")
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def _plain_ticks(axis: Axis) -> None:
    """Write numbers as they are, at powers of ten and, where there are few of these, between them."""
    from matplotlib.ticker import LogLocator

    low, high = axis.get_view_interval()
    between = (1.0, 2.0, 5.0) if high / low < _FEW_DECADES else (1.0,)
    axis.set_major_locator(LogLocator(subs=between))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def _clean(axes: Axes) -> None:
    """Take the frame away."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#bbbbbb")
    axes.tick_params(colors=_TEXT)
