"""Batches in files: what `rollferry explain` and `rollferry bench` read."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

__all__ = ["load_batch"]

_PICKLED = (".pkl", ".pickle", ".pt")


def load_batch(file: Path, *, allow_pickle: bool = False) -> dict[str, Any]:
    """Read a batch from a file.

    Parameters
    ----------
    file
        An .npz archive of arrays or a .json object. With `allow_pickle` also a dict in a .pkl, or in a .pt of torch.
    allow_pickle
        Whether to unpickle, which runs code: only for files that you trust.

    Raises
    ------
    ValueError
        The file holds something else.
    """
    match file.suffix.lower():
        case ".npz":
            return _load_arrays(file)
        case ".json":
            try:
                batch = json.loads(file.read_text(encoding="utf-8"))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                raise ValueError(f"not JSON: {error}") from error
            if isinstance(batch, dict):
                return batch
            raise ValueError(f"a batch is an object with a field for each name, not {type(batch).__name__}")
        case suffix if suffix in _PICKLED and allow_pickle:
            return _load_pickled(file)
        case suffix:
            raise ValueError(f"a batch is read from .npz or .json, not {suffix or 'a file without suffix'}")


def _load_arrays(file: Path) -> dict[str, Any]:
    import numpy as np  # here, to keep `--help` fast

    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError("not an .npz archive of plain arrays; pickled ones are refused") from error


def _load_pickled(file: Path) -> dict[str, Any]:
    try:
        if file.suffix.lower() == ".pt":
            import torch

            batch = torch.load(file, map_location="cpu", weights_only=False)
        else:
            with file.open("rb") as stream:
                batch = pickle.load(stream)  # noqa: S301  # the caller said that the file is to be trusted
    except ImportError as error:
        raise ValueError(f"a package that it needs is missing: {error}") from error
    except Exception as error:  # unpickling raises anything
        raise ValueError(f"it can't be unpickled: {error}") from error
    if isinstance(batch, dict):
        return batch
    raise ValueError(f"a batch is a dict with a field for each name, not {type(batch).__name__}")
