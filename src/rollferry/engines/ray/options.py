"""Options of a ``ray://`` URL."""

import re
from typing import NamedTuple

from rollferry.engines.registry import EngineURL, parse_size
from rollferry.errors import EngineError

__all__ = ["Options", "options_of"]

CLIENT_PORT = 10001
MIN_CHUNK = 64  # chunks are multiples of it, so that members stay aligned


class Options(NamedTuple):
    """What a URL says; see `RayEngine`. The Ray namespace is the option ``registry``; a Ferry's namespace is another thing."""

    address: str
    namespace: str
    chunk: int
    pool: int
    timeout: float


def options_of(url: EngineURL) -> Options:
    """Read the options of a URL. Raises EngineError where one makes no sense."""
    url.check_options("registry", "chunk", "pool", "timeout")
    if url.path not in ("", "/"):
        raise EngineError(f"ray:// has no path, such as {url.path!r}; write ray:// or ray://host:port")
    if url.host:
        port = re.fullmatch(r".+:(\d{1,5})", url.host)
        if port is None or not 0 < int(port[1]) < 1 << 16:
            raise EngineError(f"{url.host!r} is no address of Ray; write host and port, such as ray://10.77.0.1:6379")
        if int(port[1]) == CLIENT_PORT:
            raise EngineError(
                f"port {CLIENT_PORT} is that of Ray Client, through which ray:// does not work; write the port of "
                "`ray start --head`, which is 6379 unless it was given another"
            )
    chunk = parse_size(url.options.get("chunk", "512mb"))
    if chunk < 1:
        raise EngineError("a chunk has at least one byte")
    try:
        timeout = float(url.options.get("timeout", "60"))
    except ValueError:
        timeout = 0
    if not 0 < timeout < float("inf"):
        raise EngineError(f"{url.options['timeout']!r} is no timeout; write seconds, such as 60")
    return Options(
        address=url.host,
        namespace=url.options.get("registry") or "rollferry",
        chunk=-(-chunk // MIN_CHUNK) * MIN_CHUNK,
        pool=parse_size(url.options.get("pool", "1gb")),
        timeout=timeout,
    )
