"""A producer and a consumer, and the steps of a trial."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from rollferry.bench.arms import Place
from rollferry.bench.children import Child, Refused
from rollferry.bench.plan import Planned
from rollferry.bench.results import Trial

__all__ = ["HandedOver", "Pair", "Terms"]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a pair of processes works with.

    Parameters
    ----------
    planned
        The batch.
    memory, disk
        Private directories of the pair in shared memory and on a disk.
    lender
        Side that lends memory to Mooncake's store.
    services
        What each arm's service said of itself, by the arm's name.
    """

    planned: Planned
    memory: Path
    disk: Path
    lender: str
    services: dict[str, dict[str, str]]


class HandedOver(NamedTuple):
    """A trial, and how true the result was."""

    trial: Trial
    fidelity: str
    notes: list[str]


class Pair:
    """Two fresh processes. Leaving the block ends them.

    Parameters
    ----------
    terms
        What they work with.
    start
        Starts a worker.
    """

    def __init__(self, terms: Terms, start: Callable[[], Child]) -> None:
        self._terms = terms
        self._stack = ExitStack()
        try:
            self._sides = {side: self._stack.enter_context(start()) for side in ("consumer", "producer")}
            for child in self._sides.values():
                child.ask("prepare", source=asdict(terms.planned.source))
        except BaseException:
            self._stack.close()
            raise

    def open(self, arm: str) -> None:
        """Set up an arm on both sides, at the same time."""
        terms = self._terms
        for side, child in self._sides.items():
            place = Place(
                side=side,
                memory=str(terms.memory),
                disk=str(terms.disk),
                room=terms.planned.nbytes,
                lends=side == terms.lender,
                allow_pickle=terms.planned.source.allow_pickle,
                service=terms.services.get(arm, {}),
            )
            child.tell("open", arm=arm, place=asdict(place))
        refusals = []
        for child in self._sides.values():
            try:
                child.hear()
            except Refused as refusal:
                refusals.append(refusal)
        if refusals:
            raise refusals[0]

    def hand_over(self, arm: str) -> HandedOver:
        """Put, get, touch, compare, release and remove."""
        producer, consumer = self._sides["producer"], self._sides["consumer"]
        put = producer.ask("put", arm=arm)
        got = consumer.ask("get", arm=arm, ref=put.pop("ref"))
        removed = producer.ask("remove", arm=arm)
        fidelity, notes = got.pop("fidelity"), got.pop("notes")
        clean = put["peaks_are_clean"] and got["peaks_are_clean"]
        figures: dict[str, Any] = {**put, **got, **removed, "peaks_are_clean": clean}
        return HandedOver(Trial(**figures), fidelity, notes)

    def payload_nbytes(self) -> int:
        """Say how many payload bytes the batch has."""
        return int(self._sides["producer"].ask("describe")["nbytes"])

    def floors(self, nbytes: int) -> dict[str, float]:
        """Measure the floors once: seconds by name."""
        copies = self._sides["producer"].ask("copies", nbytes=nbytes, directory=str(self._terms.memory))
        return {**copies, **self._sides["consumer"].ask("views")}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._sides.values():
            child.dismiss()  # so that they end at the same time
        self._stack.close()
