"""Sums to solve, written symbol by symbol, and how an answer is graded."""

from typing import NamedTuple

import numpy as np

SYMBOLS = "0123456789+="
END = len(SYMBOLS)  # closes an answer, and fills rows up
VOCABULARY = len(SYMBOLS) + 1


class Problem(NamedTuple):
    prompt: str
    answer: str


def draw(rng: np.random.Generator, count: int, limit: int) -> list[Problem]:
    """Sums of two numbers below the limit."""
    pairs = rng.integers(0, limit, (count, 2)).tolist()
    return [Problem(f"{left}+{right}=", str(left + right)) for left, right in pairs]


def encode(text: str) -> list[int]:
    return [SYMBOLS.index(symbol) for symbol in text]


def grade(problem: Problem, response: list[int]) -> float:
    """The share of symbols that are right and in their place, the end with them; 1 for the very answer."""
    wanted = [*encode(problem.answer), END]
    return sum(a == b for a, b in zip(wanted, response, strict=False)) / max(len(wanted), len(response))
