"""The process that makes the checks; libraries may crash or hang in it."""

import os
import sys
import threading

import msgspec

from rollferry.checks import Check, take
from rollferry.doctor.plan import plan

__all__ = ["Job", "main"]


class Job(msgspec.Struct):
    """What to do: the line that the parent writes.

    Parameters
    ----------
    url
        URL of an engine, or None.
    done
        The checks that were made already, the first ones.
    """

    url: str | None
    done: list[Check]


def main() -> None:
    """Make the checks of a job from stdin, and write each to stdout as a line."""
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    threading.Thread(target=end_with_parent, daemon=True).start()
    results = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no result
    for check in take(plan(job.url), job.done):
        os.write(results, msgspec.json.encode(check) + b"\n")


def end_with_parent() -> None:
    """End once the parent is gone."""
    sys.stdin.buffer.read()
    os._exit(1)
