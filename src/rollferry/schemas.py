"""Schemas for the batches that frameworks send. They say which fields there are, and change no value."""

from typing import Final

from rollferry.schema import FieldSchema, Schema

__all__ = ["MILES"]

_MILES_ROWS: Final = (
    "tokens",
    "loss_masks",
    "rollout_log_probs",
    "teacher_log_probs",
    "opd_reverse_kl",
    "rollout_routed_experts",  # rows of shape (tokens - 1, layers, topk)
    "rollout_indexer_topk",  # likewise
    "partition",
    "seq_witness_ids",
    "response_lengths",
    "rewards",
    "truncated",
    "round_number",
    "sample_indices",
    "rollout_ids",
    "rollout_mask_sums",
    "multimodal_train_inputs",
    "prompt",
    "metadata",
    "weight_versions",
    "adapter_slots",
)

#: Fields of a shard that are about its step or the whole rollout: a list here has no row for each sample of the shard.
_MILES_OTHERS: Final = (
    "raw_reward",
    "total_lengths",
    "dynamic_global_batch_size",
    "num_microbatches",
    "micro_batch_indices",
    "num_rollouts",
    "step_slots",
    "step_adapter_names",
    "step_adapter_batch_sizes",
    "prompt_group_sizes",
    "n_adapters",
)

#: Fields of the rollout data of Miles. Any of them may be absent or None, and so may any row. Layouts are inferred, as
#: Miles sends rows as ndarrays, tensors or lists, and rewards as floats, None or dicts.
MILES: Final = Schema({name: FieldSchema(row_aligned=name in _MILES_ROWS) for name in (*_MILES_ROWS, *_MILES_OTHERS)})
