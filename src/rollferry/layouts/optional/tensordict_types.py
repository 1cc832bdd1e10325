"""tensordict: TensorDict, its lazy stacks and its non-tensor entries, taken apart into tensors and values."""

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
    return TensorDict(items, batch_size=batch_size, names=names, device=device)


def encode_stack(value: Any) -> tuple[Any, ...]:
    """Take a lazy stack apart."""
    return list(value.tensordicts), value.stack_dim


load("torch")
register_builtin(TensorDict, "tensordict.TensorDict", encode_dict, decode_dict)
register_builtin(
    NonTensorData,
    "tensordict.NonTensorData",
    lambda value: (value.data, list(value.batch_size)),
    lambda parts: NonTensorData(parts[0], batch_size=parts[1]),
)
register_builtin(
    NonTensorStack,
    "tensordict.NonTensorStack",
    encode_stack,
    lambda parts: NonTensorStack(*parts[0], stack_dim=parts[1]),
)
register_builtin(
    LazyStackedTensorDict,
    "tensordict.LazyStackedTensorDict",
    encode_stack,
    lambda parts: LazyStackedTensorDict(*parts[0], stack_dim=parts[1]),
)
