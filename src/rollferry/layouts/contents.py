"""What values consist of, for messages and for the search for cycles; encoding does not depend on it."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["contains_itself", "contents", "step"]


def contents(item: Any) -> Iterator[tuple[str, Any]]:  # noqa: C901  # one branch for each kind of container
    """Give what a value consists of, with the step of a path to each, such as ``[0]`` or ``.name``."""
    if isinstance(item, dict):
        for key, child in item.items():
            yield step(key), child
            if not isinstance(key, str | int):
                yield f".keys()[{key!r}]", key
    elif isinstance(item, tuple) and hasattr(item, "_fields"):
        yield from ((f".{name}", child) for name, child in zip(item._fields, item, strict=True))
    elif isinstance(item, list | tuple):
        yield from ((f"[{i}]", child) for i, child in enumerate(item))
    elif isinstance(item, set | frozenset):
        yield from ((f"{{{child!r:.30}}}", child) for child in item)
    elif isinstance(item, np.ndarray) and item.dtype == object:
        for index in np.ndindex(item.shape):
            yield f"[{', '.join(map(str, index))}]", item[index]
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        for field in dataclasses.fields(item):
            yield f".{field.name}", getattr(item, field.name, None)
    elif type(item).__module__.partition(".")[0] == "tensordict" and hasattr(item, "tensordicts"):
        yield from ((f".tensordicts[{i}]", child) for i, child in enumerate(item.tensordicts))
    elif type(item).__module__.partition(".")[0] == "tensordict" and hasattr(item, "items"):
        yield from ((step(key), child) for key, child in item.items())


def step(key: object) -> str:
    """Give the step to a dict's value."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def contains_itself(item: Any) -> bool:
    """Whether a container is among its own contents, at any depth."""
    stack = [item]
    seen: set[int] = set()
    while stack:
        for _, child in contents(stack.pop()):
            if child is item:
                return True
            if id(child) not in seen:
                seen.add(id(child))
                stack.append(child)
    return False
