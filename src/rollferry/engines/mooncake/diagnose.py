"""What mooncake:// needs of a machine, a network and a master, checked."""

import ipaddress
import socket
import time
from contextlib import suppress
from functools import cached_property

from rollferry.checks import Finding, Package, Step, ok, require, size
from rollferry.engines.mooncake.options import Options
from rollferry.engines.mooncake.surroundings import (
    Room,
    available_nbytes,
    check_devices,
    lock_limit,
    locked_nbytes,
    own_and_master_address,
    read_room,
    start_command,
)
from rollferry.engines.registry import EngineURL, Probe
from rollferry.errors import EngineFullError

__all__ = ["Examination"]

PROBE_SEGMENT = 64 << 20
MASTER = "master"
METRICS = "metrics port"
LOCKABLE = "lockable memory"
HOSTNAME = "?hostname=ADDRESS, at which other hosts reach this one"
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
        self._lent = LENT.format(master=options.master)

    def steps(self) -> list[Step]:
        """Give the checks."""
        options, package = self._options, self._package
        rdma = [Step("RDMA", self.rdma, "ibv_devices lists the devices: ?device=NAME, or ?protocol=tcp")]
        extra = rdma if options.protocol == "rdma" else []
        needs = (package.name, MASTER, "room", LOCKABLE, "address", *(step.name for step in extra))
        stuck = (
            f"check that {options.master} is a master's --rpc_port, and that firewalls let its clients reach each other"
        )
        return [
            Step(package.name, lambda: require(package), package.install),
            Step(MASTER, self.master, f"on {options.host}: {start_command(options)}"),
            Step(METRICS, self.metrics_port, "?metrics=PORT, the --metrics_port of mooncake_master", (MASTER,)),
            Step("room", self.room, self._lent, (MASTER,)),
            Step(LOCKABLE, self.lockable_memory, "ulimit -l unlimited, or docker run --ulimit memlock=-1"),
            *extra,
            Step("address", self.address, HOSTNAME, (MASTER,)),
            Step("round trip", self.round_trip, f"{stuck}; --verbose shows what Mooncake logs", needs),
        ]

    def master(self) -> Finding:
        """Whether something listens there."""
        start = time.monotonic()
        try:
            own_and_master_address(self._options)
        except OSError as error:
            return Finding("fail", f"{self._options.master} can't be reached ({error})")
        return ok(f"{self._options.master} answers in {(time.monotonic() - start) * 1000:.1f} ms")

    def metrics_port(self) -> Finding:
        """Whether the master's HTTP server says what it has."""
        where = f"http://{self._options.host}:{self._options.metrics}"
        try:
            segments = self._room.segments
        except OSError as error:
            return Finding("warn", f"{where} does not say what list, usage and the check of the room need ({error})")
        return ok(f"{where} answers; segments: {segments}")

    def room(self) -> Finding:
        """Whether batches fit, into the segments that there are and the one that this process would lend."""
        options = self._options
        room = self._known_room()
        if room is None:
            return Finding("warn", "unknown, as the metrics port does not say", f"?metrics=PORT; or {self._lent}")
        there = f"{size(room.free)} of {size(room.capacity)} free, segments: {room.segments}"
        found = (
            f"{there if room.capacity else 'nobody lends memory yet'}; this process would lend {size(options.segment)}"
        )
        if options.segment + options.buffer > available_nbytes():
            return Finding("fail", f"{found}, but has {size(available_nbytes())} of memory left", "a smaller ?segment=")
        if not room.capacity and not options.segment:
            return Finding("fail", found)
        if room.free + options.segment < options.chunk * options.replicas:
            needed = f"{options.replicas} x {size(options.chunk)}"
            return Finding("warn", f"{found}; that is less than one chunk in every replica, {needed}")
        if room.segments + bool(options.segment) < options.replicas:
            return Finding("warn", f"{found}; that is fewer than {options.replicas} replicas")
        return ok(found)

    def lockable_memory(self) -> Finding:
        """Whether RDMA can pin what it needs."""
        limit, needed = lock_limit(), locked_nbytes(self._options)
        found = "unlimited" if limit is None else size(limit)
        if self._options.protocol != "rdma":
            return ok(f"{found}; {self._options.protocol} needs none")
        if limit is not None and limit < needed:
            return Finding("fail", f"{found}, but RDMA locks {size(needed)}: segment and buffer")
        return ok(f"{found}; RDMA locks {size(needed)}")

    def rdma(self) -> Finding:
        """Whether the devices are there."""
        check_devices(self._options)
        return ok(f"devices are there: {self._options.device or 'all that there are'}")

    def address(self) -> Finding:
        """Whether others can reach this process where it says it is."""
        own, master = own_and_master_address(self._options)
        named = self._options.hostname.rpartition(":")[0] or self._options.hostname
        if named:
            try:
                own = str(socket.getaddrinfo(named, None)[0][4][0])
            except OSError as error:
                return Finding("fail", f"?hostname= is {named}, which leads nowhere ({error})")
        found = f"others reach this process at {own}"
        if ipaddress.ip_address(own).is_loopback and not ipaddress.ip_address(master).is_loopback:
            return Finding("warn", f"{found}, which only this machine can, while the master is at {master}")
        return ok(found)

    def round_trip(self) -> Finding:
        """Put a batch through.

        Memory is lent for that only where nobody lends any, as other people's bundles could be placed in it, and would be
        gone when this process ends.
        """
        options = self._options
        room = self._known_room()
        alone = room is not None and not room.capacity
        segment = min(options.segment, PROBE_SEGMENT) if alone else 0
        url = self._url._replace(options={**self._url.options, "segment": str(segment)})
        try:
            return self._probe(url)
        except EngineFullError as error:
            if options.segment and (room is None or room.free < PROBE_SEGMENT):
                found = f"not tried: others lend no room, and theirs could get into what is lent to try it ({error})"
                return Finding("warn", found, self._lent)
            return Finding("fail", str(error), self._lent)

    @cached_property
    def _room(self) -> Room:
        """What the master says that there is. Raises OSError where it doesn't."""
        return read_room(self._options)

    def _known_room(self) -> Room | None:
        with suppress(OSError):
            return self._room
        return None
