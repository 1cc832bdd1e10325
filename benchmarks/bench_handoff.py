"""Put and get of a batch between two processes: rollferry's shm:// beside pickle protocol 5 through a file in /dev/shm.

    python benchmarks/bench_handoff.py [--trials N] [--json FILE] [WORKLOAD ...]

PUT is timed in the producer (dict ready -> reference returned), GET in the consumer (reference -> dict complete). The
arms take turns within one run. Every result is compared with what was put, outside the timed part.
"""

import argparse
import gc
import json
import os
import pickle
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workloads import WORKLOADS

import rollferry
from rollferry.testing import assert_same


class RollferryArm:
    """Bundles through shm://."""

    def __init__(self, directory: str, *, lazy: bool = False) -> None:
        self._ferry = rollferry.connect(f"shm://{directory}/ferry")
        self._lazy = lazy

    def put(self, batch: dict[str, Any]) -> str:
        return self._ferry.put(batch).to_json()

    def get(self, ref: str) -> dict[str, Any]:
        return self._ferry.get(ref, lazy=self._lazy)

    def remove(self, ref: str) -> None:
        self._ferry.remove(ref)


class PickleArm:
    """Pickle protocol 5, in band, through a file in shared memory."""

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/batch.pickle"

    def put(self, batch: dict[str, Any]) -> str:
        with open(self._path, "wb") as file:
            pickle.dump(batch, file, protocol=5)
        return self._path

    def get(self, ref: str) -> dict[str, Any]:
        with open(ref, "rb") as file:
            return pickle.load(file)

    def remove(self, ref: str) -> None:
        os.unlink(ref)


ARMS: dict[str, Callable[[str], Any]] = {
    "rollferry": RollferryArm,
    "rollferry-lazy": lambda directory: RollferryArm(directory, lazy=True),
    "pickle5": PickleArm,
}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Give the result of some work and its milliseconds."""
    gc.collect()
    start = time.perf_counter()
    result = work()
    return result, 1e3 * (time.perf_counter() - start)


def consume(directory: str) -> None:
    """Serve as the consumer: one JSON request a line on standard input, one answer a line on standard output."""
    arms = {name: make(directory) for name, make in ARMS.items()}
    expected: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["workload"] not in expected:
            expected = {request["workload"]: WORKLOADS[request["workload"]]()}
        batch, ms = timed(lambda request=request: arms[request["arm"]].get(request["ref"]))
        assert_same(
            {
                key: list(value) if isinstance(value, rollferry.LazyRows | rollferry.LazyList) else value
                for key, value in batch.items()
            },
            expected[request["workload"]],
        )
        _, release_ms = timed(batch.clear)
        print(json.dumps({"get_ms": ms, "release_ms": release_ms}), flush=True)


def measure(workload: str, trials: int, directory: str) -> dict[str, Any]:
    """Measure all arms on one workload."""
    batch = WORKLOADS[workload]()
    arms = {name: make(directory) for name, make in ARMS.items()}
    command = [sys.executable, __file__, "--consume", directory]
    times: dict[str, dict[str, list[float]]] = {name: {"put_ms": [], "get_ms": [], "release_ms": []} for name in arms}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as consumer:
        for trial in range(trials + 1):
            for name, arm in arms.items():
                ref, put_ms = timed(lambda arm=arm: arm.put(batch))
                consumer.stdin.write(json.dumps({"workload": workload, "arm": name, "ref": ref}) + "\n")
                consumer.stdin.flush()
                answer = json.loads(consumer.stdout.readline())
                arm.remove(ref)
                if trial:  # the first warms up
                    for figure, ms in {"put_ms": put_ms, **answer}.items():
                        times[name][figure].append(ms)
        consumer.stdin.close()
    return {
        name: {
            figure: {"median": statistics.median(ms), "min": min(ms), "max": max(ms)} for figure, ms in figures.items()
        }
        for name, figures in times.items()
    }


def machine() -> dict[str, Any]:
    """Name the machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "rollferry": rollferry.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"out of {', '.join(WORKLOADS)}; all by default"
    )
    parser.add_argument("--trials", type=int, default=9)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--consume", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.consume:
        consume(options.consume)
        return
    directory = tempfile.mkdtemp(prefix="rollferry-bench-", dir="/dev/shm")
    results = {}
    try:
        for workload in options.workloads or WORKLOADS:
            results[workload] = measure(workload, options.trials, directory)
            print(f"{workload}, medians of {options.trials} trials, ms:")
            base = results[workload]["pickle5"]
            for name, figures in results[workload].items():
                line = "  ".join(
                    f"{figure[:-3]} {times['median']:9.3f} (pickle5 / this: {base[figure]['median'] / times['median']:6.1f})"
                    for figure, times in figures.items()
                )
                print(f"  {name:15} {line}")
    finally:
        shutil.rmtree(directory)
    if options.json:
        options.json.write_text(
            json.dumps({"machine": machine(), "trials": options.trials, "results": results}, indent=1)
        )


if __name__ == "__main__":
    main()
