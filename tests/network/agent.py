"""Does with a Ferry what the lines on its input say; each line and each answer is JSON."""

import json
import sys
import threading
import time

import numpy as np

import rollferry
from rollferry.testing.equality import assert_same


def batch_of(nbytes: int, seed: int) -> dict:
    """Rows of random bytes, and texts."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 1 << 30, nbytes // 4, np.int32)
    lengths = np.full(16, len(tokens) // 16)
    return {"tokens": np.split(tokens, np.cumsum(lengths)[:-1]), "texts": [f"{seed}:{n}" for n in range(16)]}


class Pulse:
    """Measures for how long other threads of this process could not run: a call that keeps the interpreter stops all."""

    def __init__(self) -> None:
        self.longest = 0.0
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            start = time.monotonic()
            time.sleep(0.05)
            self.longest = max(self.longest, time.monotonic() - start)


class Agent:
    def __init__(self, url: str) -> None:
        self.url = url
        self.ferry = rollferry.connect(url)
        self.held = []

    def put(self, nbytes: int, seed: int) -> str:
        return self.ferry.put(batch_of(nbytes, seed)).to_json()

    def get(self, ref: str, nbytes: int, seed: int) -> bool:
        result = self.ferry.get(ref)
        assert_same(result, batch_of(nbytes, seed))
        self.held.append((result, nbytes, seed))
        return True

    def held_are_same(self) -> int:
        """What was got stays as it was."""
        for result, nbytes, seed in self.held:
            assert_same(result, batch_of(nbytes, seed))
        return len(self.held)

    def forget(self) -> None:
        self.held = []

    def remove(self, ref: str) -> bool:
        return self.ferry.remove(ref)

    def usage(self) -> list:
        usage = self.ferry.usage()
        return [usage.bundles, usage.live_nbytes]

    def connect(self) -> None:
        """Anew."""
        self.ferry.close()
        self.ferry = rollferry.connect(self.url)


def main() -> None:
    agent = Agent(sys.argv[1])
    pulse = Pulse()
    print("ready", flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        start = time.monotonic()
        pulse.longest = 0.0
        answer = {}
        try:
            answer["result"] = getattr(agent, arguments.pop("do"))(**arguments)
        except rollferry.RollferryError as error:
            answer["error"] = type(error).__name__
            answer["text"] = str(error)
            answer["notes"] = getattr(error, "__notes__", [])
        answer["seconds"] = round(time.monotonic() - start, 2)
        answer["stopped"] = round(pulse.longest, 2)
        print(json.dumps(answer), flush=True)
    agent.ferry.close()


if __name__ == "__main__":
    main()
