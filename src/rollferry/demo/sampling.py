"""Generation: continue prompts token by token, and keep the log-probability of each token drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollferry.demo.policy import Array, Parameters, input_table, log_softmax, step
from rollferry.demo.task import BEGIN, END, PAD

__all__ = ["MAX_RESPONSE", "Completion", "generate"]

MAX_RESPONSE = 4  # tokens; an answer needs three at most, the end token with it
_NEVER_SAMPLED = (PAD, BEGIN)


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished sample.

    Parameters
    ----------
    tokens : ndarray of int32
        Prompt and response.
    log_probs : ndarray of float32
        One for each response token, under the weights it was drawn with.
    truncated : bool
        Whether the response ran into the length limit without its end token.
    """

    tokens: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    truncated: bool


def mask_logits(logits: Array) -> Array:
    """Rule out, in place, the tokens that are never sampled; return the same array."""
    logits[..., _NEVER_SAMPLED] = -1e9
    return logits


def generate(parameters: Parameters, prompts: list[NDArray[np.int32]], rng: np.random.Generator) -> list[Completion]:
    """Sample one completion for each prompt.

    All rows advance together by one token at a time; a row starts to sample when its prompt is used up, and leaves
    the computation when it draws the end token.
    """
    prompt_lengths = np.array([len(prompt) for prompt in prompts])
    limit = int(prompt_lengths.max()) + MAX_RESPONSE
    tokens = np.full((len(prompts), limit), PAD, dtype=np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    log_probs = np.zeros((len(prompts), limit), dtype=np.float32)
    lengths = prompt_lengths + MAX_RESPONSE
    table = input_table(parameters)
    active = np.arange(len(prompts))
    state: Array = np.zeros((len(prompts), table.shape[1] // 3), table.dtype)
    for t in range(limit - 1):
        state, _, _ = step(parameters, table, tokens[active, t], state)
        sampling = prompt_lengths[active] <= t + 1
        if not sampling.any():
            continue
        rows = active[sampling]
        logits = state[sampling] @ parameters["output_weight"] + parameters["output_bias"]
        scores = log_softmax(mask_logits(logits))
        drawn = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)
        tokens[rows, t + 1] = drawn
        log_probs[rows, t + 1] = scores[np.arange(len(rows)), drawn]
        lengths[rows[drawn == END]] = t + 2
        keep = lengths[active] > t + 2
        active, state = active[keep], state[keep]
        if not len(active):
            break
    return [
        Completion(
            tokens[row, : lengths[row]].copy(),
            log_probs[row, prompt_lengths[row] : lengths[row]].copy(),
            bool(tokens[row, lengths[row] - 1] != END),
        )
        for row in range(len(prompts))
    ]
