"""The coordinator: starts the processes, decides who works on what, and hands refs on. It never sees a payload.

One rule makes both modes: generation for step N may begin once ``N - version <= max_staleness``, where ``version``
counts the finished training steps. With 0 generation and training alternate; with 1 they overlap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean

import rollferry
from rollferry.demo.carrier import Parcel
from rollferry.demo.errors import DemoError
from rollferry.demo.messages import Finished, Generate, Ready, Rolled, Train, Trained
from rollferry.demo.options import DemoOptions
from rollferry.demo.processes import Member, Team, single_threaded
from rollferry.demo.records import RunRecord, StepRecord
from rollferry.demo.rollout import run_rollout
from rollferry.demo.trainer import run_trainer

__all__ = ["Coordinator", "run_training"]


class Coordinator:
    """The schedule of one run.

    Parameters
    ----------
    options : DemoOptions
        The run.
    record : RunRecord
        Filled as the run goes on.
    ferry : rollferry.Ferry
        Used to remove what all readers are done with.
    on_step : callable
        Called with each finished step.
    """

    def __init__(
        self, options: DemoOptions, record: RunRecord, ferry: rollferry.Ferry, on_step: Callable[[StepRecord], None]
    ) -> None:
        self.options = options
        self.record = record
        self.ferry = ferry
        self.on_step = on_step
        self.version = 0
        self.weights: dict[int, Parcel] = {}  # by version, until no worker can be reading them
        self.workers: list[Member] = []
        self.trainers: list[Member] = []
        self.next_step: dict[str, int] = {}  # by worker: what it generates next
        self.holds: dict[str, int] = {}  # by worker: the version it has
        self.busy: set[str] = set()
        self.training = False
        self.stopping = False
        self.rolled: dict[int, list[tuple[int, Rolled]]] = {}  # by step: what came, with the worker's place
        self.trained: list[Trained] = []

    def run(self, team: Team) -> None:
        """Start the processes and carry the run through."""
        self._start(team)
        waiting = {member.name for member in team.members}
        for member, message in team.listen():
            match message:
                case Ready(weights):
                    waiting.discard(member.name)
                    if weights is not None:
                        self.weights[0] = weights
                    if not waiting:
                        self.record.began = time.monotonic()
                case Rolled():
                    self._take_rolled(member, message)
                case Trained():
                    self._take_trained(member, message)
                case Finished(left, equal, cpu_seconds):
                    self.record.left += left
                    self.record.equal += equal
                    self.record.cpu_seconds += cpu_seconds
            if waiting or self.stopping:
                continue
            if self.version < self.options.steps:
                self._dispatch()
            else:
                self._stop(team)

    def _start(self, team: Team) -> None:
        """Start all processes, the trainers with a pipe between each two of them."""
        options = self.options
        pairs = {(low, high): team.pipe() for high in range(options.trainers) for low in range(high)}
        with single_threaded():
            for index in range(options.workers):
                member = team.start(f"rollout-{index}", run_rollout, index, options)
                self.workers.append(member)
                self.next_step[member.name] = 0
            for rank in range(options.trainers):
                peers = {
                    (low if high == rank else high): ends[high == rank]
                    for (low, high), ends in pairs.items()
                    if rank in (low, high)
                }
                self.trainers.append(team.start(f"trainer-{rank}", run_trainer, rank, peers, options))
        for ends in pairs.values():
            for end in ends:
                end.close()
        self.record.activities.update({member.name: [] for member in team.members})

    def _dispatch(self) -> None:
        """Give work to whoever may have some."""
        for worker in self.workers:
            step = self.next_step[worker.name]
            allowed = step < self.options.steps and step - self.version <= self.options.max_staleness
            if worker.name not in self.busy and allowed:
                fresh = self.holds.get(worker.name) != self.version
                worker.send(Generate(step, self.version, self.weights[self.version] if fresh else None))
                self.holds[worker.name] = self.version
                self.busy.add(worker.name)
        arrived = self.rolled.get(self.version, [])
        if not self.training and len(arrived) == len(self.workers):
            self.training = True
            arrived.sort(key=lambda entry: entry[0])
            for rank, trainer in enumerate(self.trainers):
                shards = [message.shards[rank] for _, message in arrived]
                trainer.send(Train(self.version, shards, self.record.began))

    def _take_rolled(self, worker: Member, message: Rolled) -> None:
        """Note a worker's share of a step."""
        self.record.activities[worker.name] += message.activities
        self.busy.discard(worker.name)
        self.next_step[worker.name] += 1
        self.rolled.setdefault(message.step, []).append((self.workers.index(worker), message))
        self._drop_weights()

    def _take_trained(self, trainer: Member, message: Trained) -> None:
        """Note a trainer's share of a step, and close the step when all have theirs."""
        self.record.activities[trainer.name] += message.activities
        self.trained.append(message)
        if message.weights is not None:
            self.weights[message.step + 1] = message.weights
        if len(self.trained) < len(self.trainers):
            return
        if len({done.weights_digest for done in self.trained}) > 1:
            raise DemoError(f"step {message.step}: the trainers' weights differ")
        shares = [share for _, share in self.rolled.pop(message.step)]
        for parcel in (parcel for share in shares for parcel in share.shards):
            self.ferry.remove(parcel.ref)
        step = self._close_step(shares, self.trained)
        self.trained = []
        self.training = False
        self.version += 1
        self._drop_weights()
        self.record.steps.append(step)
        self.on_step(step)

    def _stop(self, team: Team) -> None:
        """Remove the last weights, which nobody will read, and tell all processes to end."""
        for parcel in self.weights.values():
            self.ferry.remove(parcel.ref)
        self.weights.clear()
        self.stopping = True
        team.stop()

    def _close_step(self, rolled: list[Rolled], trained: list[Trained]) -> StepRecord:
        """Return the record of a finished step."""
        parcels = [parcel for share in rolled for parcel in share.shards]
        samples = sum(share.samples for share in rolled)
        return StepRecord(
            mode=self.record.mode,
            step=self.version,
            reward=sum(share.reward * share.samples for share in rolled) / samples,
            exact=sum(share.exact * share.samples for share in rolled) / samples,
            put_ms=1e3 * fmean(seconds for share in rolled for seconds in share.put_seconds),
            get_ms=1e3 * fmean(seconds for share in trained for seconds in share.get_seconds),
            bundles=len(parcels),
            nbytes=sum(parcel.nbytes for parcel in parcels),
            samples=samples,
            stall_ms=1e3 * fmean(share.stall_seconds for share in trained),
            staleness=max(share.staleness for share in trained),
            loss=fmean(share.loss for share in trained),
            clipped=fmean(share.clipped for share in trained),
            elapsed=time.monotonic() - self.record.began,
        )

    def _drop_weights(self) -> None:
        """Remove old weights that no worker is reading."""
        reading = {self.holds[name] for name in self.busy}
        newest = max(self.weights, default=0)
        for version in [version for version in self.weights if version < newest and version != self.version]:
            if version not in reading:
                self.ferry.remove(self.weights.pop(version).ref)


def run_training(options: DemoOptions, mode: str, on_step: Callable[[StepRecord], None]) -> RunRecord:
    """Train once, with processes of its own.

    Parameters
    ----------
    options : DemoOptions
        The run.
    mode : str
        What to call it in the record.
    on_step : callable
        Called with each finished step.

    Raises
    ------
    ProcessFailedError
        A process failed, for example because a batch was not equal to what was put.
    """
    record = RunRecord(mode)
    with rollferry.connect(options.url, namespace=options.namespace) as ferry:
        with Team() as team:
            Coordinator(options, record, ferry, on_step).run(team)
        record.left += len(ferry.list())
    return record
