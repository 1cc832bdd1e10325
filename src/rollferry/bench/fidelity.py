"""What a result has in common with what was put: everything, the values, or not even these."""

from __future__ import annotations

import sys
from itertools import starmap
from typing import Any

import numpy as np

from rollferry import LazyList, LazyRows
from rollferry.bench.errors import MismatchError
from rollferry.bench.workloads import Batch
from rollferry.testing import assert_same, differences

__all__ = ["EXACT", "TYPES", "VALUES", "judge", "same_values"]

EXACT, TYPES, VALUES = "exact", "types", "values"  # nothing differs, types differ, values differ

_NOTES = 3


def judge(result: Batch, expected: Batch, *, exact: bool) -> tuple[str, list[str]]:
    """Compare a result with what was put.

    Parameters
    ----------
    result, expected
        The batches.
    exact
        Whether any difference is an error.

    Returns
    -------
    str, list of str
        `EXACT`, `TYPES` or `VALUES`, and the first differences in words.

    Raises
    ------
    MismatchError
        They differ although they must not.
    """
    cut = {
        key: type(expected.get(key, []))(value) if isinstance(value, LazyRows | LazyList) else value
        for key, value in result.items()
    }
    if exact:
        try:
            assert_same(cut, expected)
        except AssertionError as error:
            raise MismatchError(f"the result differs from what was put: {error}") from None
        return EXACT, []
    found = differences(cut, expected, limit=_NOTES)
    if not found:
        return EXACT, []
    return TYPES if same_values(cut, expected) else VALUES, found


def same_values(left: Any, right: Any) -> bool:
    """Say whether two values hold the same numbers and texts, whatever their containers and number types are.

    Lists, tuples and arrays are the same where their items are, dicts whatever the order of their keys. NaNs are the same.
    """
    left, right = _as_array(left), _as_array(right)
    if isinstance(left, dict) or isinstance(right, dict):
        return (
            isinstance(left, dict)
            and isinstance(right, dict)
            and left.keys() == right.keys()
            and all(same_values(left[key], right[key]) for key in right)
        )
    if _is_plain(left) and _is_plain(right):
        return left.shape == right.shape and _equal(left, right)
    if _is_rows(left) and _is_rows(right):
        return len(left) == len(right) and all(starmap(same_values, zip(left, right, strict=True)))
    if _is_rows(left) or _is_rows(right):
        return False
    return bool(left == right or (left != left and right != right))  # noqa: PLR0124  # that is how to tell a NaN


def _as_array(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.to(torch.float32).numpy() if value.dtype == torch.bfloat16 else value.numpy()
    return value.item() if isinstance(value, np.generic) else value


def _is_plain(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype != object


def _is_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _equal(left: Any, right: Any) -> bool:
    return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc" and right.dtype.kind in "fc")
