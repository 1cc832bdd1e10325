"""ray://: bundles in the object store of a Ray cluster, owned by actors of it and known to one named registry."""

import importlib.util

from rollferry.engines.base import Engine
from rollferry.engines.registry import EngineURL, parse_size
from rollferry.errors import EngineError

__all__ = ["open_engine"]

MIN_CHUNK = 64  # chunks are multiples of it, so that members stay aligned


def open_engine(url: EngineURL) -> Engine:
    """Open the engine of a ``ray://`` URL."""
    url.check_options("namespace", "chunk", "pool", "timeout")
    if url.path not in ("", "/"):
        raise EngineError(f"ray:// has no path, such as {url.path!r}; write ray:// or ray://host:port")
    chunk = parse_size(url.options.get("chunk", "512mb"))
    if chunk < 1:
        raise EngineError("a chunk has at least one byte")
    try:
        timeout = float(url.options.get("timeout", "60"))
    except ValueError:
        timeout = 0
    if not 0 < timeout < float("inf"):
        raise EngineError(f"{url.options['timeout']!r} is no timeout; write seconds, such as 60")
    if importlib.util.find_spec("ray") is None:
        raise EngineError("ray:// needs the package ray: pip install 'rollferry[ray]'")
    from rollferry.engines.ray.engine import RayEngine

    return RayEngine(
        address=url.host,
        namespace=url.options.get("namespace") or "rollferry",
        chunk=-(-chunk // MIN_CHUNK) * MIN_CHUNK,
        pool=parse_size(url.options.get("pool", "1gb")),
        timeout=timeout,
    )
