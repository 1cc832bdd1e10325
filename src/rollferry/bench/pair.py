"""A producer and a consumer, and the steps of a trial."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from rollferry.bench.arms import ArmSetup
from rollferry.bench.children import Child
from rollferry.bench.errors import BenchError, Refused
from rollferry.bench.floors import Measured
from rollferry.bench.plan import Planned
from rollferry.bench.results import Trial

__all__ = ["Pair"]


class Pair:
    """Two fresh processes. Leaving the block ends them.

    Parameters
    ----------
    start
        Starts a worker.
    planned
        The batch.
    memory, disk
        Private directories of the pair in shared memory and on a disk.
    lender
        Side that lends memory to Mooncake's store.
    services
        What each arm's service said of itself, by the arm's name.
    """

    def __init__(
        self,
        start: Callable[[], Child],
        planned: Planned,
        *,
        memory: Path,
        disk: Path,
        lender: str,
        services: dict[str, dict[str, str]],
    ) -> None:
        self._planned = planned
        self._memory, self._disk = str(memory), str(disk)
        self._lender = lender
        self._services = services
        self._stack = ExitStack()
        try:
            self._sides = {side: self._stack.enter_context(start()) for side in ("consumer", "producer")}
            for child in self._sides.values():
                child.ask("prepare", source=planned.source)
        except BaseException:
            self._stack.close()
            raise

    def open(self, arm: str) -> None:
        """Set up an arm on both sides, at the same time."""
        for side, child in self._sides.items():
            setup = ArmSetup(
                side=side,
                memory=self._memory,
                disk=self._disk,
                payload_nbytes=self._planned.nbytes,
                lends=side == self._lender,
                allow_pickle=self._planned.source.allow_pickle,
                service=self._services.get(arm, {}),
            )
            child.tell("open", arm=arm, setup=setup)
        refusals = []
        for child in self._sides.values():
            try:
                child.hear()
            except Refused as refusal:
                refusals.append(refusal)
        if refusals:
            raise refusals[0]

    def hand_over(self, arm: str) -> tuple[Trial, str, list[str]]:
        """Put, get, collect, touch, compare, release and remove.

        Returns
        -------
        Trial, str, list of str
            The figures; how true the result was, and the first differences.
        """
        producer, consumer = self._sides["producer"], self._sides["consumer"]
        try:
            put = producer.ask("put", arm=arm)
            got = consumer.ask("get", arm=arm, ref=put.pop("ref"))
        except BenchError:
            with suppress(BenchError):  # the first error counts
                producer.ask("remove", arm=arm)
            raise
        removed = producer.ask("remove", arm=arm)
        fidelity, notes = got.pop("fidelity"), got.pop("notes")
        clean = put["peaks_are_clean"] and got["peaks_are_clean"]
        return msgspec.convert({**put, **got, **removed, "peaks_are_clean": clean}, Trial), fidelity, notes

    def payload_nbytes(self) -> int:
        """Say how many payload bytes the batch has."""
        return int(self._sides["producer"].ask("payload")["nbytes"])

    def floors(self, nbytes: int) -> Measured:
        """Measure the floors once."""
        copies = self._sides["producer"].ask("copies", nbytes=nbytes, directory=self._memory)
        return msgspec.convert({**copies, **self._sides["consumer"].ask("views")}, Measured)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._sides.values():
            child.dismiss()  # so that they end at the same time
        self._stack.close()
