"""The order of things: plan, services, and for each batch first calls in fresh processes, then trials in turns."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeVar

from rollferry.bench.arms import ARMS
from rollferry.bench.children import Child, Refused, undisturbed
from rollferry.bench.errors import BenchError, MismatchError
from rollferry.bench.machine import describe_machine, describe_packages
from rollferry.bench.options import BenchOptions
from rollferry.bench.pair import HandedOver, Pair, Terms
from rollferry.bench.plan import Planned, plan
from rollferry.bench.results import ArmResult, Floor, LeftOut, Report, Run

__all__ = ["Progress", "run_bench"]

Result = TypeVar("Result")
Services = dict[str, dict[str, str]]

_SHARED_MEMORY = "/dev/shm"  # noqa: S108  # a private directory of it is used
_RAY_LEAST, _RAY_TIMES = 256 << 20, 4  # it frees removed objects late, and stores numbers of Python less compactly


class Progress(Protocol):
    """Where a run says how far it is."""

    def begin(self, what: str, steps: int) -> None:
        """Begin with something that takes so many steps."""

    def step(self, what: str) -> None:
        """Take the next step."""

    def finish(self, run: Run) -> None:
        """Show what was found on a batch."""


class Workplace:
    """Private directories, in shared memory and on a disk, that go with the block.

    Parameters
    ----------
    environment
        Variables of all children.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        base = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
        self._environment = environment
        self._memory = Path(tempfile.mkdtemp(prefix=f"rollferry-bench-{os.getpid()}-", dir=base))
        self._disk = Path(tempfile.mkdtemp(prefix=f"rollferry-bench-{os.getpid()}-"))

    def start_worker(self) -> Child:
        """Start a producer or consumer."""
        return Child("worker", log=self._disk / "worker.log", environment=self._environment)

    def start_keeper(self, wanted: dict[str, object]) -> Child:
        """Start the process that keeps the services."""
        return Child("keeper", json.dumps(wanted), log=self._disk / "services.log", environment=self._environment)

    def rooms(self) -> tuple[Path, Path]:
        """Give new directories in shared memory and on the disk."""
        return Path(tempfile.mkdtemp(dir=self._memory)), Path(tempfile.mkdtemp(dir=self._disk))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with undisturbed():
            for path in (self._memory, self._disk):
                shutil.rmtree(path, ignore_errors=True)


def run_bench(options: BenchOptions, progress: Progress) -> Report:
    """Run the benchmark.

    Parameters
    ----------
    options
        What is asked for.
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
        machine=describe_machine(),
        packages=describe_packages(arms),
        options=asdict(options),
        left_out=[LeftOut(name, reason) for name, reason in lacking.items()],
    )
    # Ray takes this secret from the environment, so that nobody else can reach the Ray of this run.
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    with ExitStack() as stack:
        place = stack.enter_context(Workplace(environment))
        progress.begin("planning", 0)
        planned, too_much = plan(options, arms, place.start_worker)
        report.left_out += too_much
        services: Services = {}
        if planned and any(ARMS[name].service for name in arms):
            progress.begin("starting services", 0)
            services = stack.enter_context(place.start_keeper(_wanted(arms, planned))).listen()
        arms = _with_services(arms, services, report)
        if not (planned and arms):
            reasons = "; ".join(f"{left.what}: {left.reason}" for left in report.left_out)
            raise BenchError(f"there is nothing left to measure: {reasons}")
        for batch in planned:
            run = Measurement(batch, options, services, place, progress).of(arms)
            report.runs.append(run)
            progress.finish(run)
        progress.begin("ending", 0)
    return report


class Measurement:
    """All arms on one batch.

    Parameters
    ----------
    batch
        The batch.
    options
        What is asked for.
    services
        What each arm's service said of itself, by the arm's name.
    place
        Where processes and files go.
    progress
        Where it says how far it is.
    """

    def __init__(
        self, batch: Planned, options: BenchOptions, services: Services, place: Workplace, progress: Progress
    ) -> None:
        self._batch = batch
        self._options = options
        self._services = services
        self._place = place
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

    def _pair(self) -> Pair:
        """Start a pair of processes, whose stores are empty."""
        memory, disk = self._place.rooms()
        return Pair(
            Terms(self._batch, memory, disk, self._options.segment_at, self._services), self._place.start_worker
        )

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
                self._run.arms[name].cold = handed.trial

    def _take_turns(self, pair: Pair) -> None:
        """Do all trials; number 0 warms up."""
        run, trials = self._run, self._options.trials
        for name in list(run.arms):
            self._try(name, partial(pair.open, name))
        run.nbytes = pair.payload_nbytes()
        for number in range(trials + 1):
            for name in list(run.arms):
                self._progress.step(f"{name}: trial {number} of {trials}" if number else f"{name}: warming up")
                handed = self._try(name, partial(pair.hand_over, name))
                if handed is not None:
                    _note(run.arms[name], handed, number)
            _note_floors(run, pair.floors(run.nbytes), number)

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
    room = max(batch.nbytes for batch in planned)
    return {
        "masters": [name for name in arms if ARMS[name].service == "mooncake"],
        "ray": _RAY_LEAST + _RAY_TIMES * room if any(ARMS[name].service == "ray" for name in arms) else 0,
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
    if number:
        result.trials.append(handed.trial)
    else:
        result.warmup = handed.trial
    if handed.notes:
        result.fidelity, result.notes = handed.fidelity, handed.notes


def _note_floors(run: Run, seconds: dict[str, float], number: int) -> None:
    """Add what was measured of the floors; number 0 warms up."""
    for name, figure in seconds.items():
        kind, _, threads = name.partition("-")
        title, against = {
            "copy": (f"copying it, {threads} thread{'s' * (threads != '1')}", "put"),
            "views": ("making its views in C", "get"),
        }[kind]
        floor = run.floors.setdefault(name, Floor(name, title, against))
        if number:
            floor.seconds.append(figure)
