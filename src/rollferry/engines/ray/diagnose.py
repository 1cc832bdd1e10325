"""What ray:// needs of a machine and a cluster, checked. Ray is imported by the first of them."""

import os
import secrets
import time
from contextlib import suppress
from functools import cached_property
from typing import Any

from rollferry.checks import Finding, Package, Step, ok, require, size
from rollferry.engines.ray.options import Options
from rollferry.engines.registry import EngineURL, Probe

__all__ = ["Examination"]

MIN_FREE = 1 << 30
SHARED = "/dev/shm"  # noqa: S108  # where Ray keeps its objects
STORE = "object_store_memory"
START = "ray start --head, or ray start --address=HEAD:6379 on this machine"
KILL = "python -c \"import ray; ray.init('auto'); ray.kill(ray.get_actor('{name}', namespace='{namespace}'))\""


class Examination:
    """The checks of one URL.

    Parameters
    ----------
    url, options
        The URL, and what it says.
    package
        Ray.
    probe
        Puts a batch through an engine.
    """

    def __init__(self, url: EngineURL, options: Options, package: Package, probe: Probe) -> None:
        self._url = url
        self._options = options
        self._package = package
        self._probe = probe
        host, _, port = options.address.rpartition(":")
        self._start = f"on {host}: ray start --head --port={port}" if host else START

    def steps(self) -> list[Step]:
        """Give the checks."""
        package, address, cluster = self._package.name, "address", "cluster"
        attached = (package, cluster)
        same = "the address is that of the GCS, port 6379, not Ray Client's 10001; Ray and Python have the cluster's version"
        return [
            Step(package, lambda: require(self._package), self._package.install),
            Step(address, self.address, self._start, (package,)),
            Step(cluster, self.cluster, f"{same}; ray status says whether it is alive", (package, address)),
            Step("registry", self.registry, "ray status", attached),
            Step("object store", self.object_store, "ray status", attached),
            Step(SHARED, self.shared_memory, "docker run --shm-size=16g", attached),
            Step("round trip", self.round_trip, "ray status, and the logs of Ray; --verbose shows more", attached),
        ]

    def address(self) -> Finding:
        """Whether something listens there, and it isn't meant for Ray Client."""
        from rollferry.engines.ray.session import probe

        named = self._options.address or os.environ.get("RAY_ADDRESS", "")
        if named.startswith("ray://"):
            advice = "unset RAY_ADDRESS, and run on a node of the cluster or as a job"
            return Finding("fail", f"RAY_ADDRESS is {named}, of Ray Client, which has no object store", advice)
        where = named or "Ray of this machine"
        start = time.monotonic()
        try:
            probe(self._options.address)
        except (RuntimeError, ValueError, OSError) as error:
            return Finding("fail", f"{where} can't be reached: {' '.join(str(error).split())}")
        return ok(f"{where} answers in {(time.monotonic() - start) * 1000:.1f} ms")

    def cluster(self) -> Finding:
        """Whether this process can attach to it."""
        from rollferry.engines.ray.session import TokenError

        try:
            ray = self._ray
        except TokenError as error:
            return Finding("fail", "the cluster asks for a token", error.advice)
        nodes = sum(node["Alive"] for node in ray.nodes())
        return ok(f"attached to {ray.get_runtime_context().gcs_address}, {nodes} nodes")

    def registry(self) -> Finding:
        """Whether the actor that knows the bundles answers."""
        from rollferry.engines.ray.session import REGISTRY_NAME

        ray = self._ray
        try:
            actor = ray.get_actor(REGISTRY_NAME, namespace=self._options.namespace)
        except ValueError:
            return ok("none yet; the first put or get starts it")
        try:
            sizes = ray.get(actor.sizes.remote(), timeout=self._options.timeout)
            bundles, nbytes = len(sizes), sum(sizes.values())
        except ray.exceptions.RayError as error:
            kill = KILL.format(name=REGISTRY_NAME, namespace=self._options.namespace)
            found = f"there is one, which does not answer: {' '.join(str(error).split())}"
            return Finding("fail", found, f"have a new one started, without the bundles of the old one: {kill}")
        return ok(f"alive; {bundles:,} bundles of {size(nbytes)}")

    def object_store(self) -> Finding:
        """Whether batches fit."""
        ray = self._ray
        stores = [int(node["Resources"].get(STORE, 0)) for node in ray.nodes() if node["Alive"]]
        free = int(ray.available_resources().get(STORE, 0))
        found = f"{size(free)} of {size(sum(stores))} free, on {len(stores)} nodes of {size(min(stores))} at least"
        if free >= MIN_FREE:
            return ok(found)
        return Finding(
            "warn", found, "remove bundles, or: ray stop; ray start --head --object-store-memory=16000000000"
        )

    def shared_memory(self) -> Finding:
        """Whether the shared memory of this node holds its object store."""
        ray = self._ray
        own = ray.get_runtime_context().get_node_id()
        store = next((int(node["Resources"].get(STORE, 0)) for node in ray.nodes() if node["NodeID"] == own), 0)
        status = os.statvfs(SHARED)
        total = status.f_blocks * status.f_frsize
        found = f"{size(total)}; the object store of this node has {size(store)}"
        if total >= store:
            return ok(found)
        advice = (
            f"docker run --shm-size={-(-store // (1 << 30)) + 1}g, or ray start with a smaller --object-store-memory"
        )
        return Finding("warn", f"{found}, so Ray keeps objects on disk", advice)

    def round_trip(self) -> Finding:
        """Put a batch through a registry of its own, which is gone afterwards."""
        from rollferry.engines.ray.session import REGISTRY_NAME

        ray = self._ray
        name = f"rollferry-doctor-{secrets.token_hex(8)}"
        options = {**self._url.options, "registry": name}
        try:
            return self._probe(self._url._replace(host="", options=options))  # where this process is attached
        finally:
            with suppress(ValueError):  # it wasn't started
                ray.kill(ray.get_actor(REGISTRY_NAME, namespace=name))

    @cached_property
    def _ray(self) -> Any:
        """Ray, with this process attached to it."""
        import ray

        from rollferry.engines.ray.session import attach

        if not ray.is_initialized():
            attach(self._options.address)
        return ray
