"""From a URL to an engine; modules are imported on use."""

import importlib
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from rollferry.engines.base import Engine
from rollferry.errors import EngineError

__all__ = ["ENGINES", "EngineURL", "open_engine", "parse_size"]

#: URL scheme -> module with an `open_engine(url)` function. A new engine is one line here.
ENGINES = {
    "shm": "rollferry.engines.shm",
    "ray": "rollferry.engines.ray",
    "inproc": "rollferry.engines.inprocess",
    "mooncake": "rollferry.engines.mooncake",
}
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class EngineURL(NamedTuple):
    """A parsed URL.

    Parameters
    ----------
    scheme, host, path
        Its parts; `path` is unquoted.
    options
        Its query.
    """

    scheme: str
    host: str
    path: str
    options: dict[str, str]

    def check_options(self, *known: str) -> None:
        """Raise EngineError for an option that the engine doesn't have."""
        for name in self.options:
            if name not in known:
                raise EngineError(f"{self.scheme}:// has no option {name!r}; it has {', '.join(known) or 'none'}")


def open_engine(url: object, **options: object) -> Engine:
    """Open the engine that a URL names, with further options. Raises EngineError where that can't be."""
    if not isinstance(url, str):
        raise EngineError(f"a URL such as 'shm://' is needed, not {type(url).__name__}")
    parts = urlsplit(url)
    if parts.scheme not in ENGINES:
        known = ", ".join(f"{scheme}://" for scheme in ENGINES)
        raise EngineError(f"no engine for {url!r}; there are {known}")
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise EngineError(f"the options of {url!r} can't be read: {error}") from None
    pairs += [(name, str(value)) for name, value in options.items()]
    chosen = dict(pairs)
    if len(chosen) < len(pairs) or parts.fragment:
        raise EngineError(f"{url!r} has an option twice, or something after a #")
    module = importlib.import_module(ENGINES[parts.scheme])
    engine: Engine = module.open_engine(EngineURL(parts.scheme, parts.netloc, unquote(parts.path), chosen))
    return engine


def parse_size(text: str) -> int:
    """Give the bytes of a size such as ``64mb``, ``8GiB`` or ``4096``; units are powers of 1,024."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if match is None:
        raise EngineError(f"{text!r} is no size; write it as 64mb or 8gb")
    return int(float(match[1]) * UNITS[match[2]])
