"""What layouts know of optional packages, each imported when a batch first holds its values."""

import importlib
import sys
from types import ModuleType

__all__ = ["MODULES", "load", "load_if_imported"]

#: Package -> the module of ours that handles its classes by a `handler(cls)` function, or registers codecs.
MODULES = {
    "torch": "rollferry.layouts.optional.torch_types",
    "tensordict": "rollferry.layouts.optional.tensordict_types",
    "PIL": "rollferry.layouts.optional.pil_images",
}


def load(package: str) -> ModuleType:
    """Import what handles a package. Raises ImportError where the package isn't installed."""
    return importlib.import_module(MODULES[package])


def load_if_imported(package: str) -> ModuleType | None:
    """Import what handles a package, unless nobody has imported the package itself."""
    return load(package) if package in MODULES and package in sys.modules else None
