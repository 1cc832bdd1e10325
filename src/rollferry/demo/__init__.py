"""Disaggregated reinforcement learning in miniature: what ``rollferry demo`` runs.

Rollout processes sample a small policy, trainer processes learn from the batches, and everything between them
(batches, gradients, weights) goes through a ferry. NumPy only.
"""

from __future__ import annotations

from rollferry.demo.errors import DemoError
from rollferry.demo.options import DEFAULT_STEPS, DemoOptions, Recipe
from rollferry.demo.session import run_demo

__all__ = ["DEFAULT_STEPS", "DemoError", "DemoOptions", "Recipe", "run_demo"]
