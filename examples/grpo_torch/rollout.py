"""A rollout worker: samples the newest weights it was given, grades, and puts the batches."""

import argparse
import time
from typing import Any

import numpy as np
import torch

import rollferry
from policy import Policy, generate
from processes import Line
from task import Problem, draw, encode, grade


class Rollout:
    def __init__(self, ferry: rollferry.Ferry, options: argparse.Namespace, index: int) -> None:
        self.ferry, self.options, self.index = ferry, options, index
        self.rng = np.random.default_rng([options.seed, 1, index])
        self.generator = torch.Generator().manual_seed(int(self.rng.integers(2**63)))
        self.policy = Policy()
        self.version = -1  # of the weights in it

    def answer(self, step: int, weights: str) -> dict[str, Any]:
        """Generate this worker's share of a step with these weights."""
        load_ms = self.load(rollferry.TransferRef.from_json(weights))
        batch = self.generate(step)
        start = time.perf_counter()
        ref = self.ferry.put(batch, metadata={"step": step, "weight_version": self.version})
        return {
            "rolled": step,
            "batch": ref.to_json(),
            "nbytes": ref.nbytes,
            "reward": float(np.mean(batch["rewards"])),
            "exact": float(np.mean([sample["exact"] for sample in batch["metadata"]])),
            "put_ms": 1e3 * (time.perf_counter() - start),
            "load_ms": load_ms,
        }

    def load(self, ref: rollferry.TransferRef) -> float:
        """Take over weights, unless they are those at hand; milliseconds that their get took."""
        version = ref.metadata["weight_version"]
        if version == self.version:
            return 0.0
        start = time.perf_counter()
        weights = self.ferry.get(ref, readonly=True)
        took = time.perf_counter() - start
        self.policy.load_state_dict(weights)  # copies, so nothing of the bundle is held
        self.version = version
        return 1e3 * took

    def generate(self, step: int) -> dict[str, Any]:
        """A batch of whole groups: the samples of one problem come one after the other."""
        options = self.options
        groups = options.groups // options.workers
        first = (step * options.workers + self.index) * groups  # group of the run
        problems = [one for one in draw(self.rng, groups, options.limit) for _ in range(options.group_size)]
        prompts = [encode(problem.prompt) for problem in problems]
        done = generate(self.policy, prompts, options.longest, self.generator)
        rewards = [reward(problem, one.response) for problem, one in zip(problems, done, strict=True)]
        return {
            "tokens": [np.array(p + one.response, np.int32) for p, one in zip(prompts, done, strict=True)],
            "loss_masks": [np.ones(len(one.response), np.int32) for one in done],
            "rollout_log_probs": [one.log_probs.numpy() for one in done],
            "rewards": rewards,
            "response_lengths": [len(one.response) for one in done],
            "group_indices": [first + row // options.group_size for row in range(len(done))],
            "prompts": [problem.prompt for problem in problems],
            "weight_versions": [[str(self.version)] for _ in done],
            "metadata": [
                {"answer": problem.answer, "exact": value == 1.0}
                for problem, value in zip(problems, rewards, strict=True)
            ],
        }


def reward(problem: Problem, response: list[int]) -> float:
    """1 for the very answer; a little for what is right in a wrong one, so that there is a way up from anywhere."""
    share = grade(problem, response)
    return share if share == 1.0 else 0.2 * share


def run_rollout(line: Line, ferry: rollferry.Ferry, options: argparse.Namespace, index: int) -> None:
    """Answer orders until it is to stop."""
    torch.set_num_threads(1)
    rollout = Rollout(ferry, options, index)
    line.tell(ready=True)
    while (order := line.hear())["do"] == "generate":
        line.tell(**rollout.answer(order["step"], order["weights"]))
