"""What can be set for a run of the demo."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DEFAULT_STEPS", "MODES", "DemoOptions", "Recipe"]

DEFAULT_STEPS = 50
MODES = ("sync", "async")
_MAX_PROCESSES = 16


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sizes and constants of the learning problem, tuned for two cores and half a minute.

    Parameters
    ----------
    operand_limit : int
        The largest operand of a sum.
    groups : int
        Problems drawn for each step, over all rollout workers.
    group_size : int
        Samples of each problem; a reward counts relative to its group.
    hidden : int
        Width of the policy.
    minibatches : int
        Optimizer steps for each training step, with one exchange of gradients each.
    learning_rate : float
        Of Adam.
    """

    operand_limit: int = 12
    groups: int = 256
    group_size: int = 16
    hidden: int = 128
    minibatches: int = 16
    learning_rate: float = 4e-3


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of one run, in one mode.

    Parameters
    ----------
    steps : int
        Training steps.
    workers : int
        Rollout processes.
    trainers : int
        Trainer processes.
    max_staleness : int
        How many training steps older than the weights in training those that sampled a batch may be; 0 makes
        generation and training alternate.
    url : str
        The engine, as for `rollferry.connect`.
    namespace : str
        The share of the engine to use.
    seed : int
        Of all random streams. A run without staleness is reproducible.
    recipe : Recipe
        The learning problem.

    Raises
    ------
    ValueError
        A number is out of range.
    """

    steps: int = DEFAULT_STEPS
    workers: int = 2
    trainers: int = 2
    max_staleness: int = 1
    url: str = "shm://"
    namespace: str = "demo"
    seed: int = 0
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.url.startswith("inproc:"):
            raise ValueError("inproc:// is within one process; the demo has several")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}")
        if self.max_staleness < 0:
            raise ValueError(f"max_staleness must not be negative, but is {self.max_staleness}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, but is {self.seed}")
        for name, count in (("workers", self.workers), ("trainers", self.trainers)):
            if not 1 <= count <= _MAX_PROCESSES:
                raise ValueError(f"{name} must be between 1 and {_MAX_PROCESSES}, not {count}")
        rows = self.recipe.groups * self.recipe.group_size // self.trainers
        if self.recipe.groups < self.workers * self.trainers or rows < self.recipe.minibatches:
            raise ValueError("the recipe has too few groups for so many workers and trainers")
