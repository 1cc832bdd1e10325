"""From a URL to an engine; modules are imported on use."""

import importlib
import os
import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from rollferry.checks import Finding, Package, Step
from rollferry.engines.base import Engine
from rollferry.errors import EngineError

__all__ = ["ENGINES", "EngineURL", "Probe", "checks_of", "open_engine", "packages", "parse_size", "parse_url"]

#: URL scheme -> module with the functions `open_engine(url)` and `checks(url, probe)`; one that needs optional packages names
#: them in `PACKAGES`. A new engine is one line here.
ENGINES = {
    "shm": "rollferry.engines.shm",
    "ray": "rollferry.engines.ray",
    "inproc": "rollferry.engines.inprocess",
    "mooncake": "rollferry.engines.mooncake",
}
#: Class of a client that a framework has set up, as module and name -> scheme of the engine whose module has the function
#: `adopt(client, url)`.
ADOPTED = {("mooncake.store", "MooncakeDistributedStore"): "mooncake"}
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

    @property
    def text(self) -> str:
        """The URL as text."""
        query = f"?{urlencode(self.options)}" if self.options else ""
        return f"{self.scheme}://{self.host}{quote(self.path)}{query}"

    def check_options(self, *known: str) -> None:
        """Raise EngineError for an option that the engine doesn't have."""
        for name in self.options:
            if name not in known:
                raise EngineError(f"{self.scheme}:// has no option {name!r}; it has {', '.join(known) or 'none'}")


#: Puts a batch through the engine of a URL, gets it and removes it; raises what that raises.
Probe = Callable[[EngineURL], Finding]


def open_engine(url: object, **options: object) -> Engine:
    """Open the engine that a URL names, or over a client of it, with further options. Raises EngineError where that can't be."""
    scheme = next(
        (ADOPTED[name] for cls in type(url).__mro__ if (name := (cls.__module__, cls.__name__)) in ADOPTED), None
    )
    parsed = parse_url(url if scheme is None else f"{scheme}://", **options)
    module = importlib.import_module(ENGINES[parsed.scheme])
    engine: Engine = module.open_engine(parsed) if scheme is None else module.adopt(url, parsed)
    return engine


def checks_of(url: EngineURL, probe: Probe) -> list[Step]:
    """Give the checks of the engine that a URL names, to be made. Raises EngineError where its options make no sense."""
    steps: list[Step] = importlib.import_module(ENGINES[url.scheme]).checks(url, probe)
    return steps


def packages() -> list[Package]:
    """Give the optional packages that engines need."""
    modules = map(importlib.import_module, ENGINES.values())
    return [package for module in modules for package in getattr(module, "PACKAGES", ())]


def parse_url(url: object, **options: object) -> EngineURL:
    """Take a URL apart, with further options. Raises EngineError where it is none, or names no engine."""
    if not isinstance(url, str):
        raise EngineError(f"a URL such as 'shm://' is needed, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise EngineError(f"{url!r} is no URL: {error}") from None
    if parts.scheme not in ENGINES:
        known = ", ".join(f"{scheme}://" for scheme in ENGINES)
        raise EngineError(f"no engine for {url!r}; there are {known}")
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise EngineError(f"the options of {url!r} can't be read: {error}") from None
    pairs += [(name, str(value)) for name, value in options.items()]
    if parts.fragment:
        raise EngineError(f"{url!r} has something after a #")
    chosen: dict[str, str] = {}
    for name, value in pairs:
        if name in chosen:
            raise EngineError(f"the option {name!r} is given twice, in {url!r} or as a keyword")
        chosen[name] = value
    path = unquote(parts.path)
    try:
        if b"\0" in os.fsencode(url) + os.fsencode(path):
            raise EngineError(f"{url!r} has a NUL")
    except UnicodeEncodeError as error:
        raise EngineError(f"{url!r} has characters that no name can have: {error}") from None
    return EngineURL(parts.scheme, parts.netloc, path, chosen)


def parse_size(text: str) -> int:
    """Give the bytes of a size such as ``64mb``, ``8GiB`` or ``4096``; units are powers of 1,024."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if match is None:
        raise EngineError(f"{text!r} is no size; write it as 64mb or 8gb")
    return int(float(match[1]) * UNITS[match[2]])
