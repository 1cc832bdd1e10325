"""The hand-off of a batch between two processes, measured: what ``rollferry bench`` runs.

A producer and a consumer process hand the same batches over in all ways there are on this machine, in turns.
"""

from __future__ import annotations

from rollferry.bench.errors import BenchError, MismatchError
from rollferry.bench.options import BenchOptions
from rollferry.bench.session import bench, choices

__all__ = ["BenchError", "BenchOptions", "MismatchError", "bench", "choices"]
