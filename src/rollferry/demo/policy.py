"""A small autoregressive policy, a GRU over tokens, with its gradient written by hand.

Shapes: ``B`` rows, ``L`` tokens a row, ``V`` vocabulary, ``D`` embedding, ``H`` hidden. The parameters are a flat
dict of arrays, so that weights and gradients are batches like any other and travel through the ferry as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollferry.demo.task import VOCABULARY

__all__ = [
    "Array",
    "Parameters",
    "Trace",
    "backward",
    "forward",
    "init_parameters",
    "input_table",
    "log_softmax",
    "step",
]

Array: TypeAlias = NDArray[np.floating[Any]]
Parameters: TypeAlias = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Trace:
    """What `forward` keeps for `backward`.

    Parameters
    ----------
    tokens : ndarray of int, (L, B)
        The inputs, time first.
    table : ndarray, (V, 3H)
        The embedding seen through the input weights.
    states : ndarray, (L + 1, B, H)
        Hidden states; the first one is zero.
    gates : ndarray, (L, B, 3H)
        Update gate, reset gate and candidate.
    recurrent : ndarray, (L, B, H)
        The candidate's share of the recurrent product, before the reset gate.
    """

    tokens: NDArray[np.int32]
    table: Array
    states: Array
    gates: Array
    recurrent: Array


def init_parameters(rng: np.random.Generator, hidden: int, embedding: int = 32, dtype: Any = np.float32) -> Parameters:
    """Draw fresh parameters."""

    def draw(rows: int, columns: int, scale: float = 1.0) -> Array:
        values: Array = (rng.standard_normal((rows, columns)) * scale / np.sqrt(rows)).astype(dtype)
        return values

    return {
        "embedding": draw(VOCABULARY, embedding, np.sqrt(VOCABULARY)),
        "input_weight": draw(embedding, 3 * hidden),
        "input_bias": np.zeros(3 * hidden, dtype),
        "recurrent_weight": draw(hidden, 3 * hidden),
        "output_weight": draw(hidden, VOCABULARY, 0.5),
        "output_bias": np.zeros(VOCABULARY, dtype),
    }


def input_table(parameters: Parameters) -> Array:
    """Return what each token adds to the gates: ``(V, 3H)``."""
    return parameters["embedding"] @ parameters["input_weight"] + parameters["input_bias"]


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities over the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    normalised: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normalised


def step(parameters: Parameters, table: Array, tokens: NDArray[np.int32], state: Array) -> tuple[Array, Array, Array]:
    """Feed one token to every row.

    Parameters
    ----------
    parameters : dict of ndarray
        The weights.
    table : ndarray, (V, 3H)
        `input_table` of the same weights.
    tokens : ndarray of int, (B,)
        The next token of each row.
    state : ndarray, (B, H)
        The hidden state so far.

    Returns
    -------
    tuple of ndarray
        The next state ``(B, H)``, the gates ``(B, 3H)`` and the candidate's recurrent share ``(B, H)``.
    """
    hidden = state.shape[1]
    product = state @ parameters["recurrent_weight"]
    gates = table[tokens]
    gates[:, : 2 * hidden] += product[:, : 2 * hidden]
    gates[:, : 2 * hidden] = 1.0 / (1.0 + np.exp(-gates[:, : 2 * hidden]))
    update, reset, candidate = (gates[:, :hidden], gates[:, hidden : 2 * hidden], gates[:, 2 * hidden :])
    recurrent = product[:, 2 * hidden :]
    candidate += reset * recurrent
    np.tanh(candidate, out=candidate)
    following = candidate + update * (state - candidate)
    return following, gates, recurrent


def forward(parameters: Parameters, tokens: NDArray[np.int32]) -> tuple[Array, Trace]:
    """Return the logits after every token.

    Parameters
    ----------
    parameters : dict of ndarray
        The weights.
    tokens : ndarray of int, (B, L)
        Padded rows.

    Returns
    -------
    logits : ndarray, (L, B, V)
        Time first: row ``t`` scores what follows token ``t``.
    trace : Trace
        For `backward`.
    """
    rows, length = tokens.shape
    hidden = parameters["recurrent_weight"].shape[0]
    dtype = parameters["recurrent_weight"].dtype
    table = input_table(parameters)
    states: Array = np.zeros((length + 1, rows, hidden), dtype)
    gates: Array = np.empty((length, rows, 3 * hidden), dtype)
    recurrent: Array = np.empty((length, rows, hidden), dtype)
    by_time = np.ascontiguousarray(tokens.T)
    for t in range(length):
        states[t + 1], gates[t], recurrent[t] = step(parameters, table, by_time[t], states[t])
    logits: Array = states[1:] @ parameters["output_weight"] + parameters["output_bias"]
    return logits, Trace(by_time, table, states, gates, recurrent)


def backward(parameters: Parameters, trace: Trace, d_logits: Array) -> Parameters:
    """Return the gradient of a loss with regard to every parameter.

    Parameters
    ----------
    parameters : dict of ndarray
        The weights that `forward` was called with.
    trace : Trace
        What `forward` returned.
    d_logits : ndarray, (L, B, V)
        The loss's gradient with regard to the logits.
    """
    length, rows, width = trace.gates.shape
    hidden = width // 3
    flat_states = trace.states[1:].reshape(-1, hidden)
    flat_d_logits = d_logits.reshape(length * rows, -1)
    d_out = d_logits @ parameters["output_weight"].T
    d_inputs = np.empty_like(trace.gates)  # with regard to the gates' inputs
    d_products = np.empty_like(trace.gates)  # with regard to state @ recurrent_weight
    d_state: Array = np.zeros((rows, hidden), trace.gates.dtype)
    for t in reversed(range(length)):
        d_state += d_out[t]
        previous = trace.states[t]
        update, reset, candidate = (trace.gates[t][:, k * hidden : (k + 1) * hidden] for k in range(3))
        d_candidate = d_state * (1.0 - update) * (1.0 - candidate * candidate)
        d_inputs[t, :, :hidden] = d_state * (previous - candidate) * update * (1.0 - update)
        d_inputs[t, :, hidden : 2 * hidden] = d_candidate * trace.recurrent[t] * reset * (1.0 - reset)
        d_inputs[t, :, 2 * hidden :] = d_candidate
        d_products[t] = d_inputs[t]
        d_products[t, :, 2 * hidden :] *= reset
        d_state = d_state * update + d_products[t] @ parameters["recurrent_weight"].T
    one_hot = np.eye(trace.table.shape[0], dtype=d_inputs.dtype)[trace.tokens.ravel()]
    d_table = one_hot.T @ d_inputs.reshape(-1, width)
    return {
        "embedding": d_table @ parameters["input_weight"].T,
        "input_weight": parameters["embedding"].T @ d_table,
        "input_bias": d_table.sum(axis=0),
        "recurrent_weight": trace.states[:-1].reshape(-1, hidden).T @ d_products.reshape(-1, width),
        "output_weight": flat_states.T @ flat_d_logits,
        "output_bias": flat_d_logits.sum(axis=0),
    }
