"""The task of the demo: sums of small numbers, written digit by digit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BEGIN", "END", "PAD", "SYMBOLS", "VOCABULARY", "Problem", "decode", "draw_problems", "encode", "grade"]

SYMBOLS = "0123456789+="
END = len(SYMBOLS)  # closes an answer
PAD = END + 1  # fills the right of padded rows; never sampled into a batch
BEGIN = END + 2  # opens every prompt
VOCABULARY = len(SYMBOLS) + 3

_PARTIAL_CREDIT = 0.5  # what a wrong answer can earn at most, for the symbols it has in the right place


@dataclass(frozen=True, slots=True)
class Problem:
    """One prompt with its answer.

    Parameters
    ----------
    left, right : int
        The two operands.
    """

    left: int
    right: int

    @property
    def prompt(self) -> str:
        """The text that the policy continues."""
        return f"{self.left}+{self.right}="

    @property
    def answer(self) -> str:
        """The text that earns the full reward."""
        return str(self.left + self.right)


def draw_problems(rng: np.random.Generator, count: int, operand_limit: int) -> list[Problem]:
    """Draw problems with both operands in ``[0, operand_limit]``."""
    operands = rng.integers(0, operand_limit + 1, size=(count, 2))
    return [Problem(int(left), int(right)) for left, right in operands]


def encode(prompt: str) -> NDArray[np.int32]:
    """Return the token ids of a prompt, with the opening token in front."""
    return np.array([BEGIN, *(SYMBOLS.index(symbol) for symbol in prompt)], dtype=np.int32)


def decode(tokens: NDArray[np.int32]) -> str:
    """Return the text of token ids; control tokens become visible marks."""
    marks = {END: "$", PAD: "_", BEGIN: "^"}
    return "".join(marks.get(int(token)) or SYMBOLS[int(token)] for token in tokens)


def grade(problem: Problem, response: NDArray[np.int32]) -> tuple[float, bool]:
    """Grade a response.

    Returns
    -------
    tuple of (float, bool)
        The reward, 1.0 for the exact answer, else partial credit for symbols in the right place; and whether
        the answer was exact.
    """
    target = [*(SYMBOLS.index(symbol) for symbol in problem.answer), END]
    given = response.tolist()
    if given == target:
        return 1.0, True
    matches = sum(wanted == got for wanted, got in zip(target, given, strict=False))
    return _PARTIAL_CREDIT * matches / max(len(target), len(given)), False
