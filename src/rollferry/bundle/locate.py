"""Where in a batch a refused value lies."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["locate"]

MAX_VISITS = 5_000_000


def locate(batch: Mapping[Any, Any], value: object) -> str | None:
    """Give the path of an object in a batch, such as ``metadata[17].tools[0]``, found by identity; None if it isn't there."""
    stack: list[tuple[str, Any]] = [(top_level(key), item) for key, item in reversed(list(batch.items()))]
    seen: set[int] = set()
    while stack and len(seen) < MAX_VISITS:
        path, item = stack.pop()
        if item is value:
            return path
        if id(item) in seen:
            continue
        children = list(parts(item))
        if children:
            seen.add(id(item))
            stack.extend((path + step, child) for step, child in reversed(children))
    return next((f"key {key!r}" for key in batch if key is value), None)


def parts(item: Any) -> Iterator[tuple[str, Any]]:
    """Give what a value consists of, with the step to each."""
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
    elif type(item).__module__.partition(".")[0] == "tensordict" and hasattr(item, "items"):
        yield from ((step(key), child) for key, child in item.items())


def step(key: object) -> str:
    """Give the step to a dict's value."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def top_level(key: object) -> str:
    """Give the name of a field in a path."""
    return key if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"
