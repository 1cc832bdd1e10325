"""Values along their first axis: its length, and rows of those that are rebuilt as a whole first."""

import sys
from typing import Any

import numpy as np

from rollferry.layouts.base import Int64Array
from rollferry.layouts.optional import load

__all__ = ["first_axis", "is_tensor", "take_rows"]


def is_tensor(value: object) -> bool:
    """Whether a value is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def first_axis(value: Any) -> int | None:
    """Give the length of the first axis of an array, tensor or TensorDict; None for anything else."""
    if type(value) is np.ndarray:
        return len(value) if value.ndim else None
    if is_tensor(value):
        return int(value.size(0)) if value.dim() else None
    tensordict = sys.modules.get("tensordict")
    if tensordict is not None and isinstance(value, tensordict.TensorDictBase):
        return int(value.batch_size[0]) if value.batch_size else None
    return None


def take_rows(value: Any, indices: Int64Array, *, readonly: bool = False) -> Any:
    """Give rows along the first axis, in memory of their own, which can be read-only where it is an array's."""
    if type(value) is np.ndarray:
        rows = value[indices]
        rows.flags.writeable = not readonly
        return rows
    torch = sys.modules["torch"]
    if is_tensor(value) and value.is_nested:
        if value.layout == torch.jagged:
            taken: Any = load("torch").take_components(value, indices)
            return taken
        rows = value.unbind()
        return torch.nested.as_nested_tensor([rows[number] for number in indices.tolist()], layout=value.layout)
    return value[torch.from_numpy(indices)]
