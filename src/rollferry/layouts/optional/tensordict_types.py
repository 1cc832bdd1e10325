"""tensordict: TensorDict, its lazy stacks and its non-tensor entries, taken apart into tensors and values."""

from functools import partial
from typing import Any

from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict

from rollferry.errors import UnsupportedValueError
from rollferry.layouts.optional import load
from rollferry.layouts.tree.registered import register_builtin


def encode_dict(value: TensorDict) -> tuple[Any, ...]:
    """Take a TensorDict apart."""
    if value.device is not None and value.device.type != "cpu":
        raise UnsupportedValueError(f"a TensorDict on {value.device}; move it to the CPU first (.cpu())", value)
    names = list(value.names) if any(name is not None for name in value.names) else None
    return dict(value.items()), list(value.batch_size), names, None if value.device is None else str(value.device)


def decode_dict(parts: tuple[Any, ...]) -> TensorDict:
    """Rebuild a TensorDict over its tensors."""
    items, batch_size, names, device = parts
    if type(items) is not dict or type(batch_size) is not list:
        raise ValueError("a TensorDict consists of a dict and a batch size")
    return TensorDict(items, batch_size=batch_size, names=names, device=device)


def decode_data(parts: tuple[Any, ...]) -> Any:
    """Rebuild a non-tensor entry."""
    data, batch_size = parts
    if type(batch_size) is not list:
        raise ValueError("the batch size of a non-tensor entry is a list")
    return NonTensorData(data, batch_size=batch_size)


def encode_stack(value: Any) -> tuple[Any, ...]:
    """Take a lazy stack apart."""
    return list(value.tensordicts), value.stack_dim


def decode_stack(cls: type, parts: tuple[Any, ...]) -> Any:
    """Rebuild a lazy stack."""
    stacked, dimension = parts
    if type(stacked) is not list:
        raise ValueError("a lazy stack consists of a list")
    return cls(*stacked, stack_dim=dimension)


load("torch")
register_builtin(TensorDict, "tensordict.TensorDict", encode_dict, decode_dict, tuple)
register_builtin(
    NonTensorData, "tensordict.NonTensorData", lambda value: (value.data, list(value.batch_size)), decode_data, tuple
)
for stack in (NonTensorStack, LazyStackedTensorDict):
    register_builtin(stack, f"tensordict.{stack.__name__}", encode_stack, partial(decode_stack, stack), tuple)
