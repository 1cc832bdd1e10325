"""What a Ferry has done so far, counted; and an exporter of it for Prometheus."""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from rollferry.engines.base import Usage
from rollferry.errors import RollferryError
from rollferry.timings import Operation, Stopwatch, Timing

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import CollectorRegistry

__all__ = ["Exporter", "Metrics", "exporter"]

#: Counter -> what it counts.
COUNTERS = {
    "puts": "Batches put, and stages appended.",
    "gets": "Gets, packed and padded reads.",
    "removes": "Bundles removed, or left by a reader that was done.",
    "put_bytes": "Payload bytes of what was put.",
    "fetched_bytes": "Payload bytes that gets fetched.",
    "waits": "Puts that found no room at first, and waited for it or made it.",
    "waited_seconds": "Seconds that they took for that.",
    "refusals": "Puts that were refused, as there was no room.",
    "reclaimed": "Bundles removed since their time was over.",
    "orphans": "Bundles removed since their producer had been dead for a day, or had left them half-written.",
    "retries": "Calls of the engine that this process made again, since they had failed in passing.",
}
#: Attribute of NamespaceUsage -> its gauge, and what that is.
GAUGES = {
    "bundles": ("rollferry_bundles", "Bundles in the engine."),
    "live_nbytes": ("rollferry_live_bytes", "Bytes of memory that they take."),
    "pooled_nbytes": ("rollferry_pooled_bytes", "Bytes of free memory kept for reuse that they took before."),
    "peak_nbytes": ("rollferry_peak_bytes", "Most live bytes at a time."),
    "guaranteed_nbytes": ("rollferry_guaranteed_bytes", "Bytes that no other namespace can take."),
    "oldest_age": ("rollferry_oldest_age_seconds", "Seconds since the oldest of them was put."),
}
MADE: "weakref.WeakSet[Metrics]" = weakref.WeakSet()


class Metrics:
    """Counts what one Ferry does in this process; the child of a fork counts from zero. Thread-safe.

    Parameters
    ----------
    retries
        Gives the retries of the engine, which all Ferries share that use it.
    """

    def __init__(self, retries: Callable[[], int] = int) -> None:
        self._retries = retries
        self.reset()
        MADE.add(self)

    def reset(self) -> None:
        """Count from zero again."""
        self._lock = threading.Lock()
        self._counts: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self._retries_before = self._retries()
        self._phases: dict[tuple[Operation, str], tuple[int, float]] = {}

    def count(self, **amounts: float) -> None:
        """Add to counters."""
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    def finished(self, timing: Timing) -> None:
        """Count a put or get that is done."""
        if timing.operation == "put":
            self.count(puts=1, put_bytes=timing.nbytes, **waits(timing.phases))
        else:
            self.count(gets=1, fetched_bytes=timing.fetched_nbytes)
        with self._lock:
            for phase, seconds in timing.phases.items():
                number, total = self._phases.get((timing.operation, phase), (0, 0.0))
                self._phases[timing.operation, phase] = number + 1, total + seconds

    def refused(self, watch: Stopwatch) -> None:
        """Count a put that found no room."""
        self.count(refusals=1, **waits(watch.phases))

    def snapshot(self) -> dict[str, Any]:
        """Give all counters, by name, and ``phases``: operation -> phase -> ``count`` and ``seconds``."""
        with self._lock:
            found: dict[str, Any] = dict(self._counts)
            found["retries"] = self._retries() - self._retries_before
            phases = list(self._phases.items())
        found["phases"] = {"put": {}, "get": {}}
        for (operation, phase), (number, seconds) in phases:
            found["phases"][operation][phase] = {"count": number, "seconds": seconds}
        return found


def waits(phases: dict[str, float]) -> dict[str, float]:
    """Give what to count of the waiting of a put."""
    return {"waits": 1, "waited_seconds": phases["wait"]} if "wait" in phases else {}


def reset_in_child() -> None:
    """Start all counters of this process anew: they are the parent's, and so may be who holds their locks."""
    for metrics in list(MADE):
        metrics.reset()


os.register_at_fork(after_in_child=reset_in_child)


class Measured(Protocol):
    """What an Exporter needs of a Ferry."""

    @property
    def metrics(self) -> Metrics:
        """Its counters."""

    def usage(self) -> Usage:
        """Say what the engine holds."""


class Exporter:
    """Collector of Prometheus; see `exporter`."""

    def __init__(self, ferry: Measured) -> None:
        self._ferry = ferry

    def describe(self) -> "Iterator[Metric]":
        """Give all metrics without values, which takes no look at the engine."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"rollferry_{name}", text)
        yield SummaryMetricFamily("rollferry_phase_seconds", "Seconds of the phases of puts and gets.")
        yield GaugeMetricFamily("rollferry_up", "Whether the engine could be asked.")
        yield GaugeMetricFamily("rollferry_free_bytes", "Bytes that further bundles can have.")
        for name, text in GAUGES.values():
            yield GaugeMetricFamily(name, text)

    def collect(self) -> "Iterator[Metric]":
        """Give all metrics; those of the engine only where it can be asked."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

        snapshot = self._ferry.metrics.snapshot()
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(f"rollferry_{name}", text, value=snapshot[name])
        summary = SummaryMetricFamily(
            "rollferry_phase_seconds", "Seconds of the phases of puts and gets.", labels=["operation", "phase"]
        )
        for operation, phases in snapshot["phases"].items():
            for phase, found in phases.items():
                summary.add_metric([operation, phase], count_value=found["count"], sum_value=found["seconds"])
        yield summary
        try:
            usage = self._ferry.usage()
        except RollferryError:  # what was counted is worth having all the same
            yield GaugeMetricFamily("rollferry_up", "Whether the engine could be asked.", value=0)
            return
        yield GaugeMetricFamily("rollferry_up", "Whether the engine could be asked.", value=1)
        yield GaugeMetricFamily("rollferry_free_bytes", "Bytes that further bundles can have.", value=usage.free_nbytes)
        for attribute, (name, text) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["namespace"])
            for namespace, held in usage.namespaces.items():
                value = getattr(held, attribute)
                if value is not None:
                    gauge.add_metric([namespace], value)
            yield gauge


def exporter(ferry: Measured, registry: "CollectorRegistry | None" = None) -> Exporter:
    """Have Prometheus collect the metrics of a Ferry; needs the package prometheus_client.

    Parameters
    ----------
    ferry
        The Ferry. Each collection asks its engine what it holds, as `Ferry.usage` does.
    registry
        Where to register, by default prometheus_client's own. One registry takes one Ferry, as their metrics have the same names.

    Returns
    -------
    Exporter
        To unregister it. Counters are ``rollferry_*_total``; phases are a summary ``rollferry_phase_seconds`` by operation and
        phase; what the engine holds are gauges by namespace, such as ``rollferry_live_bytes``. ``rollferry_up`` is 0 where the
        engine can't be asked.
    """
    try:
        import prometheus_client
    except ImportError as error:
        raise ImportError(f"the exporter needs prometheus_client: pip install 'rollferry[metrics]' ({error})") from None
    made = Exporter(ferry)
    (prometheus_client.REGISTRY if registry is None else registry).register(made)
    return made
