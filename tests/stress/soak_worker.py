"""The processes of the soak: a producer or a consumer, which talk to their supervisor in lines of JSON.

    python -m tests.stress.soak_worker producer|consumer NAME OPTIONS

A batch is a function of its seed, which travels in the reference's metadata; so whoever has a reference can check every byte.
"""

import faulthandler
import json
import os
import random
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rollferry
from rollferry.testing import differences
from tests.stress.hammer import make_batch as make_small

LARGEST = 8 << 20  # bytes of the largest batch
BULK = 5 << 20
ROWS = ("tokens", "lengths", "rewards", "metadata", "texts")  # the fields that have a value for each sample
TTL = (6.0, 12.0)
DEATHS = 1 / 200
INPUT = open(0, "rb", buffering=0, closefd=False)  # where a line waits in no buffer that select() doesn't see
WRITING = 3.0  # seconds that writing a batch takes at most


def make_batch(seed: int) -> dict[str, Any]:
    """The batch of a seed: from a kilobyte to almost LARGEST."""
    batch = make_small(seed)
    random_ = np.random.default_rng([seed, 1])
    samples = len(batch["lengths"])
    batch["texts"] = ["né\ud800 "[: i % 5] * int(n) for i, n in enumerate(random_.integers(0, 300, samples))]
    if seed % 4 == 0:
        batch["bulk"] = random_.integers(0, 256, (int(random_.integers(1, BULK >> 10)), 1 << 10), dtype=np.uint8)
    return batch


def tell(**message: Any) -> None:
    """Send the supervisor a line, whole but where this process is killed meanwhile."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def told(seconds: float) -> bytes | None:
    """A line from the supervisor; None where there is none in time, and nothing at the end."""
    return INPUT.readline() if select.select([INPUT], [], [], seconds)[0] else None


def sometimes_die(random_: random.Random, step: str) -> None:
    """Die now and then at a step that is too short for others to kill this process at it."""
    if random_.random() < DEATHS:
        tell(dies=step)
        os.kill(os.getpid(), signal.SIGKILL)


# ---- producer -------------------------------------------------------------------------------------------------------


def produce(ferry: rollferry.Ferry, random_: random.Random, readers: int) -> None:
    """Put one batch after the other, until standard input ends."""
    while told(0) != b"":
        seed = random_.getrandbits(48)
        batch, ttl, start = make_batch(seed), random_.uniform(*TTL), time.monotonic()
        try:
            ref = ferry.put(batch, metadata={"seed": seed}, readers=random_.randint(1, readers), ttl=ttl)
        except rollferry.EngineFullError as error:
            tell(refused=type(error).__name__)
            time.sleep(0.05)
            continue
        sometimes_die(random_, "after a put")
        # Time begins once there is room, so a put that waited for it gives a late one; but for what writing may take.
        tell(ref=ref.to_dict(), over=max(start, time.monotonic() - WRITING) + ttl)


# ---- consumer -------------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """A way to get a batch, and what it should then be."""

    options: dict[str, Any]
    wanted: dict[str, Any]


def whole(batch: dict[str, Any], random_: random.Random) -> Way:
    return Way({}, batch)


def readonly(batch: dict[str, Any], random_: random.Random) -> Way:
    return Way({"readonly": True}, batch)


def lazy(batch: dict[str, Any], random_: random.Random) -> Way:
    return Way({"lazy": True}, batch)


def fields(batch: dict[str, Any], random_: random.Random) -> Way:
    names = random_.sample(sorted(batch), random_.randint(1, len(batch)))
    return Way({"fields": names}, {name: batch[name] for name in names})


def some_rows(batch: dict[str, Any], random_: random.Random) -> Way:
    samples = len(batch["lengths"])
    start, end = sorted(random_.choices(range(samples + 1), k=2))
    rows = range(samples)[start : end : random_.choice([1, 1, 3])]
    return Way(
        {"fields": ROWS, "rows": slice(rows.start, rows.stop, rows.step)},
        {name: [batch[name][row] for row in rows] for name in ROWS},
    )


def picked_rows(batch: dict[str, Any], random_: random.Random) -> Way:
    samples = len(batch["lengths"])
    rows = random_.choices(range(samples), k=min(samples, 20))
    return Way({"fields": ROWS, "rows": rows}, {name: [batch[name][row] for row in rows] for name in ROWS})


WAYS: tuple[Callable[[dict[str, Any], random.Random], Way], ...] = (
    whole,
    readonly,
    lazy,
    fields,
    some_rows,
    picked_rows,
)


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch whose lazy lists are lists."""
    sequences = (rollferry.LazyRows, rollferry.LazyList)
    return {name: list(value) if isinstance(value, sequences) else value for name, value in batch.items()}


class Consumer:
    """Gets what it is told to, compares it, and is done with it; some results it holds on to, and compares again."""

    def __init__(self, ferry: rollferry.Ferry, random_: random.Random) -> None:
        self.ferry = ferry
        self.random = random_
        self.held: deque[tuple[dict[str, Any], dict[str, Any], str]] = deque()

    def run(self) -> None:
        while (line := told(1.0)) != b"":
            if line is not None:
                tell(**self.consume(json.loads(line)))
            while len(self.held) > 4:
                self.recheck()
        while self.held:
            self.recheck()

    def consume(self, ref: dict[str, Any]) -> dict[str, Any]:
        """Read a bundle, and say what came of it."""
        make_way = self.random.choice(WAYS)
        way = make_way(make_batch(ref["metadata"]["seed"]), self.random)
        outcome = {"id": ref["id"], "way": make_way.__name__}
        try:
            batch = self.ferry.get(ref, **way.options)
        except rollferry.BundleNotFoundError:
            return outcome | {"outcome": "gone"}
        sometimes_die(self.random, "after a get")
        name = f"{ref['id']}, {make_way.__name__}"
        self.compare(batch, way.wanted, f"{name}, right after get")
        if self.random.random() < 0.4:
            self.ferry.remove(ref)
            self.held.append((batch, way.wanted, f"{name}, held after remove"))
        else:
            self.scribble(batch)
            self.ferry.release(batch)
        sometimes_die(self.random, "after a release")
        return outcome | {"outcome": "equal"}

    def recheck(self) -> None:
        batch, wanted, name = self.held.popleft()
        self.compare(batch, wanted, name)
        self.scribble(batch)

    def compare(self, batch: dict[str, Any], wanted: dict[str, Any], name: str) -> None:
        found = differences(plain(batch), wanted, limit=5)
        if found:
            tell(wrong=f"{name}: {found}")

    def scribble(self, batch: dict[str, Any]) -> None:
        """Overwrite a result, so that memory that is used again when it must not be shows up as wrong bytes."""
        for value in batch.values():
            for array in value if isinstance(value, list) else [value]:
                if isinstance(array, np.ndarray) and array.flags.writeable:
                    array[...] = -1 if array.dtype.kind == "i" else 1


def main() -> None:
    role, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    faulthandler.register(signal.SIGUSR1, file=sys.stderr)
    readers = options.pop("readers")
    random_ = random.Random()
    tell(started=name)
    if role == "producer":
        with rollferry.connect(**options) as ferry:
            produce(ferry, random_, readers)
    else:
        with rollferry.connect(options["url"], reader=name) as ferry:
            Consumer(ferry, random_).run()


if __name__ == "__main__":
    main()
