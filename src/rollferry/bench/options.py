"""What a run of the benchmark is asked for."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from rollferry.bench.arms import ARMS
from rollferry.bench.workloads import WORKLOADS

__all__ = ["DEFAULT_MEMORY", "DEFAULT_TRIALS", "BenchOptions", "parse_size", "parse_sizes"]

DEFAULT_TRIALS = 5
DEFAULT_MEMORY = "6gb"

_DEFAULT_WORKLOADS = ("shard", "rows")
_SWEEP, _SWEEP_WORKLOADS, _STEP = "1mb..2gb", ("rows",), 4
_UNITS = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_PICKLED = (".pkl", ".pickle", ".pt")
_PICTURES = (".png", ".svg", ".pdf")
_SIDES = ("producer", "consumer")


class BenchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run.

    Parameters
    ----------
    arms, workloads
        Names; empty for what is usual.
    trials
        Trials that count.
    samples
        Samples of every workload; 0 for as many as each has by default.
    size
        Payload bytes instead, such as ``32mb``, or several of them: ``1mb..2gb``.
    sweep
        Short for a `size` of ``1mb..2gb``.
    file
        Batch of the user's own, instead of workloads.
    allow_pickle
        Whether the file may be unpickled.
    segment_at
        Which process lends the memory of Mooncake's store.
    memory
        Most memory for everything together.
    baseline
        Arm that others are compared with.
    cold
        Whether to measure first calls in fresh processes too.
    quick
        Whether to cut the usual numbers of samples, to batches of 8 MiB at most: to see that it works.
    json_file
        Where to write every trial; nothing for nowhere.
    png
        Where to draw the picture; nothing for nowhere.

    Raises
    ------
    ValueError
        An option makes no sense.
    """

    arms: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    trials: int = DEFAULT_TRIALS
    samples: int = 0
    size: str = ""
    sweep: bool = False
    file: str = ""
    allow_pickle: bool = False
    segment_at: str = "consumer"
    memory: str = DEFAULT_MEMORY
    baseline: str = "pickle-shm"
    cold: bool = True
    quick: bool = False
    json_file: str = ""
    png: str = ""

    def __post_init__(self) -> None:
        _check_names("arm", self.arms, list(ARMS))
        _check_names("arm", (self.baseline,), list(ARMS))
        _check_names("workload", self.workloads, list(WORKLOADS))
        if self.trials < 1 or self.samples < 0:
            raise ValueError("there is at least one trial, and one sample")
        if self.segment_at not in _SIDES:
            raise ValueError(f"{self.segment_at!r} is no side; choose from {', '.join(_SIDES)}")
        if sum(map(bool, (self.samples, self.size, self.sweep, self.quick))) > 1:
            raise ValueError("give one of samples, size, sweep and quick, not several")
        if self.file:
            self._check_file()
        parse_size(self.memory)
        parse_sizes(self.size)
        for path in (self.json_file, self.png):
            _check_target(path)
        if self.png and Path(self.png).suffix.lower() not in _PICTURES:
            raise ValueError(f"{self.png} is no picture; choose from {', '.join(_PICTURES)}")

    def _check_file(self) -> None:
        if self.workloads or self.samples or self.size or self.sweep or self.quick:
            raise ValueError("a file is measured as it is: give no workloads, samples, size, sweep or quick with it")
        if not Path(self.file).is_file():
            raise ValueError(f"there is no file {self.file}")
        if Path(self.file).suffix.lower() in _PICKLED and not self.allow_pickle:
            raise ValueError(f"{self.file} has to be unpickled, which runs code: add --allow-pickle if you trust it")

    @property
    def chosen_arms(self) -> tuple[str, ...]:
        """Names of the arms."""
        return self.arms or tuple(ARMS)

    @property
    def chosen_workloads(self) -> tuple[str, ...]:
        """Names of the workloads."""
        return self.workloads or (_SWEEP_WORKLOADS if len(self.sizes) > 1 else _DEFAULT_WORKLOADS)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Payload bytes to measure, smallest first; none for each workload's own number of samples."""
        return parse_sizes(self.size or (_SWEEP if self.sweep else ""))


def parse_size(text: str) -> int:
    """Read a number of bytes such as ``64mb``.

    Raises
    ------
    ValueError
        It is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(|kb|mb|gb)", text.strip().lower())
    if found is None or not float(found[1]):
        raise ValueError(f"{text!r} is no size; write 64mb, 2gb or a number of bytes")
    return int(float(found[1]) * _UNITS[found[2]])


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read a size, or first and last of sizes that grow fourfold, such as ``1mb..2gb``; nothing for no text.

    Raises
    ------
    ValueError
        It is neither.
    """
    if not text:
        return ()
    first, between, last = text.partition("..")
    if not between:
        return (parse_size(text),)
    low, high = parse_size(first), parse_size(last)
    if low >= high:
        raise ValueError(f"{text!r} does not grow; write the smaller size first")
    sizes = []
    while low < high:
        sizes.append(low)
        low *= _STEP
    return (*sizes, high)


def _check_target(path: str) -> None:
    """Refuse to write a file where none can be, before anything is measured."""
    directory = Path(path).parent
    if path and not directory.is_dir():
        raise ValueError(f"{path} can't be written: there is no directory {directory}")
    if path and (Path(path).is_dir() or not os.access(path if Path(path).exists() else directory, os.W_OK)):
        raise ValueError(f"{path} can't be written")


def _check_names(kind: str, names: tuple[str, ...], known: list[str]) -> None:
    wrong = [name for name in names if name not in known]
    if wrong:
        raise ValueError(f"there is no {kind} {', '.join(wrong)}; choose from {', '.join(known)}")
