"""mooncake://: bundles in Mooncake Store, for clusters; see docs/mooncake.md."""

from typing import Any

from rollferry.checks import Package, Step
from rollferry.engines.mooncake.client import connect
from rollferry.engines.mooncake.engine import MooncakeEngine
from rollferry.engines.mooncake.options import options_of
from rollferry.engines.mooncake.surroundings import APT, PIP
from rollferry.engines.registry import EngineURL, Probe
from rollferry.errors import EngineError

__all__ = ["PACKAGES", "MooncakeEngine", "adopt", "checks", "open_engine"]

PACKAGES = (Package("mooncake", "mooncake.store", PIP, APT),)


def open_engine(url: EngineURL) -> MooncakeEngine:
    """Open the engine of a ``mooncake://`` URL."""
    return MooncakeEngine(connect(options_of(url)))


def adopt(store: Any, url: EngineURL) -> MooncakeEngine:
    """Open an engine over a MooncakeDistributedStore that is set up, which stays its owner's to close."""
    status = store.health_check()
    if status != 0:
        raise EngineError(
            f"the MooncakeDistributedStore can't be used (its health_check() gives {status}): call its setup() first; if that "
            "was done, its master is gone"
        )
    return MooncakeEngine(connect(options_of(url, id(store)), store))


def checks(url: EngineURL, probe: Probe) -> list[Step]:
    """Give the checks of a ``mooncake://`` URL."""
    from rollferry.engines.mooncake.diagnose import Examination  # here, since most processes make none

    return Examination(url, options_of(url), PACKAGES[0], probe).steps()
