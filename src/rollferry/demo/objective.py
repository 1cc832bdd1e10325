"""The training objective: group-relative advantages and the clipped policy gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollferry.demo.policy import Array, Parameters, backward, forward, log_softmax
from rollferry.demo.sampling import mask_logits

__all__ = ["Minibatch", "Objective", "group_advantages", "policy_gradient", "reanchor", "token_log_probs"]


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Padded rows, ready for the policy.

    Parameters
    ----------
    tokens : ndarray of int32, (B, L)
        Prompt and response, padded on the right.
    mask : ndarray of float32, (B, L)
        1 where the token was sampled by the policy.
    log_probs : ndarray of float32, (B, L)
        Log-probabilities that ratios are taken against, 0 outside the mask: those recorded at sampling time, or
        after `reanchor` those of the weights that training of this batch began with.
    advantages : ndarray of float32, (B,)
        One for each row.
    trust : ndarray of float32, (B, L)
        What each token's gain is multiplied with; 1 where the batch was sampled from the weights being trained.
    """

    tokens: NDArray[np.int32]
    mask: Array
    log_probs: Array
    advantages: Array
    trust: Array

    def part(self, index: int, parts: int) -> Minibatch:
        """Return every ``parts``-th row, from row ``index`` on."""
        rows = slice(index, None, parts)
        return Minibatch(
            self.tokens[rows], self.mask[rows], self.log_probs[rows], self.advantages[rows], self.trust[rows]
        )


@dataclass(frozen=True, slots=True)
class Objective:
    """The constants of the loss.

    Parameters
    ----------
    clip : float
        How far the ratio of new to old probability counts, as in PPO.
    entropy : float
        Weight of the entropy bonus.
    """

    clip: float = 0.2
    entropy: float = 0.01


def group_advantages(rewards: list[float], groups: list[int]) -> NDArray[np.float32]:
    """Return rewards relative to their group: mean 0 and, where they differ at all, deviation 1."""
    values = np.asarray(rewards, dtype=np.float64)
    _, member = np.unique(np.asarray(groups), return_inverse=True)
    count = np.bincount(member)
    centred = values - (np.bincount(member, values) / count)[member]
    deviation = np.sqrt(np.bincount(member, centred * centred) / count)[member]
    return (centred / (deviation + 1e-4)).astype(np.float32)


def token_log_probs(parameters: Parameters, batch: Minibatch) -> Array:
    """Return the log-probability of every sampled token under the given weights, ``(B, L)``, 0 outside the mask."""
    logits, _ = forward(parameters, batch.tokens[:, :-1])
    scores = log_softmax(mask_logits(logits))
    found = np.zeros_like(batch.log_probs)
    found[:, 1:] = np.take_along_axis(scores, batch.tokens[:, 1:].T[..., None], axis=-1)[..., 0].T
    return found * batch.mask


def reanchor(parameters: Parameters, batch: Minibatch, limit: float = 2.0) -> Minibatch:
    """Prepare a stale batch: decouple how far the policy may move from how it was sampled.

    Ratios are clipped against the weights that training begins with, not against the older ones that sampled the
    batch; the recorded log-probs correct for the difference by a truncated importance weight.
    """
    anchor = token_log_probs(parameters, batch)
    trust = np.minimum(np.exp(anchor - batch.log_probs), limit).astype(np.float32)
    return Minibatch(batch.tokens, batch.mask, anchor, batch.advantages, trust)


def policy_gradient(parameters: Parameters, batch: Minibatch, objective: Objective) -> tuple[float, float, Parameters]:
    """Return the clipped loss, its clipped share and its gradient.

    Returns
    -------
    loss : float
        Mean over sampled tokens, to be minimised.
    clipped : float
        The share of sampled tokens whose ratio was clipped, so that they give no gradient.
    gradient : dict of ndarray
        One array for each parameter.
    """
    logits, trace = forward(parameters, batch.tokens[:, :-1])
    scores = log_softmax(mask_logits(logits))
    targets = batch.tokens[:, 1:].T
    mask = batch.mask[:, 1:].T
    weight = (mask / mask.sum()).astype(scores.dtype)
    chosen = np.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    ratio = np.exp((chosen - batch.log_probs[:, 1:].T) * mask)
    credit: Array = batch.advantages[None, :] * batch.trust[:, 1:].T
    gain: Array = credit * ratio
    limited = credit * np.clip(ratio, 1.0 - objective.clip, 1.0 + objective.clip)
    live = gain <= limited
    probabilities = np.exp(scores)
    entropies = -(probabilities * scores).sum(axis=-1)
    loss = -float((weight * (np.minimum(gain, limited) + objective.entropy * entropies)).sum())

    d_chosen = -weight * gain * live
    d_logits = -d_chosen[..., None] * probabilities
    np.put_along_axis(
        d_logits,
        targets[..., None],
        np.take_along_axis(d_logits, targets[..., None], axis=-1) + d_chosen[..., None],
        axis=-1,
    )
    d_logits += (objective.entropy * weight)[..., None] * probabilities * (scores + entropies[..., None])
    clipped = float((weight * ~live).sum())
    return (loss, clipped, backward(parameters, trace, d_logits.astype(logits.dtype, copy=False)))
