"""Adam, over a dict of arrays."""

from __future__ import annotations

import numpy as np

from rollferry.demo.policy import Parameters

__all__ = ["Adam"]


class Adam:
    """Adam with a limit on the gradient's norm.

    Parameters
    ----------
    parameters : dict of ndarray
        Updated in place by `apply`.
    learning_rate : float
        Step size.
    max_norm : float
        Gradients longer than this are scaled down to it.
    """

    def __init__(self, parameters: Parameters, learning_rate: float, max_norm: float = 1.0) -> None:
        self.parameters = parameters
        self.learning_rate = learning_rate
        self.max_norm = max_norm
        self.count = 0
        self._mean = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._square = {name: np.zeros_like(value) for name, value in parameters.items()}

    def apply(self, gradient: Parameters) -> None:
        """Move the parameters one step against the gradient."""
        self.count += 1
        norm = float(np.sqrt(sum(float((value * value).sum()) for value in gradient.values())))
        scale = min(1.0, self.max_norm / (norm + 1e-12))
        rate = self.learning_rate * np.sqrt(1.0 - 0.999**self.count) / (1.0 - 0.9**self.count)
        for name, value in gradient.items():
            scaled = value * scale
            mean, square = self._mean[name], self._square[name]
            mean += 0.1 * (scaled - mean)
            square += 0.001 * (scaled * scaled - square)
            self.parameters[name] -= (rate * mean / (np.sqrt(square) + 1e-8)).astype(mean.dtype)
