"""rollferry: hand rollout batches from the workers that generate them to the workers that train on them.

>>> import numpy as np
>>> import rollferry
>>> with rollferry.connect("inproc://") as ferry:
...     ref = ferry.put({"tokens": [np.arange(3), np.arange(5)], "rewards": [0.5, 1.0]})
...     batch = ferry.get(ref.to_json())
>>> batch["tokens"][1].tolist()
[0, 1, 2, 3, 4]
"""

try:
    import rollferry._native  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"rollferry's native core can't be imported: {error}. Install the package (pip install . "
        "in a checkout with gcc at hand) instead of importing its source folder."
    ) from error

from importlib.metadata import version

from rollferry import metrics, schemas
from rollferry.bundle.describe import BundleReport, StoredField
from rollferry.bundle.inventory import BundleInfo
from rollferry.bundle.reclaim import Reclaimed
from rollferry.engines.base import NamespaceUsage, Usage
from rollferry.errors import (
    BatchChangedError,
    BundleError,
    BundleNotFoundError,
    EngineError,
    EngineFullError,
    FerryClosedError,
    RefError,
    RollferryError,
    RollferryWarning,
    SchemaError,
    SelectionError,
    StaleRolloutError,
    UnsupportedValueError,
)
from rollferry.explain import Explanation, FieldReport
from rollferry.ferry import Ferry, connect
from rollferry.layouts.lazy import LazyList, LazyRows
from rollferry.layouts.register import register
from rollferry.packed import Packed
from rollferry.refs import TransferRef
from rollferry.schema import FieldSchema, Schema
from rollferry.timings import Timing

__version__ = version("rollferry")

__all__ = [
    "BatchChangedError",
    "BundleError",
    "BundleInfo",
    "BundleNotFoundError",
    "BundleReport",
    "EngineError",
    "EngineFullError",
    "Explanation",
    "Ferry",
    "FerryClosedError",
    "FieldReport",
    "FieldSchema",
    "LazyList",
    "LazyRows",
    "NamespaceUsage",
    "Packed",
    "Reclaimed",
    "RefError",
    "RollferryError",
    "RollferryWarning",
    "Schema",
    "SchemaError",
    "SelectionError",
    "StaleRolloutError",
    "StoredField",
    "Timing",
    "TransferRef",
    "UnsupportedValueError",
    "Usage",
    "connect",
    "metrics",
    "register",
    "schemas",
]
