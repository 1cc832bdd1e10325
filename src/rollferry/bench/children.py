"""Child processes of the benchmark: started in sessions of their own, spoken to in lines of JSON, never left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import msgspec

from rollferry.bench.errors import BenchError, MismatchError, Refused

__all__ = ["Child", "on_signal"]

_ANSWER_SECONDS = 300.0
_END_SECONDS = 20.0
_SAID = 600  # characters of a log to show


class Child:
    """A module of this package that runs in a process of its own.

    Leaving its block ends it, and whatever it started that is still there.

    Parameters
    ----------
    module
        Name of the module; it gets `arguments` and the file descriptor for its answers.
    arguments
        Further arguments, first.
    log
        File for its standard output and error.
    environment
        Variables beside those of this process.
    """

    def __init__(self, module: str, *arguments: str, log: Path, environment: dict[str, str] | None = None) -> None:
        self._log = log
        self._buffer = b""
        self._answers, theirs = os.pipe()
        command = [sys.executable, "-m", f"rollferry.bench.{module}", *arguments, str(theirs)]
        try:
            with log.open("ab") as output, on_signal(signal.SIGINT, signal.SIG_IGN):
                self._process = subprocess.Popen(  # noqa: S603  # our own command
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=[theirs],
                    start_new_session=True,  # Ctrl-C is for the bench, which ends its children in order
                    env={**os.environ, **(environment or {})},
                )
        except BaseException:
            os.close(self._answers)
            raise
        finally:
            os.close(theirs)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def tell(self, do: str, **values: Any) -> None:
        """Send a request, with structs and plain values, whose answer is still to be heard."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # whoever listens hears what happened
            self._process.stdin.write(msgspec.json.encode({"do": do, **values}) + b"\n")
            self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Give the answer to a request.

        Raises
        ------
        Refused
            It failed, and the child goes on.
        MismatchError
            It found what must not be.
        BenchError
            The child died, or doesn't answer.
        """
        answer = self.listen()
        if "error" in answer:
            raise (MismatchError if answer["fatal"] else Refused)(answer["error"])
        return answer

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Send a request and give its answer, as `hear` does."""
        self.tell(do, **values)
        return self.hear()

    def listen(self) -> dict[str, Any]:
        """Wait for the next line."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise BenchError(f"a process has not answered for {_ANSWER_SECONDS:.0f} s; it logged: {self.said()}")
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                raise BenchError(f"a process has died; it logged: {self.said()}")
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = msgspec.json.decode(line)
        return answer

    def dismiss(self) -> None:
        """Order it to end, without waiting; leaving the block waits."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def said(self) -> str:
        """Give the end of its log."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-_SAID:].strip() or "nothing"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with on_signal(signal.SIGINT, signal.SIG_IGN):
            started = _descendants(self.pid)
            self.dismiss()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            os.close(self._answers)
            for pid, birth in started:
                if _stat(pid)[1] == birth:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def on_signal(number: int, action: Callable[[int, FrameType | None], Any] | signal.Handlers) -> Iterator[None]:
    """Let a signal do something else meanwhile; only the main thread can say so, others change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, action)
    try:
        yield
    finally:
        signal.signal(number, before)


def _descendants(root: int) -> list[tuple[int, str]]:
    """Give all processes that a process and its children have started, and when each was."""
    every = {int(name): _stat(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    found = {root}
    while more := {pid for pid, (parent, _) in every.items() if parent in found} - found:
        found |= more
    return [(pid, every[pid][1]) for pid in found - {root}]


def _stat(pid: int) -> tuple[int, str]:
    """Give the parent of a process, and when it was started, in clock ticks; zeros if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return (0, "") if fields[0] in "ZX" else (int(fields[1]), fields[19])
