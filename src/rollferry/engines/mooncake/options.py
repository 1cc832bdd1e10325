"""Options of a client: from the URL, then the environment variables of Mooncake, then defaults."""

import os
from typing import NamedTuple

from rollferry.engines.registry import EngineURL, parse_size
from rollferry.errors import EngineError

__all__ = ["Options", "options_of"]

#: Option -> environment variable that Mooncake itself reads it from (or None), and default.
OPTIONS: dict[str, tuple[str | None, str]] = {
    "protocol": ("MOONCAKE_PROTOCOL", "tcp"),
    "device": ("MOONCAKE_DEVICE", ""),
    "segment": ("MOONCAKE_GLOBAL_SEGMENT_SIZE", "512mb"),
    "buffer": ("MOONCAKE_LOCAL_BUFFER_SIZE", "256mb"),
    "chunk": (None, "16mb"),
    "hostname": ("MOONCAKE_LOCAL_HOSTNAME", ""),
    "metadata": ("MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE"),
    "replicas": (None, "1"),
    "tenant": ("MOONCAKE_TENANT_ID", "default"),
    "metrics": (None, "9003"),
    "timeout": (None, "20"),
}
OF_ADOPTED = ("buffer", "chunk", "replicas", "metrics")  # what can be chosen for a store that is set up
PROTOCOLS = ("tcp", "rdma")
MIN_CHUNK = 4096
MIN_SEGMENT = 16 << 20  # Mooncake's own unit


class Options(NamedTuple):
    """Options of a client; processes share one client for each different set.

    Parameters
    ----------
    host, port
        Where the master serves RPCs.
    protocol, device
        Transport, and its network devices.
    segment
        Bytes of memory that this process lends to the store.
    buffer
        Bytes of registered memory that this process keeps for its puts and gets.
    chunk
        Most bytes of a stored object, but for one that is only a manifest.
    hostname
        Name under which others reach this process; empty for the address that it reaches the master from.
    metadata
        Metadata server of the transfer engine.
    replicas
        Copies of each object.
    tenant
        Name within a store that several share.
    metrics
        Port of the master's HTTP server, which `list` and `usage` ask.
    timeout
        Seconds to wait for an answer of the master, and for any progress of a transfer.
    adopted
        Identity of the store that a framework has set up and this process uses; 0 for a store of its own.
    """

    host: str
    port: int
    protocol: str
    device: str
    segment: int
    buffer: int
    chunk: int
    hostname: str
    metadata: str
    replicas: int
    tenant: str
    metrics: int
    timeout: int
    adopted: int

    @property
    def master(self) -> str:
        """Address of the master."""
        return f"{self.host}:{self.port}"


def options_of(url: EngineURL, adopted: int = 0) -> Options:
    """Read the options of a URL, perhaps for the store of that identity. Raises EngineError where one makes no sense."""
    url.check_options(*(OF_ADOPTED if adopted else OPTIONS))
    if url.path.strip("/"):
        raise EngineError(f"mooncake:// has no paths, so {url.path!r} can't follow the address of the master")
    values = {name: chosen(url, name, *source) for name, source in OPTIONS.items()}
    address = url.host or os.environ.get("MOONCAKE_MASTER", "")
    host, _, port = address.rpartition(":")
    if adopted and not (host and port.isdigit()):
        host, port = "", "0"  # only the master's HTTP server is asked by its address
    elif not host:
        raise EngineError(
            f"the {'port' if address else 'address'} of the master is missing: connect('mooncake://{address or 'HOST'}:PORT'), or "
            "set MOONCAKE_MASTER=HOST:PORT; 'mooncake_master --rpc_port PORT' starts one"
        )
    chunk, replicas, timeout = parse_size(values["chunk"]), number(values, "replicas"), number(values, "timeout")
    protocol, segment = values["protocol"].strip().lower(), parse_size(values["segment"])
    check(protocol in PROTOCOLS, f"the protocol is {' or '.join(PROTOCOLS)}, not {protocol!r}")
    check(
        chunk >= MIN_CHUNK and chunk % 64 == 0, f"a chunk is a multiple of 64 bytes, {MIN_CHUNK} at least, not {chunk}"
    )
    check(replicas >= 1, f"there is at least one replica, not {replicas}")
    check(
        segment == 0 or segment >= MIN_SEGMENT, f"a segment has {MIN_SEGMENT:,} bytes at least, or 0, not {segment:,}"
    )
    check(timeout >= 1, "a timeout has a second at least")
    return Options(
        host=host,
        port=number({"port": port}, "port"),
        protocol=protocol,
        device=values["device"],
        segment=segment,
        buffer=parse_size(values["buffer"]),
        chunk=chunk,
        hostname=values["hostname"],
        metadata=values["metadata"],
        replicas=replicas,
        tenant=values["tenant"],
        metrics=number(values, "metrics"),
        timeout=timeout,
        adopted=adopted,
    )


def check(good: bool, what: str) -> None:
    """Raise EngineError where an option makes no sense."""
    if not good:
        raise EngineError(what)


def chosen(url: EngineURL, name: str, variable: str | None, default: str) -> str:
    """Give an option of the URL, the environment, or its default."""
    if name in url.options:
        return url.options[name]
    return (os.environ.get(variable) if variable else None) or default


def number(values: dict[str, str], name: str) -> int:
    """Read an option that is a whole number."""
    try:
        return int(values[name])
    except ValueError:
        raise EngineError(f"{name} is {values[name]!r}, which is no whole number") from None
