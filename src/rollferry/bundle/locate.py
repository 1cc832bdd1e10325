"""Where in a batch a refused value lies."""

from collections.abc import Mapping
from typing import Any

from rollferry.layouts.contents import contents

__all__ = ["locate", "top_level"]

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
        children = list(contents(item))
        if children:
            seen.add(id(item))
            stack.extend((path + step, child) for step, child in reversed(children))
    return next((f"key {key!r}" for key in batch if key is value), None)


def top_level(key: object) -> str:
    """Give the name of a field in a path."""
    return key if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"
