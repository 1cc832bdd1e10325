"""Which batches fit into memory, found out from small ones of the same kind."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from rollferry.bench.arms import ARMS
from rollferry.bench.children import Child
from rollferry.bench.errors import BenchError
from rollferry.bench.machine import available_nbytes
from rollferry.bench.options import BenchOptions, parse_size
from rollferry.bench.results import LeftOut
from rollferry.bench.workloads import WORKLOADS, Source

__all__ = ["Planned", "limit_nbytes", "needed_nbytes", "plan"]

Start = Callable[[], Child]

_FIRST_SAMPLES = 64
_MEASURED_NBYTES = 8 << 20  # large enough for the memory of objects to be seen
_QUICK_NBYTES = 8 << 20
_BASE, _SERVICES = 512 << 20, 768 << 20  # two processes with their libraries; Ray's and Mooncake's own processes
_MOST_HELD = 2.0  # times what arms hold of a batch that is all arrays
_SHARE = 0.8  # of the available memory


class Planned(msgspec.Struct, frozen=True):
    """A batch to measure.

    Parameters
    ----------
    source
        Where it comes from.
    title
        What it is.
    nbytes
        About its payload bytes.
    """

    source: Source
    title: str
    nbytes: int


class Kind(msgspec.Struct, frozen=True):
    """What a small batch says of larger ones.

    Parameters
    ----------
    per_sample
        Payload bytes of a sample, or of the whole file.
    objects
        Bytes of Python objects for each payload byte.
    """

    per_sample: float
    objects: float


def plan(options: BenchOptions, arms: Iterable[str], start: Start) -> tuple[list[Planned], list[LeftOut]]:
    """Say what to measure, and what to leave out.

    Parameters
    ----------
    options
        What is asked for.
    arms
        Names of the arms that will take part.
    start
        Starts a worker.
    """
    planned: list[Planned] = []
    left_out: list[LeftOut] = []
    limit = limit_nbytes(parse_size(options.memory), available_nbytes())
    for name, (source, title, kind) in _kinds(options, start, left_out):
        for samples in _samples(options, source, kind):
            nbytes = round(kind.per_sample * max(samples, 1))
            needed = needed_nbytes(nbytes, kind.objects, arms)
            if needed > limit:
                reason = f"needs about {needed / 2**30:.1f} GiB; the limit is {limit / 2**30:.1f} (--memory)"
                left_out.append(LeftOut(f"{name} of {nbytes / 2**20:,.0f} MiB", reason))
            else:
                planned.append(Planned(Source(name, samples, source.file, options.allow_pickle), title, nbytes))
    return planned, left_out


def limit_nbytes(allowed: int, available: int) -> int:
    """Give how much memory a run may take, by its options and by what the machine has left (0: unknown)."""
    return min(allowed, int(_SHARE * available)) if available else allowed


def needed_nbytes(nbytes: int, objects: float, arms: Iterable[str]) -> int:
    """Estimate the memory that a batch takes while all arms have their turns.

    Parameters
    ----------
    nbytes
        Its payload bytes.
    objects
        Bytes of Python objects for each payload byte.
    arms
        Names of the arms.
    """
    batches = 3  # in the producer, the result in the consumer, and what that is compared with
    copies = 2  # the floor's
    chosen = [ARMS[arm] for arm in arms]
    # Where objects are much of a batch, arms that make objects of their own keep more, if not as much more: measured.
    held = sum(arm.holds for arm in chosen) * min(objects, _MOST_HELD)
    return _BASE + _SERVICES * any(arm.service for arm in chosen) + round(nbytes * (batches * objects + copies + held))


def _kinds(
    options: BenchOptions, start: Start, left_out: list[LeftOut]
) -> Iterator[tuple[str, tuple[Source, str, Kind]]]:
    """Give each workload, a source of its kind, title and kind; leave out those that can't be made."""
    if options.file:
        name = Path(options.file).name
        sources = [(Source(name, 0, options.file, options.allow_pickle), "a batch from a file")]
    else:
        sources = [(Source(name, _FIRST_SAMPLES), WORKLOADS[name].title) for name in options.chosen_workloads]
    for source, title in sources:
        if source.needs and importlib.util.find_spec(source.needs) is None:
            left_out.append(LeftOut(source.workload, f"{source.needs} isn't installed"))
            continue
        try:
            with start() as worker:
                found = worker.ask("measure", source=source, least_nbytes=_MEASURED_NBYTES)
        except BenchError as error:
            left_out.append(LeftOut(source.workload, str(error)))
        else:
            yield source.workload, (source, title, msgspec.convert(found, Kind))


def _samples(options: BenchOptions, source: Source, kind: Kind) -> list[int]:
    """Give the numbers of samples to measure, in order."""
    if source.file:
        return [0]
    if options.samples:
        return [options.samples]
    if options.sizes:
        return sorted({max(1, round(size / kind.per_sample)) for size in options.sizes})
    usual = WORKLOADS[source.workload].samples
    return [min(usual, max(1, round(_QUICK_NBYTES / kind.per_sample))) if options.quick else usual]
