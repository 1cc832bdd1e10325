"""What mooncake:// needs of a machine, a network and a master, checked."""

import contextlib
import ipaddress
import resource
import socket
import time
import urllib.request
from functools import cached_property

from rollferry.checks import Finding, Package, Step, ok, require, size
from rollferry.engines.mooncake.client import CONNECT_SECONDS, OWN_BUFFER, check_rdma
from rollferry.engines.mooncake.options import Options
from rollferry.engines.registry import EngineURL, Probe
from rollferry.errors import EngineFullError

__all__ = ["Examination"]

CAPACITY, ALLOCATED = "master_total_capacity_bytes", "master_allocated_bytes"
SEGMENT = "segment_total_capacity_bytes{"  # one line for each
PROBE_SEGMENT = 64 << 20
MASTER = "master"
METRICS = "metrics port"
HOSTNAME = "?hostname=ADDRESS, at which other hosts reach this one"
IPC_LOCK = 1 << 14  # the capability
LENT = "lend memory in a process that lives long: rollferry.connect('mooncake://{master}?segment=8gb')"


class Examination:
    """The checks of one URL.

    Parameters
    ----------
    url, options
        The URL, and what it says.
    package
        Mooncake.
    probe
        Puts a batch through an engine.
    """

    def __init__(self, url: EngineURL, options: Options, package: Package, probe: Probe) -> None:
        self._url = url
        self._options = options
        self._package = package
        self._probe = probe
        self._start = f"mooncake_master --rpc_port {options.port} --metrics_port {options.metrics}"
        self._lent = LENT.format(master=options.master)

    def steps(self) -> list[Step]:
        """Give the checks."""
        options, package = self._options, self._package
        rdma = [Step("RDMA", self.rdma, "ibv_devices lists the devices: ?device=NAME, or ?protocol=tcp")]
        extra = rdma if options.protocol == "rdma" else []
        needs = (package.name, MASTER, "room", "address", *(step.name for step in extra))
        stuck = (
            f"check that {options.master} is a master's --rpc_port, and that firewalls let its clients reach each other"
        )
        return [
            Step(package.name, lambda: require(package), package.install),
            Step(MASTER, self.master, f"on {options.host}: {self._start}"),
            Step(METRICS, self.metrics_port, "?metrics=PORT, the --metrics_port of mooncake_master", (MASTER,)),
            Step("room", self.room, self._lent, (MASTER,)),
            Step("lockable memory", self.lockable_memory, "ulimit -l unlimited"),
            *extra,
            Step("address", self.address, HOSTNAME, (MASTER,)),
            Step("round trip", self.round_trip, f"{stuck}; --verbose shows what Mooncake logs", needs),
        ]

    def master(self) -> Finding:
        """Whether something listens there."""
        start = time.monotonic()
        try:
            self._own_address()
        except OSError as error:
            advice = f"on {self._options.host}: {self._start}"
            return Finding("fail", f"{self._options.master} can't be reached ({error})", advice)
        return ok(f"{self._options.master} answers in {(time.monotonic() - start) * 1000:.1f} ms")

    def metrics_port(self) -> Finding:
        """Whether the master's HTTP server says what it has."""
        where = f"http://{self._options.host}:{self._options.metrics}"
        advice = "mend it with ?metrics=PORT, the --metrics_port of mooncake_master"
        try:
            metrics = self._metrics
        except (OSError, ValueError) as error:
            found = f"{where} gives no answer ({error}), which list, usage and the check of the room need"
            return Finding("warn", found, advice)
        if CAPACITY not in metrics:
            return Finding("warn", f"{where} answers, but not as a Mooncake master", advice)
        return ok(f"{where} answers")

    def room(self) -> Finding:
        """Whether batches fit, into the segments that there are and the one that this process would lend."""
        options = self._options
        free = self._free_nbytes()
        if free is None:
            return Finding("warn", "unknown, as the metrics port does not say", f"?metrics=PORT; or {self._lent}")
        capacity = self._metrics[CAPACITY]
        segments = sum(name.startswith(SEGMENT) for name in self._metrics)
        others = (
            f"{size(free)} of {size(capacity)} free, segments: {segments}" if capacity else "nobody lends memory yet"
        )
        found = f"{others}; this process would lend {size(options.segment)}"
        if not capacity and not options.segment:
            return Finding("fail", found, self._lent)
        if free + options.segment < options.chunk * options.replicas:
            needed = f"{options.replicas} x {size(options.chunk)}"
            return Finding("warn", f"{found}; that is less than one chunk in every replica, {needed}", self._lent)
        if segments + bool(options.segment) < options.replicas:
            return Finding("warn", f"{found}; that is fewer than {options.replicas} replicas", self._lent)
        return ok(found)

    def lockable_memory(self) -> Finding:
        """Whether RDMA can pin what it needs."""
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        needed = self._options.segment + self._options.buffer + OWN_BUFFER
        found = "unlimited" if limit == resource.RLIM_INFINITY else size(limit)
        if self._options.protocol != "rdma":
            return ok(f"{found}; {self._options.protocol} needs none")
        if limit != resource.RLIM_INFINITY and limit < needed and not may_lock_all():
            advice = "ulimit -l unlimited, or docker run --ulimit memlock=-1"
            return Finding("fail", f"{found}, but RDMA locks {size(needed)}: segment and buffer", advice)
        return ok(f"{found}; RDMA locks {size(needed)}")

    def rdma(self) -> Finding:
        """Whether the devices are there."""
        check_rdma(self._options)
        return ok(f"devices are there: {self._options.device or 'all that there are'}")

    def address(self) -> Finding:
        """Whether others can reach this process where it says it is."""
        own, master = self._own_address()
        named = self._options.hostname.rpartition(":")[0] or self._options.hostname
        if named:
            try:
                own = str(socket.getaddrinfo(named, None)[0][4][0])
            except OSError as error:
                return Finding("fail", f"?hostname= is {named}, which leads nowhere ({error})", HOSTNAME)
        found = f"others reach this process at {own}"
        if ipaddress.ip_address(own).is_loopback and not ipaddress.ip_address(master).is_loopback:
            found = f"{found}, which only this machine can, while the master is at {master}"
            return Finding("warn", found, HOSTNAME)
        return ok(found)

    def round_trip(self) -> Finding:
        """Put a batch through.

        Memory is lent for that only where nobody lends any, as other people's bundles could be placed in it, and would be
        gone when this process ends.
        """
        options = self._options
        free = self._free_nbytes()
        alone = free is not None and not self._metrics[CAPACITY]
        segment = min(options.segment, PROBE_SEGMENT) if alone else 0
        url = self._url._replace(options={**self._url.options, "segment": str(segment)})
        try:
            return self._probe(url)
        except EngineFullError as error:
            if options.segment and (free is None or free < PROBE_SEGMENT):
                found = f"not tried: others lend no room, and theirs could get into what is lent to try it ({error})"
                return Finding("warn", found, self._lent)
            return Finding("fail", str(error), self._lent)

    def _own_address(self) -> tuple[str, str]:
        """Give both addresses of a connection to the master."""
        where = (self._options.host.strip("[]"), self._options.port)
        with socket.create_connection(where, CONNECT_SECONDS) as connection:
            return str(connection.getsockname()[0]), str(connection.getpeername()[0])

    def _free_nbytes(self) -> int | None:
        """Give the free bytes of all segments; None where that is unknown."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            return max(self._metrics[CAPACITY] - self._metrics[ALLOCATED], 0)
        return None

    @cached_property
    def _metrics(self) -> dict[str, int]:
        """What the master says of its segments. Raises OSError or ValueError where it doesn't."""
        url = f"http://{self._options.host}:{self._options.metrics}/metrics"
        with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as reply:
            lines = reply.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line.startswith((CAPACITY, ALLOCATED, SEGMENT)))
        return {name: int(value) for name, _, value in pairs}


def may_lock_all() -> bool:
    """Whether the limit of lockable memory does not hold for this process; in a container, root is bound by it too."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        effective = next((line.split()[1] for line in status if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) & IPC_LOCK)
