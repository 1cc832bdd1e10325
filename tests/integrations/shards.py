"""What Miles puts into its object store: declarations of its fields, a fixed shard, and a strategy over all shards."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from rollferry.integrations.miles import ValueSpec

VALUE_SPEC = {
    **{
        name: ValueSpec(codec="typed_ragged")
        for name in (
            "tokens",
            "loss_masks",
            "rollout_log_probs",
            "teacher_log_probs",
            "opd_reverse_kl",
            "rollout_routed_experts",
            "rollout_indexer_topk",
        )
    },
    **{
        name: ValueSpec(codec="ndarray", dtype="int64")
        for name in (
            "partition",
            "seq_witness_ids",
            "response_lengths",
            "truncated",
            "round_number",
            "sample_indices",
            "rollout_ids",
            "rollout_mask_sums",
        )
    },
    "rewards": ValueSpec(codec="ndarray", dtype="float32"),
    "multimodal_train_inputs": ValueSpec(codec="ragged_tensor_dict"),
    **{name: ValueSpec(codec="msgpack_ragged") for name in ("prompt", "metadata", "weight_versions")},
    **{
        name: ValueSpec(codec="auto")
        for name in (
            "raw_reward",
            "total_lengths",
            "dynamic_global_batch_size",
            "num_microbatches",
            "micro_batch_indices",
            "num_rollouts",
        )
    },
}


def shard() -> dict[str, Any]:
    """A shard of three samples with every field; equal on every call."""
    return {
        "partition": range(0, 6, 2),
        "tokens": [torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([4, 5], dtype=torch.int32), [6, 151_935]],
        "loss_masks": [[1, 1], [0], np.ones(1, np.int32)],
        "rollout_log_probs": [np.float32([-0.1, -0.0]), np.float32([float("nan")]), np.float32([-1e-45])],
        "teacher_log_probs": [[-0.1, -0.2], [-0.3], [0]],
        "opd_reverse_kl": [torch.tensor([0.5, 0.25]), torch.tensor([0.1]), torch.empty(0)],
        "rollout_routed_experts": [np.arange(n * 8, dtype=np.int32).reshape(n, 2, 4) for n in (2, 1, 0)],
        "rollout_indexer_topk": [torch.arange(n * 6, dtype=torch.int32).reshape(n, 3, 2) for n in (2, 1, 1)],
        "seq_witness_ids": [3, 4, 5],
        "response_lengths": [2, 1, 1],
        "rewards": [0.1, None, {"math": 1.0, "style": [0.5, None]}],
        "truncated": [0, 1, 0],
        "round_number": [7, 7, 8],
        "sample_indices": [0, 2, 4],
        "rollout_ids": [0, 1, 1],
        "rollout_mask_sums": [2, 1, 1],
        "multimodal_train_inputs": [None, {"pixel_values": torch.ones(2, 3, dtype=torch.bfloat16)}, {}],
        "prompt": ["hello", [{"role": "user", "content": "wörld"}], "\ud800"],
        "metadata": [{"tools": ("calc",), "teacher": None}, {}, None],
        "weight_versions": [["1", "2"], [], [{"spans": [{"version": "2", "abs_start": 1}], "output_start": 1}]],
        "raw_reward": [0.1, 0.2, 0.3, {"math": 1.0}, None, 0.6],
        "total_lengths": [3, 9, 2, 9, 2, 9],
        "dynamic_global_batch_size": 6,
        "num_microbatches": [1, 2],
        "micro_batch_indices": [[0], [1], [2]],
        "num_rollouts": [1, 1],
        "adapter_slots": [0, 0, 3],
        "step_slots": [0, 3],
        "step_adapter_names": ["first", "second"],
        "step_adapter_batch_sizes": {0: 2, 3: 1},
        "prompt_group_sizes": [4, 2],
        "n_adapters": 4,
    }


def maybe(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.none() | strategy


def per_row(row: SearchStrategy[Any], n: int) -> SearchStrategy[Any]:
    return maybe(st.lists(maybe(row), min_size=n, max_size=n) | st.lists(row, min_size=n, max_size=n))


INTS = st.integers(-(2**70), 2**70) | st.integers(0, 200_000)
FLOATS = st.floats() | st.floats(width=32) | st.integers(-1, 1)
NUMBERS = [np.int32, np.int64, np.uint8, np.uint16, np.float16, np.float32, np.float64, np.bool_]


def typed(numbers: SearchStrategy[Any], dims: int = 1) -> SearchStrategy[Any]:
    """A row as ndarray, tensor or list, its first axis of any length."""

    def made(shape: list[int], dtype: Any) -> Any:
        return (np.arange(np.prod(shape)) % 5 - 1).astype(dtype).reshape(shape)

    shapes = st.lists(st.integers(0, 3), min_size=dims, max_size=dims)
    arrays = st.builds(made, shapes, st.sampled_from(NUMBERS))
    tensors = arrays.map(torch.from_numpy) | arrays.map(lambda array: torch.from_numpy(array).to(torch.bfloat16))
    return arrays | tensors | (st.lists(numbers, max_size=4) if dims == 1 else arrays.map(np.ndarray.tolist))


JSON = st.recursive(
    st.none() | st.booleans() | INTS | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def shards(draw: DrawFn) -> dict[str, Any]:
    """A shard of any number of samples; a field may be absent, None, or have rows that are None."""
    n = draw(st.integers(0, 4))
    counts = maybe(st.lists(INTS, max_size=5))
    ids = per_row(INTS, n) | st.lists(INTS, min_size=n, max_size=n).map(np.array).filter(lambda ids: ids.dtype != "O")
    rewards = FLOATS | st.dictionaries(st.text(max_size=3), FLOATS, max_size=2)
    images = st.dictionaries(st.sampled_from(["pixel_values", "image_grid_thw"]), typed(INTS, 2), max_size=2)
    tokens = per_row(typed(st.integers(0, 151_935)), n)
    floats = per_row(typed(FLOATS), n)
    cubes = per_row(typed(INTS, 3), n)
    fields: dict[str, SearchStrategy[Any]] = {
        "partition": ids | st.builds(range, st.just(0), st.just(2 * n), st.just(2)),
        "tokens": tokens,
        "loss_masks": per_row(typed(st.integers(0, 1) | st.booleans()), n),
        **dict.fromkeys(("rollout_log_probs", "teacher_log_probs", "opd_reverse_kl"), floats),
        **dict.fromkeys(("rollout_routed_experts", "rollout_indexer_topk"), cubes),
        **dict.fromkeys(("seq_witness_ids", "response_lengths", "truncated", "round_number"), ids),
        **dict.fromkeys(("sample_indices", "rollout_ids", "rollout_mask_sums", "adapter_slots"), ids),
        "rewards": per_row(rewards, n) | per_row(st.floats(), n),
        "multimodal_train_inputs": per_row(images, n),
        "prompt": per_row(st.text(max_size=5) | JSON, n),
        "metadata": per_row(JSON, n),
        "weight_versions": per_row(st.lists(st.text(max_size=3) | JSON, max_size=3), n),
        "raw_reward": maybe(st.lists(maybe(rewards), max_size=6)),
        **dict.fromkeys(("total_lengths", "num_microbatches", "step_slots", "prompt_group_sizes"), counts),
        "micro_batch_indices": maybe(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3)),
        **dict.fromkeys(("dynamic_global_batch_size", "n_adapters"), maybe(INTS)),
        "num_rollouts": maybe(INTS) | counts,
        "step_adapter_names": maybe(st.lists(st.text(max_size=4), max_size=3)),
        "step_adapter_batch_sizes": maybe(st.dictionaries(INTS, INTS, max_size=3)),
    }
    names = draw(st.lists(st.sampled_from(sorted(fields)), unique=True, max_size=8) | st.permutations(sorted(fields)))
    return {name: draw(fields[name]) for name in names}
