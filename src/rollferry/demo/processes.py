"""Child processes: started fresh, watched, and never left behind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection as pipes
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from rollferry.demo.errors import ProcessFailedError
from rollferry.demo.messages import Failed, Finished, Stop

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

__all__ = ["Member", "Team", "ignore_termination", "single_threaded"]

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
_GRACE_SECONDS = 5.0  # to give everything back after the order to end
_GATHER_SECONDS = 0.5  # to hear of other failures after the first one


class _Terminated(BaseException):
    """Raised in a child that is told to end early, so that its ``finally`` blocks run."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A child process and the pipe to it."""

    name: str
    process: SpawnProcess
    connection: Connection[Any, Any]

    def send(self, message: Any) -> None:
        """Send a message; where the child is dead, `Team.listen` is the one to say so."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)


class Team:
    """A group of child processes that start together and end together.

    Leaving its block ends all of them: by order when all went well, by signal to their handles when not.
    """

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self.members: list[Member] = []

    def pipe(self) -> tuple[Connection[Any, Any], Connection[Any, Any]]:
        """Return both ends of a pipe for two children; close them here once the children have started."""
        return self._context.Pipe()

    def start(self, name: str, work: Callable[..., None], *arguments: Any) -> Member:
        """Start a child that calls ``work(connection, *arguments)``."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_run_child, args=(work, theirs, arguments), name=name, daemon=True)
        try:
            with _interrupts_ignored():
                process.start()
        finally:
            theirs.close()
        member = Member(name, process, ours)
        self.members.append(member)
        return member

    def listen(self) -> Iterator[tuple[Member, Any]]:
        """Yield messages as they come.

        Raises
        ------
        ProcessFailedError
            A child failed or died.
        """
        by_connection = {member.connection: member for member in self.members}
        while by_connection:
            for ready in pipes.wait(list(by_connection)):
                member = by_connection[ready]  # type: ignore[index]  # wait returns what it was given
                try:
                    message = member.connection.recv()
                except (EOFError, OSError):
                    raise self._failure(member, None) from None
                if isinstance(message, Failed):
                    raise self._failure(member, message)
                if isinstance(message, Finished):
                    del by_connection[member.connection]
                yield member, message

    def stop(self) -> None:
        """Tell all children to end; they answer `Finished`."""
        for member in self.members:
            member.send(Stop())

    def __enter__(self) -> Self:
        """Return the team."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all children."""
        if kind is not None:
            for member in self.members:
                member.process.terminate()
        deadline = time.monotonic() + _GRACE_SECONDS
        for member in self.members:
            member.process.join(max(0.0, deadline - time.monotonic()))
        for member in self.members:
            if member.process.is_alive():
                member.process.kill()
            member.process.join()
            member.connection.close()
            member.process.close()

    def _failure(self, first: Member, message: Failed | None) -> ProcessFailedError:
        """Return the error to raise after a first failure, with the cause rather than what followed from it."""
        failures = {first.name: message}
        waiting = {member.connection: member for member in self.members if member is not first}
        deadline = time.monotonic() + _GATHER_SECONDS
        while waiting and (ready := pipes.wait(list(waiting), max(0.0, deadline - time.monotonic()))):
            for end in ready:
                member = waiting[end]  # type: ignore[index]  # wait returns what it was given
                try:
                    other = member.connection.recv()
                except (EOFError, OSError):
                    failures.setdefault(member.name, None)
                    del waiting[member.connection]
                    continue
                if isinstance(other, Failed):
                    failures[member.name] = other
        causes = {name: failed for name, failed in failures.items() if failed is None or not failed.follows}
        return ProcessFailedError("\n".join(map(self._describe, (causes or failures).items())))

    def _describe(self, failure: tuple[str, Failed | None]) -> str:
        """Return one failure as text."""
        name, failed = failure
        if failed is not None:
            return f"{name} failed:\n{failed.report.rstrip()}"
        process = next(member.process for member in self.members if member.name == name)
        process.join(_GRACE_SECONDS)
        return f"{name} died without a message, exit code {process.exitcode}"


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    """Let children started in this block compute with one thread each; the processes share the cores among them."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let children inherit that Ctrl-C is ignored: what it means is for the parent to decide."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def ignore_termination() -> None:
    """Let nothing interrupt this child from here on: it is giving back what it holds."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _run_child(work: Callable[..., None], connection: Connection[Any, Any], arguments: tuple[Any, ...]) -> None:
    """Run a child's work until it is done, fails, or is told to end early."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminate)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()  # modules are here to stay: full collections need not walk them each time
    try:
        _work_or_report(work, connection, arguments)
    except _Terminated:
        sys.exit(1)
    finally:
        connection.close()


def _work_or_report(work: Callable[..., None], connection: Connection[Any, Any], arguments: tuple[Any, ...]) -> None:
    """Run a child's work, and tell the parent if it fails."""
    try:
        work(connection, *arguments)
    except Exception as error:  # noqa: BLE001  # whatever it is, the parent is to show it
        follows = isinstance(error, EOFError | BrokenPipeError | ConnectionResetError)
        with contextlib.suppress(OSError):
            connection.send(Failed(traceback.format_exc(), follows))
        sys.exit(1)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """Turn the first SIGTERM into an exception, and ignore those that follow while that one cleans up."""
    ignore_termination()
    raise _Terminated


def _end_with_parent() -> None:
    """Wait for the parent's death, then end this process: politely, and after a while for certain."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    pipes.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)
