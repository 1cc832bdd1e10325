"""ray://: bundles in the object store of a Ray cluster, owned by actors of it and known to one named registry."""

import importlib.util

from rollferry.checks import Package, Step
from rollferry.engines.base import Engine
from rollferry.engines.ray.options import options_of
from rollferry.engines.registry import EngineURL, Probe
from rollferry.errors import EngineError

__all__ = ["PACKAGES", "checks", "open_engine"]

PACKAGES = (Package("ray", "ray", "pip install 'rollferry[ray]'"),)


def open_engine(url: EngineURL) -> Engine:
    """Open the engine of a ``ray://`` URL."""
    options = options_of(url)
    if importlib.util.find_spec("ray") is None:
        raise EngineError("ray:// needs the package ray: pip install 'rollferry[ray]'")
    from rollferry.engines.ray.engine import RayEngine

    return RayEngine(**options._asdict())


def checks(url: EngineURL, probe: Probe) -> list[Step]:
    """Give the checks of a ``ray://`` URL."""
    from rollferry.engines.ray.diagnose import Examination  # here, since most processes make none

    return Examination(url, options_of(url), PACKAGES[0], probe).steps()
