"""A rollout worker: generates with the newest weights it was given and puts the batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from rollferry.demo.activity import Recorder
from rollferry.demo.batches import Batch, build_batch, mean_scores
from rollferry.demo.carrier import Carrier
from rollferry.demo.messages import Finished, Generate, Ready, Rolled
from rollferry.demo.options import DemoOptions
from rollferry.demo.policy import Parameters
from rollferry.demo.processes import ignore_termination
from rollferry.demo.sampling import generate
from rollferry.demo.task import draw_problems, encode

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["RolloutWorker", "run_rollout"]


class RolloutWorker:
    """The state of one rollout process.

    Parameters
    ----------
    index : int
        Which of the workers it is.
    options : DemoOptions
        The run.
    carrier : Carrier
        The way to the trainers.
    recorder : Recorder
        Notes what it does.
    """

    def __init__(self, index: int, options: DemoOptions, carrier: Carrier, recorder: Recorder) -> None:
        self.index = index
        self.options = options
        self.carrier = carrier
        self.recorder = recorder
        self.rng = np.random.default_rng([options.seed, 1, index])
        self.parameters: Parameters = {}

    def answer(self, order: Generate) -> Rolled:
        """Generate what was ordered and put it."""
        if order.weights is not None:
            with self.carrier.receive(order.weights, order.step) as weights:
                self.parameters = {name: value.copy() for name, value in weights["parameters"].items()}
        with self.recorder.record("generate", order.step):
            batches = self.generate(order)
        scores = [mean_scores(batch) for batch in batches]
        counts = [len(batch["tokens"]) for batch in batches]
        self.carrier.put_seconds.clear()
        shards = [self.carrier.send(batch, order.step) for batch in batches]
        return Rolled(
            step=order.step,
            version=order.version,
            shards=shards,
            samples=sum(counts),
            reward=float(np.average([reward for reward, _ in scores], weights=counts)),
            exact=float(np.average([exact for _, exact in scores], weights=counts)),
            put_seconds=list(self.carrier.put_seconds),
            activities=self.recorder.drain(),
        )

    def generate(self, order: Generate) -> list[Batch]:
        """Sample this worker's share of a step, and return it as one batch for each trainer."""
        recipe, options = self.options.recipe, self.options
        mine = np.array_split(np.arange(recipe.groups), options.workers)[self.index].tolist()  # within the step
        problems = draw_problems(self.rng, len(mine), recipe.operand_limit)
        repeated = [problem for problem in problems for _ in range(recipe.group_size)]
        completions = generate(self.parameters, [encode(problem.prompt) for problem in repeated], self.rng)
        groups = [order.step * recipe.groups + group for group in mine for _ in range(recipe.group_size)]
        batches = []
        for part in np.array_split(np.arange(len(mine)), options.trainers):
            rows = slice(int(part[0]) * recipe.group_size, (int(part[-1]) + 1) * recipe.group_size)
            batches.append(
                build_batch(
                    repeated[rows],
                    completions[rows],
                    groups[rows],
                    version=order.version,
                    step=order.step,
                    first=groups[rows.start] * recipe.group_size,
                )
            )
        return batches


def run_rollout(connection: Connection[Any, Any], index: int, options: DemoOptions) -> None:
    """Answer the coordinator's orders until it says stop."""
    recorder = Recorder()
    carrier = Carrier(options.url, options.namespace, recorder)
    left = 0
    try:
        worker = RolloutWorker(index, options, carrier, recorder)
        connection.send(Ready())
        while isinstance(order := connection.recv(), Generate):
            connection.send(worker.answer(order))
    finally:
        ignore_termination()
        left = carrier.close()
    connection.send(Finished(left, carrier.equal, time.process_time()))
