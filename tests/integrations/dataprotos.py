"""A stand-in for verl's DataProto: its attributes and what it demands of them; and batches in it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict


@dataclass
class DataProto:
    batch: TensorDict | None = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batch is not None and len(self.batch.batch_size) != 1:
            raise AssertionError("one batch dimension")
        for name, value in self.non_tensor_batch.items():
            if not isinstance(value, np.ndarray) or (self.batch is not None and len(value) != len(self)):
                raise AssertionError(f"{name} is no array of {len(self)} rows")

    def __len__(self) -> int:
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        return len(next(iter(self.non_tensor_batch.values()), ()))


def objects(*values: Any) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def jagged(*rows: Any) -> Any:
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def padded(seed: int = 0, rows: int = 4) -> DataProto:
    """As verl pads it: prompts on the left, responses on the right."""
    generator = torch.Generator().manual_seed(seed)
    batch = TensorDict(
        {
            "input_ids": torch.randint(0, 150_000, (rows, 7), generator=generator),
            "attention_mask": torch.ones(rows, 7, dtype=torch.int64),
            "rollout_log_probs": torch.randn(rows, 3, generator=generator).to(torch.bfloat16),
        },
        batch_size=[rows],
    )
    others = {
        "uid": objects(*(f"prompt-{row // 2}" for row in range(rows))),
        "multi_modal_inputs": objects(*({"pixel_values": torch.full((row, 2), 0.5)} for row in range(rows))),
        "raw_prompt": objects(*([{"role": "user", "content": "é" * row}] for row in range(rows))),
    }
    return DataProto(batch, others, {"temperature": 0.7, "eos_token_id": [1, 2], "validate": False})


def unpadded() -> DataProto:
    """Without padding; positions are ragged in their third dimension."""
    offsets = torch.tensor([0, 2, 2, 5, 6])
    make = torch.nested.nested_tensor_from_jagged
    ids = make(torch.arange(6), offsets)
    fields = {
        "input_ids": ids,
        "loss_mask": make(torch.ones(6, dtype=torch.bool), ids.offsets()),
        "position_ids": make(torch.arange(24).reshape(4, 6), ids.offsets(), jagged_dim=2),
        "seq_len": torch.tensor([2, 0, 3, 1]),
    }
    return DataProto(TensorDict(fields, batch_size=[4]), {}, {"global_steps": 3})
