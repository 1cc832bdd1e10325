"""A whole demo: one or two runs, shown, compared, drawn and judged."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from rollferry.demo.coordinator import run_training
from rollferry.demo.options import DEFAULT_STEPS, MODES, DemoOptions
from rollferry.demo.records import RunRecord
from rollferry.demo.report import compare, describe, show_steps
from rollferry.demo.timeline import draw

__all__ = ["run_demo"]


def run_demo(
    options: DemoOptions,
    mode: str = "both",
    *,
    picture: Path | None = None,
    json_file: Path | None = None,
    console: Console | None = None,
) -> bool:
    """Run the demo.

    Parameters
    ----------
    options : DemoOptions
        The run; its namespace is made unique, and its staleness counts for the async mode only.
    mode : str
        ``"sync"``, ``"async"``, or ``"both"`` for one after the other.
    picture : Path, optional
        Where to draw it.
    json_file : Path, optional
        Where to write all figures.
    console : Console, optional
        Where to show it; standard output by default.

    Returns
    -------
    bool
        Whether all went well: nothing was left behind and, given the default number of steps or more, reward rose.

    Raises
    ------
    rollferry.demo.errors.DemoError
        A process failed, or a batch was not equal to what was put.
    """
    console = console or Console()
    console.print(describe(options), highlight=False, markup=False, soft_wrap=True)
    records: list[RunRecord] = []
    for name in MODES if mode == "both" else (mode,):
        run_options = replace(
            options,
            max_staleness=0 if name == "sync" else options.max_staleness,
            namespace=f"{options.namespace}-{os.getpid()}-{name}",
        )
        with show_steps(console, name, options.steps) as on_step:
            records.append(run_training(run_options, name, on_step))
    console.print(compare(records))
    if len(records) == len(MODES) and (os.cpu_count() or 1) < options.workers + options.trainers:
        console.print(
            "Fewer cores than processes: overlap takes the trainers' stall away, but both modes do the same work on the "
            "same cores,\nso their wall times should be close; other load on the machine shows in the difference.",
            highlight=False,
            soft_wrap=True,
        )
    if json_file is not None:
        figures = {"options": asdict(options), "runs": [record.summary() for record in records]}
        json_file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
        console.print(f"Figures: {json_file}", highlight=False, markup=False, soft_wrap=True)
    if picture is not None:
        _draw(records, picture, console)
    return _judge(records, options, console)


def _draw(records: list[RunRecord], path: Path, console: Console) -> None:
    """Draw the picture, or say what is missing."""
    try:
        draw(records, path)
    except ImportError:
        console.print(
            "No picture: matplotlib is missing; `pip install 'rollferry[demo]'` adds it.", highlight=False, markup=False
        )
    else:
        console.print(f"Picture: {path}", highlight=False, markup=False, soft_wrap=True)


def _judge(records: list[RunRecord], options: DemoOptions, console: Console) -> bool:
    """Say what is wrong with the runs, if anything."""
    good = True
    for record in records:
        if record.left:
            console.print(f"{record.mode}: {record.left} bundles were left behind", style="red")
            good = False
        if options.steps >= DEFAULT_STEPS and not record.reward_rose:
            console.print(f"{record.mode}: reward did not rise", style="red")
            good = False
    return good
