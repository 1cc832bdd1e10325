"""mooncake://: bundles in Mooncake Store, for clusters; see docs/mooncake.md."""

from rollferry.engines.mooncake.client import connect
from rollferry.engines.mooncake.engine import MooncakeEngine
from rollferry.engines.mooncake.options import options_of
from rollferry.engines.registry import EngineURL

__all__ = ["MooncakeEngine", "open_engine"]


def open_engine(url: EngineURL) -> MooncakeEngine:
    """Open the engine of a ``mooncake://`` URL."""
    return MooncakeEngine(connect(options_of(url)))
