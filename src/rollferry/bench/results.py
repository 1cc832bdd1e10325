"""What is kept of a run: every trial, as it was measured, and what follows from them."""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec
from msgspec import field

__all__ = ["FIGURES", "ArmResult", "Floor", "LeftOut", "Report", "Run", "Spread", "Trial"]

#: The times of a trial, in the order in which they are taken.
FIGURES = ("put", "get", "collect", "touch", "release", "remove")


class Spread(msgspec.Struct, frozen=True):
    """Median, smallest and largest of some seconds."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, seconds: list[float]) -> Spread:
        """Give those of a list that has at least one item."""
        return cls(median(seconds), min(seconds), max(seconds))


class Trial(msgspec.Struct, frozen=True):
    """One batch handed over.

    Parameters
    ----------
    put, get, collect, touch, release, remove
        Seconds: the batch stored, rebuilt, young objects looked at by the cyclic collector, every byte of the batch read
        once, the result given back, what was stored removed.
    put_phases, get_phases
        Seconds within put and get, where the arm knows them.
    stored_nbytes, ref_nbytes
        Bytes that the store took, and of the reference.
    producer_before, producer_peak, consumer_before, consumer_peak
        Resident bytes of each process before its call, and at most during it (get and touch, in the consumer).
    peaks_are_clean
        Whether the peaks are those of these calls, and not of all that the process did before.
    """

    put: float
    get: float
    collect: float
    touch: float
    release: float
    remove: float
    put_phases: dict[str, float]
    get_phases: dict[str, float]
    stored_nbytes: int
    ref_nbytes: int
    producer_before: int
    producer_peak: int
    consumer_before: int
    consumer_peak: int
    peaks_are_clean: bool


class ArmResult(msgspec.Struct):
    """All trials of an arm on one batch.

    Parameters
    ----------
    name, title, remark
        The arm's.
    cold
        The first put of a fresh producer and the first get of a fresh consumer, which have no other arms.
    warmup
        The first trial in the processes in which all arms take turns; it counts for nothing.
    trials
        The trials that count.
    fidelity
        ``exact``; ``types`` where the values are the same, in other types; ``values`` where they are not.
    notes
        The first differences.
    """

    name: str
    title: str
    remark: str
    cold: Trial | None = None
    warmup: Trial | None = None
    trials: list[Trial] = field(default_factory=list)
    fidelity: str = "exact"
    notes: list[str] = field(default_factory=list)

    def spread(self, figure: str) -> Spread:
        """Give median, smallest and largest of a time."""
        return Spread.of([getattr(trial, figure) for trial in self.trials])

    def phases(self, figure: str) -> dict[str, float]:
        """Give the median of each phase of put or get."""
        every: list[dict[str, float]] = [getattr(trial, f"{figure}_phases") for trial in self.trials]
        return {name: median(phases.get(name, 0.0) for phases in every) for name in every[0]}


class Floor(msgspec.Struct):
    """What a put or get can't be faster than.

    Parameters
    ----------
    name, title
        Of the floor.
    against
        ``"put"`` or ``"get"``.
    seconds
        Of every trial that counts.
    """

    name: str
    title: str
    against: str
    seconds: list[float] = field(default_factory=list)

    @property
    def spread(self) -> Spread:
        """Median, smallest and largest."""
        return Spread.of(self.seconds)


class LeftOut(msgspec.Struct, frozen=True):
    """What was not measured, and why."""

    what: str
    reason: str


class Run(msgspec.Struct):
    """All arms on one batch.

    Parameters
    ----------
    workload, title
        Of the batch.
    samples
        Its samples; 0 for a file.
    nbytes
        Its payload bytes, as rollferry stores them.
    arms, floors
        What was measured, by name.
    left_out
        Arms that failed on this batch.
    """

    workload: str
    title: str
    samples: int
    nbytes: int
    arms: dict[str, ArmResult] = field(default_factory=dict)
    floors: dict[str, Floor] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    def floor(self, figure: str) -> Floor | None:
        """Give the lowest floor of put or get, or None."""
        fitting = [floor for floor in self.floors.values() if floor.against == figure and floor.seconds]
        return min(fitting, key=lambda floor: floor.spread.median, default=None)

    def over_floor(self, name: str, figure: str) -> float | None:
        """Say how many times as long as its floor an arm's put or get takes; None without a floor."""
        floor = self.floor(figure)
        return None if floor is None else _ratio(self.arms[name].spread(figure), floor.spread)

    def speedup(self, name: str, figure: str, baseline: str) -> float | None:
        """Say how many times as long as an arm another one takes; None without that other one."""
        other = self.arms.get(baseline)
        return None if other is None else _ratio(other.spread(figure), self.arms[name].spread(figure))


class Report(msgspec.Struct):
    """The whole.

    Parameters
    ----------
    date
        When it began, with time zone.
    machine, packages, options
        On what, of what and how it was measured.
    runs
        One for each batch.
    left_out
        Arms, workloads and sizes that were not measured at all.
    """

    date: str
    machine: dict[str, Any]
    packages: dict[str, str]
    options: dict[str, Any]
    runs: list[Run] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Give everything for JSON: raw trials, and their summaries beside them."""
        whole = {"format": 1, **msgspec.to_builtins(self)}
        for run, raw in zip(self.runs, whole["runs"], strict=True):
            for name, result in run.arms.items():
                raw["arms"][name]["summary"] = {
                    **{figure: msgspec.to_builtins(result.spread(figure)) for figure in FIGURES},
                    **{f"{figure}_over_floor": run.over_floor(name, figure) for figure in ("put", "get")},
                }
            for name, floor in run.floors.items():
                raw["floors"][name]["summary"] = msgspec.to_builtins(floor.spread)
        return whole


def _ratio(longer: Spread, shorter: Spread) -> float | None:
    return longer.median / shorter.median if shorter.median else None
