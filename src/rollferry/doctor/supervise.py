"""Supervising the process that makes the checks: one that crashes or hangs is a check that fails, and another goes on."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from rollferry.checks import Check, Step
from rollferry.doctor.child import Job

__all__ = ["supervise"]

CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rollferry.doctor.child import main; main()"
GRACE_SECONDS = 5


def supervise(url: str | None, steps: Sequence[Step], *, seconds: float, verbose: bool) -> Iterator[Check]:
    """Give the checks of all steps, which a child makes; none takes longer than so many seconds."""
    done: list[Check] = []
    while len(done) < len(steps):
        with started(Job(url, done), verbose=verbose) as child:
            for line in lines(child, seconds):
                done.append(msgspec.json.decode(line, type=Check))
                yield done[-1]
                if len(done) == len(steps):
                    return
            step = steps[len(done)]
            done.append(Check(step.name, "fail", why_silent(child, seconds), step.advice))
        yield done[-1]


@contextmanager
def started(job: Job, *, verbose: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Start a child, which is gone afterwards."""
    child = subprocess.Popen(  # noqa: S603  # this Python
        [sys.executable, "-c", CODE, msgspec.json.encode(sys.path).decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if verbose else subprocess.DEVNULL,
    )
    with child:
        try:
            assert child.stdin is not None
            with suppress(BrokenPipeError):
                child.stdin.write(msgspec.json.encode(job) + b"\n")
                child.stdin.flush()
            yield child
            with suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_SECONDS)
        finally:
            child.kill()


def lines(child: subprocess.Popen[bytes], seconds: float) -> Iterator[bytes]:
    """Give what the child writes, line by line, until it ends or is silent for so long."""
    assert child.stdout is not None
    fd = child.stdout.fileno()
    begun = b""
    while select.select([fd], [], [], seconds)[0] and (more := os.read(fd, 1 << 16)):
        *whole, begun = (begun + more).split(b"\n")
        yield from whole


def why_silent(child: subprocess.Popen[bytes], seconds: float) -> str:
    """Say what became of a child that gave no result."""
    assert child.stdout is not None
    if not select.select([child.stdout], [], [], 0)[0]:
        child.kill()
        return f"no answer within {seconds:g} s"
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_SECONDS)
    child.kill()
    status = child.wait()
    how = f"signal {-status}, {signal.strsignal(-status)}" if status < 0 else f"exit status {status}"
    return f"the process that looked has died ({how}); --verbose shows what it logged"
