"""Batches to measure with: the shapes of a rollout captured from Miles, 3,386 bytes of arrays a sample on average.

Eight source samples with responses of 256 tokens and prompts that sum to 628, repeated to n samples with a fresh
allocation for every row. The source values are random, so no value repeats within a sample.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

PROMPTS = (92, 61, 78, 85, 70, 99, 66, 77)
RESPONSE = 256
VOCABULARY = 151_936


def rollout(n: int, seed: int = 0, convert: Callable[[Any], Any] = np.ndarray.copy) -> dict[str, Any]:
    """Give a batch of n samples; `convert` makes each row."""
    rng = np.random.default_rng(seed)
    source = [
        (
            rng.integers(0, VOCABULARY, prompt + RESPONSE).astype(np.int32),
            np.ones(RESPONSE, np.int32),
            (-5 * rng.random(RESPONSE)).astype(np.float32),
        )
        for prompt in PROMPTS
    ]
    samples = [source[i % len(source)] for i in range(n)]
    return {
        "tokens": [convert(tokens) for tokens, _, _ in samples],
        "loss_masks": [convert(mask) for _, mask, _ in samples],
        "rollout_log_probs": [convert(log_probs) for _, _, log_probs in samples],
        "partition": list(range(n)),
        "sample_indices": list(range(n)),
        "response_lengths": [RESPONSE] * n,
        "rewards": rng.random(n).tolist(),
        "truncated": [1] * n,
        "weight_versions": [[f"v{i % 3}"] for i in range(n)],
        "raw_reward": rng.random(n).tolist(),
        "total_lengths": [len(tokens) for tokens, _, _ in samples],
    }


def dense(seed: int = 0) -> dict[str, Any]:
    """Give three dense arrays, 101 MiB."""
    rng = np.random.default_rng(seed)
    shape = (2048, 4309)
    return {name: rng.random(shape, np.float32) for name in ("values", "returns", "advantages")}


WORKLOADS: dict[str, Callable[[], dict[str, Any]]] = {
    "rows-39221": lambda: rollout(39_221),
    "shard-64": lambda: rollout(64),
    "lists-2048": lambda: rollout(2_048, convert=np.ndarray.tolist),
    "dense": dense,
}
