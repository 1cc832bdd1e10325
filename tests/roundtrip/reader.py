"""The other process: gets bundles by reference, compares them with the case of that name, and says what is wrong.

`Reader` runs on the tests' side; `python -m <this module>` serves one JSON request a line on its standard streams.
"""

import json
import os
import select
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]


class Reader:
    """A long-lived child process."""

    def __init__(self) -> None:
        paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", f"{Path(__file__).parent.name}.reader"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            bufsize=0,
        )

    def problems(self, url: str, ref: str, case: str) -> list[str]:
        """What is wrong with the batch behind a reference, in the eyes of the child."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"url": url, "ref": ref, "case": case}).encode() + b"\n")
        ready, _, _ = select.select([self.process.stdout], [], [], 120)
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.process.kill()
            code = self.process.wait()
            return [f"the reader {'died' if ready else 'hung'} at case {case!r}, exit code {code}"]
        found: list[str] = json.loads(line)
        return found

    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


def check(ferry: Any, ref: Any, case: str) -> list[str]:
    """Get a bundle twice, with scribbling over the first result between, and list what is wrong."""
    from rollferry.testing import differences

    from .cases import CASES
    from .probe import hand_to_torch, read_only, scribble

    first = ferry.get(ref)
    expected = CASES[case]()
    found = differences(first, expected, limit=10) + [f"{path} is read-only" for path in read_only(first)[:5]]
    hand_to_torch(first)
    scribble(first)
    second = ferry.get(ref)
    found += [f"after another reader wrote: {text}" for text in differences(second, expected, limit=5)]
    return found


def serve() -> None:
    import rollferry

    replies, sys.stdout = os.fdopen(os.dup(1), "wb", buffering=0), sys.stderr
    ferries: dict[str, Any] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["url"] not in ferries:
                ferries[request["url"]] = rollferry.connect(request["url"])
            found = check(ferries[request["url"]], request["ref"], request["case"])
        except BaseException:
            found = [traceback.format_exc()]
        replies.write(json.dumps(found).encode() + b"\n")
    replies.close()
    for ferry in ferries.values():
        ferry.close()


if __name__ == "__main__":
    serve()
