"""Between samples, batches and padded arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollferry.demo.objective import Minibatch, group_advantages
from rollferry.demo.sampling import Completion
from rollferry.demo.task import PAD, Problem, encode, grade

__all__ = ["Batch", "build_batch", "mean_scores", "pad_rows"]

Batch: TypeAlias = dict[str, Any]


def build_batch(
    problems: list[Problem], completions: list[Completion], groups: list[int], *, version: int, step: int, first: int
) -> Batch:
    """Return graded samples as one batch, with the fields and types that RL frameworks use.

    Parameters
    ----------
    problems, completions, groups : list
        One entry for each sample; equal group numbers mark samples of one prompt.
    version : int
        Of the weights that sampled them.
    step : int
        The training step that the batch is for.
    first : int
        Index of the first sample.
    """
    prompts = [problem.prompt for problem in problems]
    lengths = [len(completion.log_probs) for completion in completions]
    responses = [done.tokens[len(done.tokens) - length :] for done, length in zip(completions, lengths, strict=True)]
    grades = [grade(problem, response) for problem, response in zip(problems, responses, strict=True)]
    return {
        "tokens": [completion.tokens for completion in completions],
        "loss_masks": [np.ones(length, dtype=np.int32) for length in lengths],
        "rollout_log_probs": [completion.log_probs for completion in completions],
        "rewards": [reward for reward, _ in grades],
        "response_lengths": lengths,
        "total_lengths": [len(completion.tokens) for completion in completions],
        "truncated": [int(completion.truncated) for completion in completions],
        "prompts": prompts,
        "sample_indices": list(range(first, first + len(problems))),
        "weight_versions": [[str(version)] for _ in problems],
        "metadata": [
            {
                "operands": (problem.left, problem.right),
                "answer": problem.answer,
                "group": group,
                "exact": exact,
                "tags": ["carry"] if problem.left % 10 + problem.right % 10 > 9 else [],
                "judge": None,
            }
            for problem, group, (_, exact) in zip(problems, groups, grades, strict=True)
        ],
        "vocabulary_check": encode(prompts[0]) if prompts else None,
        "teacher_log_probs": None,
        "rollout_id": step,
    }


def mean_scores(batch: Batch) -> tuple[float, float]:
    """Return the mean reward and the share of exact answers."""
    exact = [sample["exact"] for sample in batch["metadata"]]
    return float(np.mean(batch["rewards"])), float(np.mean(exact))


def pad_rows(batches: list[Batch]) -> Minibatch:
    """Join batches into padded rows; the result shares no memory with them.

    Parameters
    ----------
    batches : list of dict
        As made by `build_batch`. No group may be spread over two of them.
    """
    totals = _numbers(batches, "total_lengths")
    positions = np.arange(int(totals.max()))[None, :]
    filled = positions < totals[:, None]
    sampled = filled & (positions >= (totals - _numbers(batches, "response_lengths"))[:, None])
    tokens = np.full(filled.shape, PAD, dtype=np.int32)
    mask = np.zeros(filled.shape, dtype=np.float32)
    log_probs = np.zeros(filled.shape, dtype=np.float32)
    tokens[filled] = np.concatenate([row for batch in batches for row in batch["tokens"]])
    mask[sampled] = np.concatenate([row for batch in batches for row in batch["loss_masks"]])
    log_probs[sampled] = np.concatenate([row for batch in batches for row in batch["rollout_log_probs"]])
    advantages = [
        group_advantages(batch["rewards"], [sample["group"] for sample in batch["metadata"]]) for batch in batches
    ]
    return Minibatch(tokens, mask, log_probs, np.concatenate(advantages), np.ones(filled.shape, dtype=np.float32))


def _numbers(batches: list[Batch], name: str) -> NDArray[np.int64]:
    """Return a field of numbers, joined over batches."""
    return np.array([value for batch in batches for value in batch[name]], dtype=np.int64)
