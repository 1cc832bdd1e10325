"""mooncake://: bundles in Mooncake Store, for clusters; see docs/mooncake.md."""

from rollferry.checks import Package, Step
from rollferry.engines.mooncake.client import connect
from rollferry.engines.mooncake.engine import MooncakeEngine
from rollferry.engines.mooncake.options import options_of
from rollferry.engines.mooncake.surroundings import APT, PIP
from rollferry.engines.registry import EngineURL, Probe

__all__ = ["PACKAGES", "MooncakeEngine", "checks", "open_engine"]

PACKAGES = (Package("mooncake", "mooncake.store", PIP, APT),)


def open_engine(url: EngineURL) -> MooncakeEngine:
    """Open the engine of a ``mooncake://`` URL."""
    return MooncakeEngine(connect(options_of(url)))


def checks(url: EngineURL, probe: Probe) -> list[Step]:
    """Give the checks of a ``mooncake://`` URL."""
    from rollferry.engines.mooncake.diagnose import Examination  # here, since most processes make none

    return Examination(url, options_of(url), PACKAGES[0], probe).steps()
