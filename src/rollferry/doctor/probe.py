"""A batch put, got, compared and removed, by the public API."""

import time
from typing import Any

import numpy as np

import rollferry
from rollferry.checks import Finding, ok, size
from rollferry.engines.registry import EngineURL
from rollferry.testing import differences

__all__ = ["round_trip"]

VALUES = 1 << 18  # 1 MiB: more than any engine treats as small
NAMESPACE = "rollferry-doctor"


def round_trip(url: EngineURL) -> Finding:
    """Put a batch through an engine; nothing is left of it. Raises RollferryError where that fails."""
    batch = make_batch()
    with rollferry.connect(url.text, namespace=NAMESPACE) as ferry:
        start = time.monotonic()
        ref = ferry.put(batch)
        try:
            middle = time.monotonic()
            found = differences(ferry.get(ref.to_json()), batch)
            end = time.monotonic()
        finally:
            removed = ferry.remove(ref)
        if found or not removed:
            return Finding("fail", f"it came back as another: {found}" if found else "it vanished", "report it")
    times = f"put {(middle - start) * 1000:.1f} ms, get {(end - middle) * 1000:.1f} ms"
    return ok(f"{size(VALUES * 4)} came back equal; {times}")


def make_batch() -> dict[str, Any]:
    """Make a small batch of many kinds of values."""
    lengths = (VALUES - 7, 7, 0)
    return {
        "tokens": [np.arange(length, dtype=np.int32) for length in lengths],
        "rewards": [0.5, float("nan"), -0.0],
        "texts": ["", "ferry", "Fähre"],
        "metadata": [{"tools": ("calc",), "teacher": None}, {}, None],
    }
