"""What mooncake:// needs around it: the module, a master, devices and memory for RDMA.

It is looked at before Mooncake is set up, which finds out slowly or not at all; `diagnose` looks at the same.
"""

import importlib
import json
import os
import resource
import socket
import urllib.error
import urllib.request
from http.client import CONFLICT, HTTPException
from typing import Any, NamedTuple

from rollferry.engines.mooncake.options import Options
from rollferry.errors import EngineError

__all__ = [
    "APT",
    "DEFAULT_TENANT",
    "OWN_BUFFER",
    "PIP",
    "Quota",
    "Room",
    "ask",
    "available_nbytes",
    "check_devices",
    "check_surroundings",
    "limit_waits",
    "load_module",
    "lock_limit",
    "locked_nbytes",
    "own_and_master_address",
    "read_quotas",
    "read_room",
    "start_command",
]

PIP = "pip install 'rollferry[mooncake]'"
APT = "apt-get install libibverbs1 librdmacm1 libnuma1 liburing2 libcurl4"
CONNECT_SECONDS = 5.0
CONNECT_ATTEMPTS = 4  # that Mooncake makes to reach the master
HTTP_SECONDS = 10.0
OWN_BUFFER = 16 << 20  # Mooncake's own staging memory, which zero-copy calls leave alone
INFINIBAND = "/sys/class/infiniband"
IPC_LOCK = 1 << 14  # the capability
DEFAULT_TENANT = "default"
CAPACITY, ALLOCATED = "master_total_capacity_bytes", "master_allocated_bytes"
SEGMENT = "segment_total_capacity_bytes{"  # one line for each


class Room(NamedTuple):
    """What the master says of the memory that is lent to it.

    Parameters
    ----------
    capacity, allocated
        Bytes of all segments.
    segments
        How many there are.
    """

    capacity: int
    allocated: int
    segments: int

    @property
    def free(self) -> int:
        """Free bytes, perhaps in pieces."""
        return max(self.capacity - self.allocated, 0)


class Quota(NamedTuple):
    """What the master says of a tenant.

    Parameters
    ----------
    nbytes
        Bytes that it may have at present.
    charged
        Bytes that it has.
    """

    nbytes: int
    charged: int


def available_nbytes() -> int:
    """Give the bytes of memory that this machine has left."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def load_module() -> Any:
    """Import Mooncake. Raises EngineError that says how to install what is missing."""
    try:
        module = importlib.import_module("mooncake.store")
    except ModuleNotFoundError as error:
        raise EngineError(f"mooncake:// needs Mooncake ({error}); install it: {PIP}") from error
    except ImportError as error:
        raise EngineError(f"Mooncake needs shared libraries ({error}); install them: {APT}") from error
    if not hasattr(module.ReplicateConfig(), "with_hard_pin"):
        raise EngineError(f"this Mooncake is too old to keep bundles from being evicted; update it: {PIP}")
    return module


def check_surroundings(options: Options) -> str:
    """Give the name of this host, as others reach it. Raises EngineError where there is no master, or no RDMA."""
    if options.protocol == "rdma":
        check_devices(options)
        limit, needed = lock_limit(), locked_nbytes(options)
        if limit is not None and limit < needed:
            raise EngineError(
                f"RDMA locks {needed:,} bytes of memory, and this process may lock {limit:,}: 'ulimit -l unlimited', or "
                f"docker run --ulimit memlock=-1"
            )
    try:
        own, _ = own_and_master_address(options)
    except OSError as error:
        raise EngineError(
            f"there is no Mooncake master at {options.master} ({error}); start one there: {start_command(options)}"
        ) from error
    return options.hostname or own


def own_and_master_address(options: Options) -> tuple[str, str]:
    """Give both addresses of a connection to the master. Raises OSError where nothing listens there."""
    with socket.create_connection((options.host.strip("[]"), options.port), CONNECT_SECONDS) as connection:
        return str(connection.getsockname()[0]), str(connection.getpeername()[0])


def start_command(options: Options) -> str:
    """Give the command that starts the master, on its host."""
    return f"mooncake_master --rpc_port {options.port} --metrics_port {options.metrics}"


def check_devices(options: Options) -> None:
    """Raise EngineError where the devices for RDMA are not there."""
    present = sorted(os.listdir(INFINIBAND)) if os.path.isdir(INFINIBAND) else []
    asked = [name.strip() for name in options.device.split(",") if name.strip() not in ("", "auto-discovery")]
    absent = [name for name in asked if name not in present]
    if absent or not present:
        raise EngineError(
            f"RDMA was asked for, but this machine has no device {', '.join(absent) or 'at all'} (it has "
            f"{', '.join(present) or 'none'}; 'ibv_devices' lists them): correct ?device=, or use ?protocol=tcp"
        )


def locked_nbytes(options: Options) -> int:
    """Give the bytes of memory that RDMA locks."""
    return options.segment + options.buffer + OWN_BUFFER


def lock_limit() -> int | None:
    """Give the bytes of memory that this process may lock; None for any number."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY or may_lock_all() else limit


def may_lock_all() -> bool:
    """Whether the limit does not hold for this process; in a container, root is bound by it too."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        effective = next((line.split()[1] for line in status if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) & IPC_LOCK)


def limit_waits(seconds: int) -> None:
    """Tell Mooncake how long to wait for what may never come; environment variables are its only way to be told.

    By itself it waits for 120 seconds to reach a master behind a dead network.
    """
    milliseconds = 1000 * seconds
    os.environ["MC_RPC_TIMEOUT_MS"] = str(milliseconds)
    os.environ["MC_RPC_CONNECT_TIMEOUT_MS"] = str(milliseconds // CONNECT_ATTEMPTS)
    os.environ["MC_TCP_STATUS_TIMEOUT_SEC"] = os.environ["MC_TCP_PROGRESS_TIMEOUT_SEC"] = str(seconds)


def ask(options: Options, path: str, seconds: float = HTTP_SECONDS) -> str:
    """Give a page of the master's HTTP server. Raises OSError where there is none."""
    if not options.host:
        raise OSError(
            "a store that was set up by others doesn't tell the master's address; set MOONCAKE_MASTER=HOST:PORT"
        )
    url = f"http://{options.host}:{options.metrics}/{path}"
    try:
        with urllib.request.urlopen(url, timeout=seconds) as reply:
            text: str = reply.read().decode()
            return text
    except (HTTPException, ValueError) as error:
        raise OSError(repr(error)) from error


def read_room(options: Options) -> Room:
    """Ask the master what memory there is. Raises OSError where it doesn't say."""
    lines = ask(options, "metrics", CONNECT_SECONDS).splitlines()
    pairs = (line.rpartition(" ") for line in lines if line.startswith((CAPACITY, ALLOCATED, SEGMENT)))
    values = {name: value for name, _, value in pairs}
    try:
        return Room(int(values[CAPACITY]), int(values[ALLOCATED]), sum(name.startswith(SEGMENT) for name in values))
    except (KeyError, ValueError) as error:
        raise OSError(f"the answer is not that of a Mooncake master: {error!r}") from error


def read_quotas(options: Options) -> dict[str, Quota]:
    """Ask the master for the quotas of all tenants; none where tenants are not apart. Raises OSError where it doesn't say."""
    try:
        found = json.loads(ask(options, "api/v1/tenant_quotas", CONNECT_SECONDS))["data"]
        return {one["tenant_id"]: Quota(one["effective_quota_bytes"], one["charged_bytes"]) for one in found}
    except urllib.error.HTTPError as error:
        if error.code == CONFLICT:  # not in this mode
            return {}
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise OSError(f"the answer is not that of a Mooncake master: {error!r}") from error
