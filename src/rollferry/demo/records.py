"""What is kept of a run: one record for each step, and one for the whole."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rollferry.demo.activity import Activity

__all__ = ["RunRecord", "StepRecord"]

_RISE = 0.1  # the least gain of reward, from the first quarter to the last, that counts as learning


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One training step.

    Parameters
    ----------
    mode : str
        ``"sync"`` or ``"async"``.
    step : int
        From 0.
    reward, exact : float
        Mean reward and share of exact answers, as sampled.
    put_ms, get_ms : float
        Mean for one bundle.
    bundles, nbytes, samples : int
        How much was handed over.
    stall_ms : float
        How long a trainer waited for its shards, mean over trainers.
    staleness : int
        Age in steps of the oldest weights that sampled the step.
    loss, clipped : float
        Mean loss, and the share of tokens whose ratio was clipped.
    elapsed : float
        Seconds from the start of the run to the end of the step.
    """

    mode: str
    step: int
    reward: float
    exact: float
    put_ms: float
    get_ms: float
    bundles: int
    nbytes: int
    samples: int
    stall_ms: float
    staleness: int
    loss: float
    clipped: float
    elapsed: float


@dataclass(slots=True)
class RunRecord:
    """A whole run.

    Parameters
    ----------
    mode : str
        ``"sync"`` or ``"async"``.
    began : float
        Monotonic time of the start, once all processes were up.
    steps : list of StepRecord
        In order.
    activities : dict of list of Activity
        By process.
    left : int
        Bundles that were still there when all was done.
    equal : int
        Batches, gradients and weights that arrived, each equal to what was put.
    cpu_seconds : float
        CPU time of all processes, start-up included.
    """

    mode: str
    began: float = 0.0
    steps: list[StepRecord] = field(default_factory=list)
    activities: dict[str, list[Activity]] = field(default_factory=dict)
    left: int = 0
    equal: int = 0
    cpu_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Wall time."""
        return self.steps[-1].elapsed

    @property
    def samples_per_second(self) -> float:
        """Samples trained on, by wall time."""
        return sum(step.samples for step in self.steps) / self.seconds

    @property
    def stall_seconds(self) -> float:
        """How long a trainer waited in all."""
        return sum(step.stall_ms for step in self.steps) / 1e3

    @property
    def first_reward(self) -> float:
        """Mean reward of the first tenth of the steps."""
        return self._mean_reward(0, max(1, len(self.steps) // 10))

    @property
    def last_reward(self) -> float:
        """Mean reward of the last tenth of the steps."""
        return self._mean_reward(-max(1, len(self.steps) // 10), None)

    @property
    def reward_rose(self) -> bool:
        """Whether the last quarter of the steps earned clearly more than the first."""
        quarter = max(1, len(self.steps) // 4)
        return self._mean_reward(-quarter, None) > self._mean_reward(0, quarter) + _RISE

    def _mean_reward(self, start: int, stop: int | None) -> float:
        """Return the mean reward of some steps."""
        rewards = [step.reward for step in self.steps[start:stop]]
        return sum(rewards) / len(rewards)

    def summary(self) -> dict[str, Any]:
        """Return the whole record but for the activities, for JSON."""
        return {
            "mode": self.mode,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "samples_per_second": self.samples_per_second,
            "stall_seconds": self.stall_seconds,
            "first_reward": self.first_reward,
            "last_reward": self.last_reward,
            "reward_rose": self.reward_rose,
            "left": self.left,
            "equal": self.equal,
            "steps": [asdict(step) for step in self.steps],
        }
