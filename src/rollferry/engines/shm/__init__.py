"""shm://: the embedded engine. Bundles are files of a tmpfs, handed over by atomic renames and kernel locks; no daemon.

`segment` is the format of a file, `directory` names files, `pool` recycles them, `writer` and `reader` follow the
locking protocol, `engine` puts them together.
"""

from rollferry.engines.registry import EngineURL, parse_size
from rollferry.engines.shm.engine import ShmEngine
from rollferry.errors import EngineError

__all__ = ["ShmEngine", "open_engine"]


def open_engine(url: EngineURL) -> ShmEngine:
    """Open the engine of a ``shm://`` URL: ``shm://``, ``shm:///some/directory``, with the option ``pool=SIZE``."""
    url.check_options("pool")
    if url.host or url.path == "/":
        raise EngineError("a directory is named by three slashes, as in shm:///some/directory")
    pool = url.options.get("pool")
    return ShmEngine(url.path, None if pool is None else parse_size(pool))
