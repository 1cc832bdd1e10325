"""The order of things: plan, services, and for each batch first calls in fresh processes, then trials in turns."""

from __future__ import annotations

import json
import os
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rollferry.bench.arms import ARMS
from rollferry.bench.children import Child, on_signal
from rollferry.bench.errors import BenchError, MismatchError, Refused
from rollferry.bench.machine import describe_packages
from rollferry.bench.options import BenchOptions
from rollferry.bench.pair import Pair
from rollferry.bench.plan import Planned, plan
from rollferry.bench.report import Progress
from rollferry.bench.results import ArmResult, Floor, LeftOut, Report, Run, Trial

__all__ = ["run_bench"]

Result = TypeVar("Result")
Services = dict[str, dict[str, str]]
HandedOver = tuple[Trial, str, list[str]]

_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # a private directory of it is used
_RAY_LEAST, _RAY_TIMES = 256 << 20, 4  # it frees removed objects late, and stores numbers of Python less compactly


def run_bench(options: BenchOptions, machine: dict[str, Any], progress: Progress) -> Report:
    """Run the benchmark.

    Parameters
    ----------
    options
        What is asked for.
    machine
        What it runs on, for the report.
    progress
        Where it says how far it is.

    Returns
    -------
    Report
        Everything that was measured.

    Raises
    ------
    MismatchError
        rollferry gave back something else than was put.
    BenchError
        A process died, or there is nothing to measure.
    """
    lacking = {name: reason for name in options.chosen_arms if (reason := ARMS[name].missing())}
    arms = [name for name in options.chosen_arms if name not in lacking]
    report = Report(
        date=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
        machine=machine,
        packages=describe_packages(arms),
        options=msgspec.to_builtins(options),
        left_out=[LeftOut(name, reason) for name, reason in lacking.items()],
    )
    # Ray takes this secret from the environment, so that nobody else can reach the Ray of this run.
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    stack = ExitStack()
    try:
        memory, disk = (stack.enter_context(_directory(base)) for base in (_SHARED_MEMORY, None))
        start = partial(Child, "worker", log=disk / "worker.log", environment=environment)
        progress.begin("planning")
        planned, too_much = plan(options, arms, start)
        report.left_out += too_much
        services: Services = {}
        if planned and any(ARMS[name].service for name in arms):
            progress.begin("starting services")
            wanted = json.dumps(_wanted(arms, planned))
            keeper = Child("keeper", wanted, log=disk / "services.log", environment=environment)
            services = stack.enter_context(keeper).listen()
        arms = _with_services(arms, services, report)
        if not (planned and arms):
            reasons = "; ".join(f"{left.what}: {left.reason}" for left in report.left_out)
            raise BenchError(f"there is nothing left to measure: {reasons}")
        for batch in planned:
            pair = partial(_pair, start, batch, memory, disk, lender=options.segment_at, services=services)
            run = Measurement(batch, options, pair, progress).of(arms)
            report.runs.append(run)
            progress.finish(run)
        progress.begin("ending")
    finally:
        with on_signal(signal.SIGINT, signal.SIG_IGN):
            stack.close()
    return report


@contextmanager
def _directory(base: str | Path | None) -> Iterator[Path]:
    """Lend a private directory, which goes with the block; None is where temporary files are."""
    if base == _SHARED_MEMORY and not os.access(base, os.W_OK):
        base = None
    prefix = f"rollferry-bench-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=base, ignore_cleanup_errors=True) as path:
        yield Path(path)


@contextmanager
def _pair(
    start: Callable[[], Child], batch: Planned, memory: Path, disk: Path, *, lender: str, services: Services
) -> Iterator[Pair]:
    """Start a pair of processes, whose stores are empty, with directories of its own."""
    with (
        _directory(memory) as own_memory,
        _directory(disk) as own_disk,
        Pair(start, batch, memory=own_memory, disk=own_disk, lender=lender, services=services) as pair,
    ):
        yield pair


class Measurement:
    """All arms on one batch.

    Parameters
    ----------
    batch
        The batch.
    options
        What is asked for.
    pair
        Starts a pair of processes for it.
    progress
        Where it says how far it is.
    """

    def __init__(
        self,
        batch: Planned,
        options: BenchOptions,
        pair: Callable[[], AbstractContextManager[Pair]],
        progress: Progress,
    ) -> None:
        self._options = options
        self._pair = pair
        self._progress = progress
        self._run = Run(batch.source.workload, batch.title, batch.source.samples, batch.nbytes)

    def of(self, arms: list[str]) -> Run:
        """Measure arms: each alone in fresh processes first, then all in turns, trial by trial."""
        run, trials = self._run, self._options.trials
        run.arms = {name: ArmResult(name, ARMS[name].title, ARMS[name].remark) for name in arms}
        what = f"{run.workload}, about {run.nbytes / 2**20:,.1f} MiB"
        self._progress.begin(what, len(arms) * (trials + 1 + self._options.cold))
        if self._options.cold:
            for name in arms:
                self._progress.step(f"{name}: first calls of fresh processes")
                self._measure_cold(name)
        if run.arms:
            with self._pair() as pair:
                self._take_turns(pair)
        return run

    def _measure_cold(self, name: str) -> None:
        """Measure the first calls of an arm in processes of its own."""

        def first_calls() -> HandedOver:
            with self._pair() as pair:
                pair.open(name)
                return pair.hand_over(name)

        try:
            handed = self._try(name, first_calls)
        except MismatchError:
            raise
        except BenchError as error:  # its processes died, but they were its own
            self._leave_out(name, str(error))
        else:
            if handed is not None:
                self._run.arms[name].cold = handed[0]

    def _take_turns(self, pair: Pair) -> None:
        """Do all trials; number 0 warms up."""
        run, trials = self._run, self._options.trials
        for name in list(run.arms):
            self._try(name, partial(pair.open, name))
        run.nbytes = pair.payload_nbytes()
        measure_floors = True
        for number in range(trials + 1):
            for name in list(run.arms):
                self._progress.step(f"{name}: trial {number} of {trials}" if number else f"{name}: warming up")
                handed = self._try(name, partial(pair.hand_over, name))
                if handed is not None:
                    _note(run.arms[name], handed, number)
            if measure_floors:
                measure_floors = self._floors(pair, number)

    def _floors(self, pair: Pair, number: int) -> bool:
        """Measure the floors; number 0 warms up. False if they can't be, which is noted."""
        run = self._run
        try:
            measured = pair.floors(run.nbytes)
        except Refused as error:
            run.left_out.append(LeftOut("floors", str(error)))
            return False
        for name, (title, against, seconds) in measured.items() if number else ():
            run.floors.setdefault(name, Floor(name, title, against)).seconds.append(seconds)
        return True

    def _try(self, name: str, work: Callable[[], Result]) -> Result | None:
        """Do something with an arm; leave the arm out if it fails."""
        try:
            return work()
        except Refused as error:
            self._leave_out(name, str(error))
            return None
        except MismatchError as error:
            raise MismatchError(f"{name}, {self._run.workload}: {error}") from None

    def _leave_out(self, name: str, reason: str) -> None:
        """Take an arm out, and say why."""
        del self._run.arms[name]
        self._run.left_out.append(LeftOut(name, reason))


def _wanted(arms: list[str], planned: list[Planned]) -> dict[str, object]:
    """Say which services to start."""
    largest = max(batch.nbytes for batch in planned)
    return {
        "masters": [name for name in arms if ARMS[name].service == "mooncake"],
        "ray": _RAY_LEAST + _RAY_TIMES * largest if any(ARMS[name].service == "ray" for name in arms) else 0,
    }


def _with_services(arms: list[str], services: Services, report: Report) -> list[str]:
    """Give the arms whose service runs, tell `services` which one that is, and note the other arms."""
    ready = []
    for name in arms:
        if ARMS[name].service == "ray":
            services[name] = services["ray"]
        if "error" in services.get(name, {}):
            report.left_out.append(LeftOut(name, services[name]["error"]))
        else:
            ready.append(name)
    return ready


def _note(result: ArmResult, handed: HandedOver, number: int) -> None:
    """Add a trial; number 0 warms up."""
    trial, fidelity, notes = handed
    if number:
        result.trials.append(trial)
    else:
        result.warmup = trial
    if notes:
        result.fidelity, result.notes = fidelity, notes
