"""Hammer one `shm://` directory: workers put, get, hold and remove batches while one after the other is killed.

    python tests/stress/hammer.py --seconds 60 --processes 8

A batch is a function of its seed, which travels in the reference's metadata, so that every byte is checked, right
after get and once more after a result was held. References are shared through files. Workers scribble over results
they are done with, so that memory which is reused when it must not be shows up as wrong bytes. Prints a JSON report;
the exit status is 0 only if nothing went wrong. Workers are forked: starting them costs nothing beside the work.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # forking a process that has threads is not safe

import argparse
import contextlib
import faulthandler
import json
import mmap
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import rollferry
from rollferry.testing import differences

COUNTS = ("puts", "gets", "rechecks", "removals", "gone", "full")
HANG_SECONDS = 60
KILL_EVERY = 0.15
LIVE_LIMIT = 60  # references that workers keep around


def make_batch(seed: int) -> dict[str, Any]:
    """The batch of a seed: from a few bytes to some megabytes."""
    random_ = np.random.default_rng(seed)
    samples = int(random_.choice([0, 1, 8, 64, 500]))
    lengths = random_.integers(0, 400, samples)
    batch: dict[str, Any] = {
        "seed": seed,
        "tokens": [random_.integers(0, 1 << 30, n, dtype=np.int32) for n in lengths],
        "lengths": lengths.tolist(),
        "rewards": random_.random(samples).tolist(),
        "metadata": [
            {"id": f"{seed}-{i}", "score": None if i % 3 else i / 7, "a": np.full(2, i)} for i in range(samples)
        ],
    }
    if seed % 3 == 0:
        batch["dense"] = random_.integers(0, 1 << 62, int(random_.integers(1, 300_000)))
    return batch


def scribble(batch: dict[str, Any]) -> None:
    for array in [*batch["tokens"], batch.get("dense", np.zeros(1))]:
        array[...] = -1


class Worker:
    """One process that works until it is killed or told to stop by the file `stop`."""

    def __init__(self, url: str, work: Path, slot: int, incarnation: int) -> None:
        self.ferry = rollferry.connect(url)
        self.work, self.slot = work, slot
        self.random = random.Random(f"{slot}-{incarnation}-{os.getpid()}")
        self.counts: Counter[str] = Counter()
        self.held: list[tuple[int, dict[str, Any], float]] = []
        with open(work / "counts" / f"{slot}-{incarnation}", "wb+") as file:
            file.truncate(8 * len(COUNTS))
            self.memory = mmap.mmap(file.fileno(), 8 * len(COUNTS))

    def run(self) -> None:
        steps = [self.put] * 3 + [self.get] * 5 + [self.remove] * 2
        while not (self.work / "stop").exists():
            self.random.choice(steps)()
            if len(self.held) > 6 or (self.held and self.held[0][2] < time.monotonic()):
                self.recheck()
            self.memory[:] = struct.pack(f"<{len(COUNTS)}Q", *(self.counts[name] for name in COUNTS))
        while self.held:
            self.recheck()
        self.ferry.close()

    def put(self) -> None:
        if len(self.references()) >= LIVE_LIMIT:
            return self.remove()
        seed = self.random.getrandbits(48)
        try:
            ref = self.ferry.put(make_batch(seed), metadata={"seed": seed})
        except rollferry.EngineFullError:
            self.counts["full"] += 1
            return self.remove()
        draft = self.work / "drafts" / f"{self.slot}-{ref.id}"
        draft.write_text(ref.to_json())
        draft.rename(self.work / "refs" / ref.id)
        self.counts["puts"] += 1
        return None

    def references(self) -> list[str]:
        return os.listdir(self.work / "refs")

    def pick(self) -> tuple[Path, dict[str, Any]] | None:
        names = self.references()
        path = self.work / "refs" / self.random.choice(names) if names else None
        try:
            return (path, json.loads(path.read_text())) if path else None
        except FileNotFoundError:
            return None

    def get(self) -> None:
        picked = self.pick()
        if picked is None:
            return
        path, handle = picked
        try:
            batch = self.ferry.get(handle, readonly=self.random.random() < 0.2)
        except rollferry.BundleNotFoundError:
            if path.exists():  # removers delete the file before the bundle
                self.complain(f"bundle {path.name} is gone, but nobody removed it")
            self.counts["gone"] += 1
            return
        seed = handle["metadata"]["seed"]
        self.check(seed, batch, "right after get")
        self.counts["gets"] += 1
        self.held.append((seed, batch, time.monotonic() + self.random.random() / 4))

    def recheck(self) -> None:
        seed, batch, _ = self.held.pop(self.random.randrange(len(self.held)))
        self.check(seed, batch, "after holding it")
        self.counts["rechecks"] += 1
        with contextlib.suppress(ValueError):  # a read-only result
            if self.random.random() < 0.5:
                scribble(batch)
        if self.random.random() < 0.3:
            self.ferry.release(batch)

    def remove(self) -> None:
        picked = self.pick()
        if picked is None:
            return
        path, handle = picked
        try:
            path.unlink()
        except FileNotFoundError:
            return
        if not self.ferry.remove(handle):
            self.complain(f"bundle {path.name} was gone at its only removal")
        self.counts["removals"] += 1

    def check(self, seed: int, batch: dict[str, Any], when: str) -> None:
        found = differences(batch, make_batch(seed), limit=5)
        if found:
            self.complain(f"seed {seed}, {when}: {found}")

    def complain(self, text: str) -> None:
        with open(self.work / "errors" / f"{os.getpid()}-{time.monotonic_ns()}", "w") as file:
            file.write(text)


class Supervisor:
    """Starts the workers, kills and restarts them, watches for hangs, and judges what is left."""

    def __init__(self, directory: Path, work: Path, processes: int, pool: int) -> None:
        self.directory, self.work, self.pool = directory, work, pool
        self.url = f"shm://{directory}?pool={pool >> 20}mb"
        self.children: dict[int, tuple[int, int, float, bytes]] = {}  # slot: pid, incarnation, last progress, counts
        self.incarnations = 0
        self.kills = 0
        self.errors: list[str] = []
        for name in ("refs", "drafts", "counts", "errors"):
            (work / name).mkdir()
        for slot in range(processes):
            self.start(slot)

    def start(self, slot: int) -> None:
        self.incarnations += 1
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                faulthandler.register(signal.SIGUSR1, file=sys.stderr)
                Worker(self.url, self.work, slot, self.incarnations).run()
                status = 0
            except BaseException:
                (self.work / "errors" / f"{os.getpid()}-died").write_text(traceback.format_exc())
            finally:
                os._exit(status)
        self.children[slot] = (pid, self.incarnations, time.monotonic(), b"")

    def run(self, seconds: float) -> None:
        end, next_kill = time.monotonic() + seconds, time.monotonic() + KILL_EVERY
        while time.monotonic() < end and not os.listdir(self.work / "errors") and not self.errors:
            time.sleep(0.01)
            if time.monotonic() >= next_kill:
                next_kill += KILL_EVERY
                slot = random.choice(list(self.children))
                self.kill(slot)
                self.kills += 1
                self.start(slot)
            self.watch()
        (self.work / "stop").touch()
        deadline = time.monotonic() + HANG_SECONDS
        while self.children and time.monotonic() < deadline:
            self.watch(stopping=True)
            time.sleep(0.01)
        for slot in list(self.children):
            self.errors.append(f"worker {slot} did not stop")
            self.kill(slot)

    def kill(self, slot: int) -> None:
        pid = self.children.pop(slot)[0]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def watch(self, stopping: bool = False) -> None:
        """Notice workers that died by themselves, and ones whose counters stand still."""
        for slot, (pid, incarnation, since, last) in list(self.children.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self.children[slot]
                if status or not stopping:
                    self.errors.append(f"worker {slot} ended by itself with wait status {status}")
                continue
            counts = self.read_counts(incarnation, slot)
            if counts != last:
                self.children[slot] = (pid, incarnation, time.monotonic(), counts)
            elif time.monotonic() - since > HANG_SECONDS:
                os.kill(pid, signal.SIGUSR1)  # prints its stack
                time.sleep(0.2)
                self.errors.append(f"worker {slot} hangs")
                self.kill(slot)

    def read_counts(self, incarnation: int, slot: int) -> bytes:
        try:
            return (self.work / "counts" / f"{slot}-{incarnation}").read_bytes()
        except FileNotFoundError:
            return b""

    def totals(self) -> dict[str, int]:
        found = [0] * len(COUNTS)
        for path in (self.work / "counts").iterdir():
            data = path.read_bytes()
            if len(data) == 8 * len(COUNTS):
                found = [a + b for a, b in zip(found, struct.unpack(f"<{len(COUNTS)}Q", data), strict=True)]
        return dict(zip(COUNTS, found, strict=True))

    def names(self, part: str) -> list[str]:
        return sorted(os.listdir(self.directory / part)) if (self.directory / part).is_dir() else []

    def nbytes(self, part: str) -> int:
        return sum((self.directory / part / name).stat().st_blocks * 512 for name in self.names(part))

    def settle(self) -> dict[str, Any]:
        """Open and remove what is left, sweep with one more put, and measure."""
        self.errors += [path.read_text() for path in (self.work / "errors").iterdir()]
        left = {"live": len(self.names("live")), "tmp": len(self.names("tmp")), "pool": len(self.names("pool"))}
        with rollferry.connect(self.url) as ferry:
            last = ferry.put({"seed": 0, "a": np.arange(10)})
            left["tmp after one more put"] = len(self.names("tmp"))
            if self.names("tmp"):
                self.errors.append(f"tmp/ was not swept: {self.names('tmp')}")
            used, live = sum(map(self.nbytes, ("live", "pool", "tmp"))), self.nbytes("live")
            if used > live + self.pool:
                self.errors.append(f"{used} bytes used, {live} live and a pool limit of {self.pool}")
            if not ferry.remove(last):
                self.errors.append("the last bundle could not be removed")
            referenced = 0
            for path in (self.work / "refs").iterdir():
                handle = json.loads(path.read_text())
                found = differences(ferry.get(handle), make_batch(handle["metadata"]["seed"]), limit=5)
                self.errors += [f"seed {handle['metadata']['seed']}, at the end: {found}"] if found else []
                self.errors += [] if ferry.remove(handle) else [f"{path.name} could not be removed at the end"]
                referenced += 1
            left |= {"referenced": referenced, "orphans": self.orphans(ferry)}
            if self.names("live") or self.nbytes("pool") + self.nbytes("tmp") > self.pool:
                self.errors.append(f"left after all removals: {self.names('live')}, {self.nbytes('pool')} pool bytes")
        return {"left": left, "bytes": {"used": used, "live": live, "pool limit": self.pool}}

    def orphans(self, ferry: Any) -> int:
        """Remove bundles that a worker was killed over: published but not shared, or unshared but not removed."""
        names = self.names("live")
        if len(names) > self.kills:
            self.errors.append(f"{len(names)} bundles without a reference after only {self.kills} kills")
        for name in names:
            key = {"id": name.rpartition(".")[2], "namespace": name.rpartition(".")[0] or "default"}
            ref = rollferry.TransferRef(engine="shm", nbytes=0, rows=None, digest="0" * 32, **key)
            if not ferry.remove(ref):
                self.errors.append(f"live/{name} could not be removed")
        return len(names)


def hammer(seconds: float, processes: int, pool: int = 64 << 20, directory: Path | None = None) -> dict[str, Any]:
    """Run one session in a new directory and report on it; `errors` is empty when all went well."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    target = directory or Path(tempfile.mkdtemp(prefix="rollferry-hammer-", dir=base))
    work = Path(tempfile.mkdtemp(prefix="rollferry-hammer-work-"))
    try:
        supervisor = Supervisor(target, work, processes, pool)
        supervisor.run(seconds)
        report = supervisor.settle()
        report |= {"counts": supervisor.totals(), "kills": supervisor.kills, "errors": supervisor.errors}
        return {"seconds": seconds, "processes": processes, **report}
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--pool", type=int, default=64, help="pool limit in MiB")
    options = parser.parse_args()
    report = hammer(options.seconds, options.processes, options.pool << 20)
    print(json.dumps(report, indent=2))
    return 1 if report["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
