"""shm://: the embedded engine. Bundles are files of a tmpfs, handed over by atomic renames and kernel locks; no daemon.

`segment` is the format of a file, `directory` names files, `pool` recycles them, `writer` and `reader` follow the
locking protocol, `engine` puts them together; `diagnose` looks whether it can work here.
"""

from rollferry.checks import Step
from rollferry.engines.registry import EngineURL, Probe, parse_size
from rollferry.engines.shm.engine import ShmEngine
from rollferry.errors import EngineError

__all__ = ["ShmEngine", "checks", "open_engine"]


def open_engine(url: EngineURL) -> ShmEngine:
    """Open the engine of a ``shm://`` URL: ``shm://``, ``shm:///some/directory``, with the option ``pool=SIZE``."""
    return ShmEngine(url.path, pool_of(url))


def checks(url: EngineURL, probe: Probe) -> list[Step]:
    """Give the checks of a ``shm://`` URL."""
    from rollferry.engines.shm.diagnose import Examination  # here, since most processes make none

    pool_of(url)
    return Examination(url, probe).steps()


def pool_of(url: EngineURL) -> int | None:
    """Check a URL, and read its option."""
    url.check_options("pool")
    if url.host or url.path == "/":
        raise EngineError("a directory is named by three slashes, as in shm:///some/directory")
    pool = url.options.get("pool")
    return None if pool is None else parse_size(pool)
