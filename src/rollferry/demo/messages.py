"""What the coordinator and its processes say to each other: refs and numbers, never a payload."""

from __future__ import annotations

from dataclasses import dataclass

from rollferry.demo.activity import Activity
from rollferry.demo.carrier import Parcel

__all__ = ["Failed", "Finished", "Generate", "Ready", "Rolled", "Stop", "Train", "Trained"]


@dataclass(frozen=True, slots=True)
class Generate:
    """To a rollout worker: generate for a step; with new weights, or with those at hand where None."""

    step: int
    version: int
    weights: Parcel | None


@dataclass(frozen=True, slots=True)
class Train:
    """To a trainer: train on its shards; `began` is when the run did, so that no stall counts from before."""

    step: int
    shards: list[Parcel]
    began: float


@dataclass(frozen=True, slots=True)
class Stop:
    """To any process: give everything back and end."""


@dataclass(frozen=True, slots=True)
class Ready:
    """From any process, once: it is connected. The first trainer adds the first weights."""

    weights: Parcel | None = None


@dataclass(frozen=True, slots=True)
class Rolled:
    """From a rollout worker: its shards of a step, one for each trainer."""

    step: int
    version: int
    shards: list[Parcel]
    samples: int
    reward: float
    exact: float
    put_seconds: list[float]
    activities: list[Activity]


@dataclass(frozen=True, slots=True)
class Trained:
    """From a trainer: a step is done. All trainers hold the same weights; the first one puts them."""

    step: int
    weights_digest: str
    weights: Parcel | None
    staleness: int
    loss: float
    clipped: float
    stall_seconds: float
    get_seconds: list[float]
    activities: list[Activity]


@dataclass(frozen=True, slots=True)
class Finished:
    """From any process, last: bundles of its that nobody had removed, those it got and found equal, CPU time used."""

    left: int
    equal: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """From any process: it cannot go on; `follows` where only because another one could not."""

    report: str
    follows: bool
