"""The picture of a run: reward, trainer stall, and who did what when. Needs matplotlib, imported on use."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from rollferry.demo.activity import Activity
from rollferry.demo.records import RunRecord

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

__all__ = ["draw"]

_TITLE = "Reinforcement learning with rollout and trainer processes, joined by rollferry"
_MODE_COLORS = {"sync": "#8c8c8c", "async": "#1f6fb4"}
_KIND_COLORS = {"generate": "#2a9d8f", "train": "#e9a23b", "put": "#c8372d", "get": "#5b3fa0", "check": "#c3c7cc"}
_KIND_LABELS = {"check": "check (digest)"}
_TITLES = {"sync": "sync: generate, then train", "async": "async: the next step is generated while this one trains"}
_FEW_STEPS = 12
_STEPS_SHOWN = 3.0  # how many sync steps fit the timeline
_TEXT = "#333333"


def draw(records: list[RunRecord], path: Path) -> None:
    """Write the picture.

    Parameters
    ----------
    records : list of RunRecord
        One or two runs.
    path : Path
        Where to; its suffix chooses the format.

    Raises
    ------
    ImportError
        There is no matplotlib.
    """
    from matplotlib.figure import Figure  # here, for it is an extra and slow to import

    processes = max(len(record.activities) for record in records)
    figure = Figure(figsize=(12, 4.0 + len(records) * (1.0 + 0.36 * processes)), layout="constrained")
    figure.suptitle(
        "Reinforcement learning with rollout and trainer processes, joined by rollferry", fontsize=14, color=_TEXT
    )
    heights = [3.2, *([0.6 + 0.36 * processes] * len(records))]
    grid = figure.add_gridspec(1 + len(records), 2, height_ratios=heights, width_ratios=[3, 2])
    _draw_rewards(figure.add_subplot(grid[0, 0]), records)
    _draw_stalls(figure.add_subplot(grid[0, 1]), records)
    span = _STEPS_SHOWN * min(record.seconds / len(record.steps) for record in records)
    for row, record in enumerate(records, start=1):
        axes = figure.add_subplot(grid[row, :])
        _draw_timeline(axes, record, span)
        if row == len(records):
            axes.set_xlabel("milliseconds", color=_TEXT)
    handles, labels = _legend()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(_KIND_COLORS) + 1, frameon=False)
    figure.savefig(path, dpi=130)


def _draw_rewards(axes: Axes, records: list[RunRecord]) -> None:
    """Draw the mean reward of each step."""
    for record in records:
        steps = [step.step + 1 for step in record.steps]
        rewards = [step.reward for step in record.steps]
        axes.plot(steps, rewards, color=_MODE_COLORS[record.mode], linewidth=2.2, label=record.mode, marker=_dot(steps))
    axes.set_title("Mean reward of each step", loc="left", color=_TEXT)
    axes.set_xlabel("training step", color=_TEXT)
    axes.set_ylim(0.0, 1.03)
    axes.legend(frameon=False, loc="lower right")
    _clean(axes)
    axes.grid(axis="y", color="#e6e6e6")


def _draw_stalls(axes: Axes, records: list[RunRecord]) -> None:
    """Draw how long a trainer waited in each step."""
    for record in records:
        steps = [step.step + 1 for step in record.steps]
        stalls = [step.stall_ms for step in record.steps]
        label = f"{record.mode}: {record.stall_seconds:.1f} s of {record.seconds:.1f} s"
        axes.plot(steps, stalls, color=_MODE_COLORS[record.mode], linewidth=2.2, label=label, marker=_dot(steps))
    axes.set_title("Trainer stall: milliseconds without a batch", loc="left", color=_TEXT)
    axes.set_xlabel("training step", color=_TEXT)
    axes.set_ylim(0.0, 1.35 * max(step.stall_ms for record in records for step in record.steps))
    axes.legend(frameon=False, loc="upper right")
    _clean(axes)
    axes.grid(axis="y", color="#e6e6e6")


def _draw_timeline(axes: Axes, record: RunRecord, span: float) -> None:
    """Draw a few steps from the middle of a run, one row for each process."""
    middle = len(record.steps) // 2
    start = record.began + (record.steps[middle - 1].elapsed if middle else 0.0)
    names = list(record.activities)
    for row, name in enumerate(names):
        for kind, color in _KIND_COLORS.items():
            bars = _clip(record.activities[name], kind, start, start + span)
            axes.broken_barh(bars, (row - 0.38, 0.76), facecolors=color, linewidth=0)
    ends = [record.began + step.elapsed for step in record.steps]
    for before, end in pairwise([record.began, *ends]):
        if start <= before < start + span:
            axes.axvline(1e3 * (before - start), color="#999999", linewidth=0.8, linestyle=":", zorder=0)
        if start < end <= start + span:
            axes.axvline(1e3 * (end - start), color="#999999", linewidth=0.8, linestyle=":", zorder=0)
    axes.set_title(f"{_TITLES[record.mode]} (from step {middle + 1} on)", loc="left", color=_TEXT)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0.0, 1e3 * span)
    _clean(axes)
    axes.tick_params(axis="y", length=0)


def _clip(activities: list[Activity], kind: str, start: float, end: float) -> list[tuple[float, float]]:
    """Return begin and width, in milliseconds from `start`, of what lies in a stretch of time."""
    return [
        (1e3 * (max(activity.start, start) - start), 1e3 * (min(activity.end, end) - max(activity.start, start)))
        for activity in activities
        if activity.kind == kind and activity.end > start and activity.start < end
    ]


def _legend() -> tuple[list[Artist], list[str]]:
    """Return handles and labels of the kinds of work."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [Patch(color=color) for color in _KIND_COLORS.values()]
    labels = [_KIND_LABELS.get(kind, kind) for kind in _KIND_COLORS]
    return [*handles, Line2D([], [], color="#999999", linestyle=":")], [*labels, "end of a training step"]


def _clean(axes: Axes) -> None:
    """Take the frame away."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#bbbbbb")
    axes.tick_params(colors=_TEXT)


def _dot(steps: list[int]) -> str:
    """Return a marker for runs so short that a line alone would not show."""
    return "o" if len(steps) < _FEW_STEPS else ""
