"""Who works on what, and when. It carries refs, sees no batch, and removes each bundle when its last reader is done."""

import argparse
import time
from typing import Any

import rollferry
from processes import Team

HEAD = "step  reward  exact    loss  stale    drift  clip | put KB     ms | get KB     ms | weights KB     ms     ms |     s"

Message = dict[str, Any]


class Schedule:
    """One rule makes both modes: a worker begins step N only when N - version <= staleness, which in sync mode is 0.

    `version` is that of the newest weights: how many steps were trained.
    """

    def __init__(self, options: argparse.Namespace, team: Team, ferry: rollferry.Ferry) -> None:
        self.options, self.team, self.ferry = options, team, ferry
        self.begun = {name: 0 for name in team.lines if name.startswith("rollout")}  # steps of each worker
        self.trainers = [name for name in team.lines if name.startswith("trainer")]
        self.starting = set(team.lines)
        self.version = 0
        self.weights: dict[int, str] = {}  # refs, by version
        self.busy: dict[str, int] = {}  # workers at work, and the version they were told to use
        self.rolled: dict[int, dict[str, Message]] = {}  # by step and worker
        self.read: dict[str, Message] = {}  # what trainers said of the step in training
        self.trained: dict[str, Message] = {}
        self.training = False
        self.done: list[str] = []  # refs to remove
        self.steps: list[Message] = []
        self.began = 0.0

    def run(self) -> list[Message]:
        """Train all steps; give the figures of each."""
        while self.version < self.options.steps:
            self.take(*self.team.hear())
            self.remove_read()
            if not self.starting:
                self.order()
        for ref in self.weights.values():
            self.ferry.remove(ref)
        return self.steps

    def take(self, name: str, message: Message) -> None:
        match message:
            case {"warm": step, "loss": loss}:
                print(f"supervised warm-up, step {step} of {self.options.warm_up}: loss {loss:.2f}", flush=True)
            case {"ready": _}:
                if message.get("weights"):
                    self.weights[0] = message["weights"]
                self.starting.discard(name)
                if not self.starting:
                    self.began = time.monotonic()
                    print(HEAD, flush=True)
            case {"rolled": step}:
                del self.busy[name]
                self.rolled.setdefault(step, {})[name] = message
            case {"read": step}:
                self.read[name] = message
                if len(self.read) == len(self.trainers):
                    self.done += [rolled["batch"] for rolled in self.rolled[step].values()]
            case {"trained": step}:
                self.trained[name] = message
                if len(self.trained) == len(self.trainers):
                    self.finish(step)

    def remove_read(self) -> None:
        """Remove the bundles that nobody will read any more."""
        self.done += [self.weights.pop(version) for version in set(self.weights) - {self.version, *self.busy.values()}]
        while self.done:
            self.ferry.remove(self.done.pop())

    def order(self) -> None:
        """Give work to whoever may have some."""
        for name, step in self.begun.items():
            if name not in self.busy and step < min(self.options.steps, self.version + 1 + self.options.staleness):
                self.team.tell(name, do="generate", step=step, weights=self.weights[self.version])
                self.busy[name], self.begun[name] = self.version, step + 1
        rolled = self.rolled.get(self.version, {})
        if not self.training and len(rolled) == len(self.begun):
            refs = [rolled[name]["batch"] for name in self.begun]  # in one order, whoever was first
            for name in self.trainers:
                self.team.tell(name, do="train", step=self.version, batches=refs)
            self.training = True

    def finish(self, step: int) -> None:
        """Note a step that all trainers are done with."""
        rolled, read = list(self.rolled.pop(step).values()), list(self.read.values())
        first = self.trained[self.trainers[0]]
        self.version += 1
        self.weights[self.version] = first["weights"]
        figures = {
            "reward": sum(one["reward"] for one in rolled) / len(rolled),
            "exact": sum(one["exact"] for one in rolled) / len(rolled),
            **{name: first[name] for name in ("loss", "stale", "drift", "clipped")},
        }
        self.steps.append(figures)
        print(
            f"{step:4}  {figures['reward']:6.3f}  {figures['exact']:5.3f}  {figures['loss']:6.3f}  {figures['stale']:5}"
            f"  {figures['drift']:7.1e}  {figures['clipped']:4.2f}"
            f" | {sum(one['nbytes'] for one in rolled) / 1e3:6.1f}  {max(one['put_ms'] for one in rolled):5.2f}"
            f" | {max(one['nbytes'] for one in read) / 1e3:6.1f}  {max(one['get_ms'] for one in read):5.2f}"
            f" | {first['nbytes'] / 1e3:10.1f}  {first['put_ms']:5.2f}  {max(one['load_ms'] for one in rolled):5.2f}"
            f" | {time.monotonic() - self.began:5.1f}",
            flush=True,
        )
        self.read, self.trained, self.training = {}, {}, False
