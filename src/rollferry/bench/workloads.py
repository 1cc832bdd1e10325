"""Batches to measure with. Each is made of a fixed seed, so that producer and consumer make the same one.

The rows are those of a rollout captured from Miles: eight source samples with responses of 256 tokens and prompts that
sum to 628, 3,386 bytes of arrays a sample on average, repeated to n samples with a fresh allocation for every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rollferry.files import load_batch

__all__ = ["WORKLOADS", "Batch", "Source", "Workload"]

Batch = dict[Any, Any]

_PROMPTS = (92, 61, 78, 85, 70, 99, 66, 77)
_RESPONSE = 256
_VOCABULARY = 151_936
_EXPERT_LAYERS, _EXPERT_CHOICES = 48, 8
_DENSE_COLUMNS = 4309
_PATCH_NUMBERS = 1176
_TORCH_ROW = 256


def rows(n: int, convert: Callable[[Any], Any] = np.ndarray.copy) -> Batch:
    """Give the captured rollout, with rewards and flags that are all the same, as they were there."""
    source = _source()
    columns = [[convert(source[i % len(source)][field]) for i in range(n)] for field in range(3)]
    return _with_numbers(columns, n)


def rows_shuffled(n: int) -> Batch:
    """Give the same rows, allocated in random order and fields mixed, so that neighbours are no neighbours in memory."""
    source = _source()
    columns: list[list[Any]] = [[None] * n for _ in range(3)]
    for i in np.random.default_rng(1).permutation(n).tolist():
        for field in range(3):
            columns[field][i] = source[i % len(source)][field].copy()
    return _with_numbers(columns, n)


def rows_varied(n: int) -> Batch:
    """Give rows of which each has values of its own, with lengths, rewards and flags that vary too."""
    rng = np.random.default_rng(2)
    responses = rng.integers(_RESPONSE // 4, 2 * _RESPONSE - _RESPONSE // 4 + 1, n)
    totals = responses + rng.choice(_PROMPTS, n)
    columns = [
        _cut(rng.integers(0, _VOCABULARY, totals.sum(), np.int32), totals),
        _cut(rng.integers(0, 2, responses.sum(), np.int32), responses),
        _cut(-5 * rng.random(responses.sum(), np.float32), responses),
    ]
    return _with_numbers(columns, n) | {
        "rewards": rng.random(n).tolist(),
        "raw_reward": rng.normal(size=n).tolist(),
        "truncated": rng.integers(0, 2, n).tolist(),
        "response_lengths": responses.tolist(),
        "weight_versions": [[f"v{i}"] for i in rng.integers(0, 100, n).tolist()],
    }


def lists(n: int) -> Batch:
    """Give the rows as Python lists of numbers."""
    return rows(n, np.ndarray.tolist)


def dense(n: int) -> Batch:
    """Give three arrays of n rows."""
    rng = np.random.default_rng(3)
    return {name: rng.random((n, _DENSE_COLUMNS), np.float32) for name in ("values", "returns", "advantages")}


def experts(n: int) -> Batch:
    """Give the rows with the experts that each token was routed to: tokens - 1, layers, choices."""
    rng = np.random.default_rng(4)
    batch = rows(n)
    batch["rollout_routed_experts"] = [
        rng.integers(0, 128, (len(tokens) - 1, _EXPERT_LAYERS, _EXPERT_CHOICES), np.int32) for tokens in batch["tokens"]
    ]
    return batch


def multimodal(n: int) -> Batch:
    """Give the rows with what a vision model takes: every other row None, or a dict of tensors."""
    import torch  # here, for it is an extra

    generator = torch.Generator().manual_seed(5)
    patches = np.random.default_rng(5).integers(16, 128, n).tolist()
    batch = rows(n)
    batch["multimodal_train_inputs"] = [
        {
            "pixel_values": torch.rand(count, _PATCH_NUMBERS, generator=generator),
            "image_grid_thw": torch.tensor([[1, 2, count // 2]]),
        }
        if i % 2
        else None
        for i, count in enumerate(patches)
    ]
    return batch


def torch_rows(n: int) -> Batch:
    """Give one field of tensors of 1 KB."""
    import torch  # here, for it is an extra

    source = torch.rand(n, _TORCH_ROW, generator=torch.Generator().manual_seed(6))
    return {"hidden": [row.clone() for row in source]}


def _source() -> list[tuple[Any, Any, Any]]:
    """Give tokens, loss mask and log-probs of the source samples."""
    rng = np.random.default_rng(0)
    return [
        (
            rng.integers(0, _VOCABULARY, prompt + _RESPONSE).astype(np.int32),
            np.ones(_RESPONSE, np.int32),
            (-5 * rng.random(_RESPONSE)).astype(np.float32),
        )
        for prompt in _PROMPTS
    ]


def _cut(values: Any, lengths: Any) -> list[Any]:
    """Cut values into rows with memory of their own."""
    ends = np.cumsum(lengths).tolist()
    starts = [0, *ends[:-1]]
    return [values[start:end].copy() for start, end in zip(starts, ends, strict=True)]


def _with_numbers(columns: Iterable[list[Any]], n: int) -> Batch:
    """Give a batch of the three columns of rows, with a number or text for each sample beside them."""
    tokens, masks, log_probs = columns
    return {
        "tokens": tokens,
        "loss_masks": masks,
        "rollout_log_probs": log_probs,
        "partition": list(range(n)),
        "sample_indices": list(range(n)),
        "response_lengths": [_RESPONSE] * n,
        "rewards": [0.0] * n,
        "truncated": [1] * n,
        "weight_versions": [["v0"] for _ in range(n)],
        "raw_reward": [0.0] * n,
        "total_lengths": [len(row) for row in tokens],
    }


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of batch.

    Parameters
    ----------
    title
        What it is, for people.
    make
        Gives the batch of so many samples.
    samples
        How many by default.
    needs
        Package that has to be installed, or nothing.
    """

    title: str
    make: Callable[[int], Batch]
    samples: int
    needs: str = ""


WORKLOADS: dict[str, Workload] = {
    "shard": Workload("one shard: rows of arrays", rows, 64),
    "rows": Workload("rows of arrays", rows, 39_221),
    "rows-shuffled": Workload("rows of arrays, allocated in random order", rows_shuffled, 39_221),
    "rows-varied": Workload("rows of arrays, all values varied", rows_varied, 39_221),
    "lists": Workload("rows as Python lists", lists, 2_048),
    "dense": Workload("three dense arrays", dense, 2_048),
    "experts": Workload("rows with the experts of each token (3-D)", experts, 256),
    "multimodal": Workload("rows with dicts of torch tensors, or None", multimodal, 512, "torch"),
    "torch-rows": Workload("torch tensors of 1 KB", torch_rows, 98_304, "torch"),
}


class Source(msgspec.Struct, frozen=True):
    """Where both processes take a batch from: a workload of so many samples, or a file.

    Parameters
    ----------
    workload
        Name of a workload, or of the file.
    samples
        How many samples; 0 for a file.
    file
        Path of a file; empty for a workload.
    allow_pickle
        Whether the file may be unpickled.
    """

    workload: str
    samples: int
    file: str = ""
    allow_pickle: bool = False

    @property
    def needs(self) -> str:
        """Package that has to be installed, or nothing."""
        if self.file:
            return "torch" if self.file.lower().endswith(".pt") else ""
        return WORKLOADS[self.workload].needs

    def make(self) -> Batch:
        """Make or read the batch."""
        if self.file:
            return load_batch(Path(self.file), allow_pickle=self.allow_pickle)
        return WORKLOADS[self.workload].make(self.samples)
