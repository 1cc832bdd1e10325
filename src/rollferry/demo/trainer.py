"""A trainer: consumes its shards, averages gradients with the other trainers, and puts the new weights."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from rollferry.demo.activity import Recorder
from rollferry.demo.batches import Batch, pad_rows
from rollferry.demo.carrier import Carrier, Parcel
from rollferry.demo.errors import StalenessError
from rollferry.demo.fingerprint import fingerprint
from rollferry.demo.messages import Finished, Ready, Train, Trained
from rollferry.demo.objective import Minibatch, Objective, policy_gradient, reanchor
from rollferry.demo.optimizer import Adam
from rollferry.demo.options import DemoOptions
from rollferry.demo.policy import Parameters, init_parameters
from rollferry.demo.processes import ignore_termination

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["GradientExchange", "Trainer", "run_trainer"]


class GradientExchange:
    """Averages gradients among trainers, through the ferry.

    Parameters
    ----------
    rank : int
        Which of the trainers this is.
    peers : dict of Connection
        A pipe to each other trainer, by rank.
    carrier : Carrier
        The way for the gradients; only refs go through the pipes.
    """

    def __init__(self, rank: int, peers: dict[int, Connection[Any, Any]], carrier: Carrier) -> None:
        self.rank = rank
        self.peers = peers
        self.carrier = carrier
        self._last: Parcel | None = None

    def average(self, gradient: Parameters, rows: int, step: int) -> Parameters:
        """Return the average over all trainers, weighted by rows; the same bits on each of them."""
        if not self.peers:
            return gradient
        parcel = self.carrier.send({"rows": rows, "gradient": gradient}, step)
        for peer in self.peers.values():
            peer.send(parcel)
        with ExitStack() as loans:
            shares: dict[int, Batch] = {self.rank: {"rows": rows, "gradient": gradient}}
            for rank, peer in self.peers.items():
                shares[rank] = loans.enter_context(self.carrier.receive(peer.recv(), step))
            self.drop_last()  # a peer that sent this round's ref is done with the round before
            self._last = parcel
            ordered = [shares[rank] for rank in sorted(shares)]  # one order everywhere, so that sums agree in all bits
            total = sum(share["rows"] for share in ordered)
            return {
                name: sum(share["gradient"][name] * np.float32(share["rows"] / total) for share in ordered)
                for name in gradient
            }

    def drop_last(self) -> None:
        """Remove this trainer's last gradient, once all peers have read it."""
        if self._last is not None:
            self.carrier.drop(self._last)
            self._last = None


class Trainer:
    """The state of one trainer process.

    Parameters
    ----------
    options : DemoOptions
        The run.
    carrier : Carrier
        The way from the rollout workers.
    exchange : GradientExchange
        The way to the other trainers.
    recorder : Recorder
        Notes what it does.
    """

    def __init__(self, options: DemoOptions, carrier: Carrier, exchange: GradientExchange, recorder: Recorder) -> None:
        self.options = options
        self.carrier = carrier
        self.exchange = exchange
        self.recorder = recorder
        self.parameters = init_parameters(np.random.default_rng([options.seed, 0]), options.recipe.hidden)
        self.optimizer = Adam(self.parameters, options.recipe.learning_rate)
        self.objective = Objective()
        self.idle_since = 0.0

    def answer(self, order: Train) -> Trained:
        """Train one step on the shards of an order."""
        idle_since, now = max(self.idle_since, order.began), time.monotonic()
        self.recorder.add("wait", order.step, idle_since, now)
        self.carrier.get_seconds.clear()
        rows, staleness = self.unpack(order)
        get_seconds = list(self.carrier.get_seconds)
        loss, clipped = self.train(rows, order.step)
        weights = self.send_weights(order.step + 1) if self.exchange.rank == 0 else None
        self.idle_since = time.monotonic()
        return Trained(
            step=order.step,
            weights_digest=fingerprint({"parameters": self.parameters})["parameters"],
            weights=weights,
            staleness=staleness,
            loss=loss,
            clipped=clipped,
            stall_seconds=now - idle_since,
            get_seconds=get_seconds,
            activities=self.recorder.drain(),
        )

    def unpack(self, order: Train) -> tuple[Minibatch, int]:
        """Return the shards as padded rows, and how many steps old their oldest weights are."""
        with ExitStack() as loans:
            batches = [loans.enter_context(self.carrier.receive(parcel, order.step)) for parcel in order.shards]
            oldest = min(int(version) for batch in batches for row in batch["weight_versions"] for version in row)
            staleness = order.step - oldest
            if staleness > self.options.max_staleness:
                raise StalenessError(f"step {order.step} got a batch sampled from weights of step {oldest}")
            with self.recorder.record("train", order.step):
                return pad_rows(batches), staleness

    def train(self, rows: Minibatch, step: int) -> tuple[float, float]:
        """Take this step's optimizer steps; return the mean loss and the mean clipped share."""
        with self.recorder.record("train", step):
            rows = reanchor(self.parameters, rows)  # a no-op but for rounding where nothing is stale
        parts = self.options.recipe.minibatches
        losses, clipped = np.zeros(parts), np.zeros(parts)
        for index in range(parts):
            with self.recorder.record("train", step):
                part = rows.part(index, parts)
                losses[index], clipped[index], gradient = policy_gradient(self.parameters, part, self.objective)
            average = self.exchange.average(gradient, len(part.tokens), step)
            with self.recorder.record("train", step):
                self.optimizer.apply(average)
        return float(losses.mean()), float(clipped.mean())

    def send_weights(self, version: int) -> Parcel:
        """Put the weights for the rollout workers."""
        return self.carrier.send({"version": version, "parameters": self.parameters}, version)


def run_trainer(
    connection: Connection[Any, Any], rank: int, peers: dict[int, Connection[Any, Any]], options: DemoOptions
) -> None:
    """Answer the coordinator's orders until it says stop."""
    recorder = Recorder()
    carrier = Carrier(options.url, options.namespace, recorder)
    exchange = GradientExchange(rank, peers, carrier)
    left = 0
    try:
        trainer = Trainer(options, carrier, exchange, recorder)
        connection.send(Ready(trainer.send_weights(0) if rank == 0 else None))
        recorder.drain()
        while isinstance(order := connection.recv(), Train):
            connection.send(trainer.answer(order))
        exchange.drop_last()
    finally:
        ignore_termination()
        left = carrier.close()
    connection.send(Finished(left, carrier.equal, time.process_time()))
