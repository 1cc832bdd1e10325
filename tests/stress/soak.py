"""A soak: producers and consumers hand batches over for a while, in a namespace with a quota, and are killed all the time.

    python -m tests.stress.soak --seconds 600

References travel through this supervisor, by pipes. Whoever is killed is started anew, a consumer under its name as a reader,
and is sent again what it had not answered. At the end everything was delivered equal, or cleanly refused: by a typed error at
the put, or as its time was over; no process stood still, and the space is what it was at first. Prints a JSON report, and
writes it to --out; the exit status is 0 only if nothing went wrong.
"""

import argparse
import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rollferry
from tests.stress.hammer import make_batch
from tests.stress.soak_worker import LARGEST, TTL

POOL = 32 << 20
QUOTA = 3 * LARGEST
NAMESPACE = "soak"
READERS = 2  # of a bundle, at most
STALL_SECONDS = 60.0  # without a sign of a process that has work
SENT = 2  # references that a consumer has been sent and has not answered, at most
LOOK_SECONDS = 0.5  # between two looks at the space
MANY = 10  # errors, after which the rest is not waited for


@dataclass
class Worker:
    """A place that a process has, one after the other."""

    role: str
    name: str
    options: dict[str, Any]
    process: Any = None
    ending: bool = False
    dying: bool = False
    partial: bytes = b""
    since: float = 0.0  # when it last gave a sign, or got work after a time without
    silence: float = 0.0  # the longest that it had work and gave no sign
    waiting: deque[str] = field(default_factory=deque)  # ids of bundles that it is to read
    sent: dict[str, bool] = field(default_factory=dict)  # of those that it was sent; whether to one that was killed


@dataclass
class Bundle:
    """A bundle that was put, as the supervisor knows it."""

    ref: dict[str, Any]
    over: float  # when its time may be over, by time.monotonic()


class Supervisor:
    """Starts, kills and starts anew; passes references on; keeps the books."""

    def __init__(self, url: str, work: Path, *, producers: int, consumers: int, kill_every: float) -> None:
        self.url, self.work, self.kill_every = url, work, kill_every
        self.ferry = rollferry.connect(url, namespace=NAMESPACE)
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self.bundles: dict[str, Bundle] = {}
        self.selector = selectors.DefaultSelector()
        self.most_nbytes = 0
        options = {"url": url, "namespace": NAMESPACE, "quota": QUOTA, "patience": 30.0, "readers": READERS}
        self.producers = [
            Worker("producer", f"producer{n}", options | {"full": "raise" if n % 4 == 3 else "block"})
            for n in range(producers)
        ]
        self.consumers = [Worker("consumer", f"consumer{n}", options) for n in range(consumers)]
        for worker in self.producers + self.consumers:
            self.start(worker)

    # ---- processes --------------------------------------------------------------------------------------------------

    def start(self, worker: Worker) -> None:
        command = [sys.executable, "-m", "tests.stress.soak_worker", worker.role, worker.name]
        with open(self.work / worker.name, "ab") as errors:
            worker.process = subprocess.Popen(
                [*command, json.dumps(worker.options)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        os.set_blocking(worker.process.stdout.fileno(), False)
        worker.partial, worker.dying, worker.since = b"", False, time.monotonic()
        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
        for name in worker.sent:
            worker.sent[name] = True
            self.send(worker, name)

    def kill(self, worker: Worker) -> None:
        worker.process.kill()
        self.buried(worker)
        self.counts[f"{worker.role}s killed"] += 1

    def buried(self, worker: Worker) -> None:
        """Wait for the end of a process, and read what it said before, but for half a line."""
        worker.process.wait()
        self.hear(worker)
        self.selector.unregister(worker.process.stdout)
        worker.process.stdout.close()
        worker.process.stdin.close()

    def watch(self) -> None:
        """Notice processes that ended by themselves, and ones that stand still."""
        now = time.monotonic()
        for worker in self.producers + self.consumers:
            if worker.role == "consumer" and not worker.sent and not worker.ending:
                worker.since = now
            worker.silence = max(worker.silence, now - worker.since)
            if now - worker.since > STALL_SECONDS:
                worker.process.send_signal(signal.SIGUSR1)  # it says where it is
                time.sleep(0.3)
                self.errors.append(f"{worker.name} stands still:\n{self.said(worker)}")
                worker.process.kill()
            status = worker.process.poll()
            if status is None:
                continue
            self.buried(worker)
            if status == -signal.SIGKILL and worker.dying:
                status = 0
            elif not worker.ending:
                status = status or "0 though it was not asked to end"
            if worker.ending and not worker.sent:
                (self.producers if worker.role == "producer" else self.consumers).remove(worker)
            else:
                self.start(worker)
            if status:
                self.errors.append(f"{worker.name} ended, with status {status}:\n{self.said(worker)}")

    def said(self, worker: Worker) -> str:
        return (self.work / worker.name).read_text(errors="replace")[-3000:]

    # ---- what they say ----------------------------------------------------------------------------------------------

    def hear(self, worker: Worker) -> None:
        """Take in what a process said."""
        while data := worker.process.stdout.read(1 << 16):
            *lines, worker.partial = (worker.partial + data).split(b"\n")
            for line in lines:
                worker.since = time.monotonic()
                self.answer(worker, json.loads(line))

    def answer(self, worker: Worker, message: dict[str, Any]) -> None:
        if "ref" in message:
            self.assign(**message)
        elif "refused" in message:
            self.counts[f"puts refused: {message['refused']}, {worker.options['full']}"] += 1
        elif "dies" in message:
            worker.dying = True
            self.counts[f"died {message['dies']}"] += 1
        elif "wrong" in message:
            self.errors.append(f"{worker.name}: {message['wrong']}")
        elif "outcome" in message:
            self.done(worker, **message)

    def assign(self, ref: dict[str, Any], over: float) -> None:
        """Choose the readers of a bundle, those that have the least to do."""
        self.counts["puts"] += 1
        self.counts["bytes put"] += ref["nbytes"]
        if ref["nbytes"] > LARGEST:
            self.errors.append(f"a batch of {ref['nbytes']} bytes is larger than it should be")
        self.bundles[ref["id"]] = Bundle(ref, over)
        chosen = sorted(self.consumers, key=lambda worker: (len(worker.waiting) + len(worker.sent), random.random()))
        for worker in chosen[: ref["readers"]]:
            worker.waiting.append(ref["id"])

    def done(self, worker: Worker, id: str, outcome: str, way: str) -> None:
        """Judge what came of a delivery."""
        again = worker.sent.pop(id)
        bundle = self.bundles[id]
        if outcome == "equal":
            self.counts["delivered equal"] += 1
            self.counts[f"read: {way}"] += 1
        elif again:  # it was done with it before it was killed, though it had not said so
            self.counts["gone after a kill"] += 1
        elif time.monotonic() >= bundle.over:
            self.counts["gone as its time was over"] += 1
        else:
            self.errors.append(f"{id} is gone, but neither was its time over nor did {worker.name} read it before")

    def send(self, worker: Worker, name: str) -> None:
        try:
            worker.process.stdin.write(json.dumps(self.bundles[name].ref).encode() + b"\n")
        except BrokenPipeError:  # it is dead, and the next one gets it
            pass

    def step(self) -> None:
        """Pass on what there is."""
        for key, _ in self.selector.select(0.02):
            self.hear(key.data)
        for worker in self.consumers:
            while worker.waiting and len(worker.sent) < SENT:
                name = worker.waiting.popleft()
                if not worker.sent:
                    worker.since = time.monotonic()
                worker.sent[name] = False
                self.send(worker, name)
        self.watch()

    # ---- all of it --------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let them work and kill them, then let them finish."""
        end = time.monotonic() + seconds
        next_kill, next_look = time.monotonic() + self.kill_every, 0.0
        while (now := time.monotonic()) < end and len(self.errors) < MANY:
            self.step()
            if now >= next_look:
                self.look()
                next_look = now + LOOK_SECONDS
            if now >= next_kill:
                worker = random.choice(random.choice([self.producers, self.consumers]))
                self.kill(worker)
                self.start(worker)
                next_kill = now + random.uniform(0.5, 1.5) * self.kill_every
        self.finish(self.producers)
        while any(worker.waiting or worker.sent for worker in self.consumers) and len(self.errors) < MANY:
            self.step()
        self.finish(self.consumers)

    def finish(self, workers: list[Worker]) -> None:
        """Let processes come to their end."""
        for worker in workers:
            worker.process.stdin.close()
            worker.ending, worker.since = True, time.monotonic()
        while workers and len(self.errors) < MANY:
            self.step()

    def look(self) -> None:
        """See that the bundles in the namespace stay within its quota, as far as their references came."""
        live = sum(self.bundles[name].ref["nbytes"] for name in self.ferry.list() if name in self.bundles)
        self.most_nbytes = max(self.most_nbytes, live)
        if live > QUOTA:
            self.errors.append(f"{live} bytes of bundles, beyond the quota of {QUOTA}")

    def settle(self, directory: Path) -> dict[str, Any]:
        """Wait until the time of what is left is over, reclaim it, and see what then remains."""
        known = sum(name in self.bundles for name in self.ferry.list())
        self.counts["left over, references lost"] = len(self.ferry.list()) - known
        self.counts["left over, a reader killed"] = known
        deadline = time.monotonic() + TTL[1] + 5
        while self.ferry.list() and time.monotonic() < deadline:
            self.counts["reclaimed at the end"] += len(self.ferry.gc())
            time.sleep(0.2)
        self.ferry.close()
        with rollferry.connect(self.url, namespace=NAMESPACE, quota=QUOTA) as last:
            last.remove(last.put(make_batch(0)))  # sweeps
            pooled = last.usage().pooled_nbytes
        left = {part: sorted(os.listdir(directory / part)) for part in ("live", "tmp", "notes", "reserved")}
        if left != {"live": [], "tmp": [], "notes": [], "reserved": [NAMESPACE]}:
            self.errors.append(f"left at the end: {left}")
        if pooled > POOL:
            self.errors.append(f"{pooled} bytes in the pool, whose limit is {POOL}")
        return {part: len(names) for part, names in left.items()} | {"pooled bytes": pooled}


def soak(
    seconds: float, directory: Path, *, producers: int = 4, consumers: int = 4, kill_every: float = 3.0
) -> dict[str, Any]:
    """Run one session in a directory, and report on it; `errors` is empty where all went well."""
    work = Path(tempfile.mkdtemp(prefix="rollferry-soak-work-"))
    try:
        url = f"shm://{directory}?pool={POOL >> 20}mb"
        supervisor = Supervisor(url, work, producers=producers, consumers=consumers, kill_every=kill_every)
        workers = supervisor.producers + supervisor.consumers
        try:
            supervisor.run(seconds)
            left = supervisor.settle(directory)
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.wait()
        return {
            "seconds": seconds,
            "processes": {"producers": producers, "consumers": consumers},
            "largest batch": LARGEST,
            "quota": QUOTA,
            "most bytes seen": supervisor.most_nbytes,
            "longest silence": {worker.name: round(worker.silence, 2) for worker in workers},
            "counts": dict(sorted(supervisor.counts.items())),
            "left": left,
            "errors": supervisor.errors,
        }
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--url", help="shm:///some/directory, which is to be empty; by default a new one")
    parser.add_argument("--kill-every", type=float, default=3.0, help="seconds between two kills, on average")
    parser.add_argument("--out", type=Path, help="file for the report")
    options = parser.parse_args()
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    named = None if options.url is None else Path(options.url.removeprefix("shm://"))
    directory = named or Path(tempfile.mkdtemp(prefix="rollferry-soak-", dir=base))
    try:
        report = soak(options.seconds, directory, kill_every=options.kill_every)
    finally:
        if named is None:
            shutil.rmtree(directory, ignore_errors=True)
    text = json.dumps(report, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    return 1 if report["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
