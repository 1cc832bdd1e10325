"""What tests do to results: find their leaves, overwrite them, hand their arrays to torch, look into directories."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every array, tensor and bytearray in a value, with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype.kind == "O"):
        for i, item in enumerate(value.flat if isinstance(value, np.ndarray) else value):
            yield from leaves(item, f"{path}[{i}]")
        if isinstance(value, np.ndarray):
            yield path, value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, np.ndarray | bytearray | torch.Tensor):
        yield path, value


def scribble(value: Any) -> None:
    """Flip every bit of every writable array, tensor and bytearray in a value."""
    for leaf in {id(leaf): leaf for _, leaf in leaves(value)}.values():
        if isinstance(leaf, bytearray):
            leaf[:] = bytes(byte ^ 0xFF for byte in leaf[:100]) + leaf[100:]
        elif isinstance(leaf, torch.Tensor):
            if not leaf.is_nested and leaf.is_contiguous() and leaf.numel() and not leaf.is_conj():
                leaf.reshape(-1).view(torch.uint8).bitwise_not_()
        elif leaf.flags.writeable and leaf.flags.c_contiguous and leaf.size and not leaf.dtype.hasobject:
            bits = leaf.reshape(-1).view(np.uint8)
            np.bitwise_not(bits, out=bits)


def read_only(value: Any) -> list[str]:
    """Paths of the arrays of a value that can't be written to."""
    return [path for path, leaf in leaves(value) if isinstance(leaf, np.ndarray) and not leaf.flags.writeable]


def hand_to_torch(value: Any) -> None:
    """Make a tensor of each array that torch takes; torch warns when the memory is not writable."""
    for _, leaf in leaves(value):
        if isinstance(leaf, np.ndarray) and leaf.dtype.isnative and leaf.dtype.char in "?bhilBHILefdFD":
            torch.from_numpy(leaf)


def files(directory: Path) -> list[str]:
    """Every file below a directory, relative."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def bundles(directory: Path) -> list[str]:
    """The published bundles and unfinished writes of an `shm://` directory."""
    return [name for name in files(directory) if name.startswith(("live/", "tmp/"))]
