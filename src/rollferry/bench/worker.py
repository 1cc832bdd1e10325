"""One of the two processes: it serves requests, one JSON object a line, until its standard input ends.

Answers go to the file descriptor that is its argument. Standard output and error are left to libraries; they go to a log.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

import rollferry
from rollferry.bench.arms import ARMS, Arm, ArmSetup
from rollferry.bench.errors import MismatchError
from rollferry.bench.fidelity import judge
from rollferry.bench.floors import CopyFloor, Measured, ViewsFloor
from rollferry.bench.machine import peak_nbytes, reset_peak, resident_nbytes
from rollferry.bench.touch import touch
from rollferry.bench.workloads import Batch, Source

__all__ = ["main"]


class Worker:
    """What a process knows: its arms, and the batch. Every public method is a request."""

    def __init__(self) -> None:
        self._arms: dict[str, Arm] = {}
        self._refs: dict[str, Any] = {}
        self._source = Source("", 0)
        self._batch: Batch | None = None
        self._copies: CopyFloor | None = None
        self._views: ViewsFloor | None = None

    def open(self, arm: str, setup: dict[str, Any]) -> dict[str, Any]:
        """Set up an arm."""
        self._arms[arm] = ARMS[arm](msgspec.convert(setup, ArmSetup))
        gc.freeze()  # modules are here to stay; collections before each call need not walk them
        return {}

    def prepare(self, source: dict[str, Any]) -> dict[str, Any]:
        """Note where the batch comes from."""
        self._source, self._batch = msgspec.convert(source, Source), None
        return {}

    def measure(self, source: dict[str, Any], least_nbytes: int) -> dict[str, Any]:
        """Say what a sample takes, by a batch of as many payload bytes at least, or by the file."""
        sample = msgspec.convert(source, Source)
        if sample.needs:
            importlib.import_module(sample.needs)  # before memory is looked at: it isn't the batch's
        if not sample.file:
            per_sample = max(payload_nbytes(sample.make()), 1) / sample.samples  # which imports everything else
            enough = max(sample.samples, round(least_nbytes / per_sample))
            sample = msgspec.structs.replace(sample, samples=enough)
        before = resident_nbytes()
        batch = sample.make()
        objects = resident_nbytes() - before
        nbytes = max(payload_nbytes(batch, allow_pickle=sample.allow_pickle), 1)
        return {"per_sample": nbytes / max(sample.samples, 1), "objects": max(1.0, objects / nbytes)}

    def payload(self) -> dict[str, Any]:
        """Say how many payload bytes the batch has."""
        return {"nbytes": payload_nbytes(self._made(), allow_pickle=self._source.allow_pickle)}

    def put(self, arm: str) -> dict[str, Any]:
        """Put the batch."""
        batch, way = self._made(), self._arms[arm]
        before, clean = resident_nbytes(), reset_peak()
        ref, seconds = timed(way.put, batch)
        figures = {
            "put": seconds,
            "put_phases": way.phases(),
            "producer_before": before,
            "producer_peak": peak_nbytes(),
        }
        self._refs[arm] = ref
        text = way.export(ref)
        stored = way.stored_nbytes(ref)
        return figures | {"ref": text, "ref_nbytes": len(text), "stored_nbytes": stored, "peaks_are_clean": clean}

    def get(self, arm: str, ref: str) -> dict[str, Any]:
        """Get the batch, let the collector look at it, touch it, compare it, and release it."""
        way = self._arms[arm]
        loaded = way.load(ref)
        before, clean = resident_nbytes(), reset_peak()
        # Nothing is allocated that could start the collector between the end of get and its collection: `get` may have
        # paused it, and what it then has to look at is to be seen.
        gc.collect()
        start = time.perf_counter()
        batch = way.get(loaded)
        done = time.perf_counter()
        gc.collect(0)
        collected = time.perf_counter()
        phases = way.phases()
        del loaded
        _, touch_seconds = timed(touch, batch)
        peak = peak_nbytes()
        fidelity, notes = judge(batch, self._made(), exact=way.exact)
        _, release_seconds = timed(way.release, batch)
        return {
            "get": done - start,
            "get_phases": phases,
            "collect": collected - done,
            "touch": touch_seconds,
            "release": release_seconds,
            "consumer_before": before,
            "consumer_peak": peak,
            "fidelity": fidelity,
            "notes": notes,
            "peaks_are_clean": clean,
        }

    def remove(self, arm: str) -> dict[str, Any]:
        """Remove what was put last."""
        ref, way = self._refs.pop(arm), self._arms[arm]
        _, seconds = timed(way.remove, ref)
        return {"remove": seconds}

    def copies(self, nbytes: int, directory: str) -> Measured:
        """Measure the floor of put."""
        if self._copies is None:
            self._copies = CopyFloor(nbytes, directory)
        return self._copies.measure()

    def views(self) -> Measured:
        """Measure the floor of get."""
        if self._views is None:
            self._views = ViewsFloor(self._made())
        gc.collect()
        return self._views.measure()

    def close(self) -> None:
        """Let go of everything."""
        if self._copies is not None:
            self._copies.close()
        for arm in self._arms.values():
            arm.close()

    def _made(self) -> Batch:
        """Give the batch, made on first use, so that a process which only gets has only what it got until it compares."""
        if self._batch is None:
            self._batch = self._source.make()
        return self._batch


def payload_nbytes(batch: Batch, *, allow_pickle: bool = False) -> int:
    """Give the payload bytes of a batch, as rollferry would store it."""
    with rollferry.connect("inproc://", allow_pickle=allow_pickle) as ferry:
        return sum(field.nbytes for field in ferry.explain(batch))


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Give the result of a call, and its seconds."""
    gc.collect()
    start = time.perf_counter()
    result = work(*arguments)
    return result, time.perf_counter() - start


def main() -> None:
    """Serve."""
    worker = Worker()
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as answers:
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = getattr(worker, request.pop("do"))(**request)
            except Exception as error:  # noqa: BLE001  # whatever it is, the bench is to show it
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}", "fatal": isinstance(error, MismatchError)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    worker.close()


if __name__ == "__main__":
    main()
