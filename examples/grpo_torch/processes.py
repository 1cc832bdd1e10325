"""Child processes and the lines to them. Only JSON goes over a line: numbers and refs, never a batch."""

import contextlib
import json
import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, Self

import rollferry

GRACE = 60.0  # seconds to end by themselves, on a machine that may be busy


class ProcessError(Exception):
    """A process failed, died, or has been silent for too long."""


class Line:
    """One end of a line."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def tell(self, **message: Any) -> None:
        self.connection.send_bytes(json.dumps(message).encode())

    def hear(self) -> dict[str, Any]:
        """The next message; EOFError if the other side is gone."""
        return json.loads(self.connection.recv_bytes())


class Team:
    """Children that start together and end together: when its block is left, none of them is left."""

    def __init__(self, url: str | None, namespace: str, patience: float) -> None:
        self.url, self.namespace = url, namespace  # of the children's ferries
        self.patience = patience  # seconds of silence of all children
        self.lines: dict[str, Line] = {}
        self.processes: dict[str, multiprocessing.process.BaseProcess] = {}

    def start(self, name: str, work: Callable[..., None], *arguments: Any) -> None:
        """Let a child call ``work(line, ferry, *arguments)``."""
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(
            target=run_child, args=(self.url, self.namespace, theirs, work, *arguments), name=name, daemon=True
        )
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child inherits it: Ctrl-C is for the parent
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
            theirs.close()
        self.lines[name], self.processes[name] = Line(ours), process

    def tell(self, name: str, **message: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is dead, which `hear` says
            self.lines[name].tell(**message)

    def hear(self) -> tuple[str, dict[str, Any]]:
        """The next message, and whose it is."""
        names = {line.connection: name for name, line in self.lines.items()}
        ready = wait(list(names), self.patience)
        if not ready:
            raise ProcessError(f"no process has said anything for {self.patience:.0f} s")
        name = names[ready[0]]
        try:
            message = self.lines[name].hear()
        except (EOFError, OSError):
            raise ProcessError(self.failures({name: self.death(name)})) from None
        if "failed" in message:
            raise ProcessError(self.failures({name: message["failed"]}))
        return name, message

    def failures(self, known: dict[str, str]) -> str:
        """Text of all failures. One brings others about, and the first to be heard of need not be the cause."""
        names = {line.connection: name for name, line in self.lines.items() if name not in known}
        deadline = time.monotonic() + 1.0
        while names and (ready := wait(list(names), max(0.0, deadline - time.monotonic()))):
            for connection in ready:
                name = names[connection]
                try:
                    message = self.lines[name].hear()
                except (EOFError, OSError):
                    known[name] = self.death(name)
                else:
                    if "failed" not in message:
                        continue
                    known[name] = message["failed"]
                del names[connection]
        return "\n".join(f"{name}: {text}" for name, text in known.items())

    def death(self, name: str) -> str:
        self.processes[name].join(GRACE)
        return f"died without a word, exit code {self.processes[name].exitcode}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for name, process in self.processes.items():
            self.tell(name, do="stop")
            if kind is not None:
                process.terminate()
        deadline = time.monotonic() + GRACE
        for process in self.processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        ends = {name: process.exitcode for name, process in self.processes.items() if process.exitcode != 0}
        if kind is None and ends:
            raise ProcessError(f"not all processes came to a good end; their exit codes: {ends}")


def run_child(
    url: str | None, namespace: str, connection: Connection, work: Callable[..., None], *arguments: Any
) -> None:
    """Do the work; where it fails, the parent is told."""
    line = Line(connection)
    try:
        with rollferry.connect(url, namespace=namespace) as ferry:
            work(line, ferry, *arguments)
    except Exception:  # noqa: BLE001  # whatever it is, the parent shows it
        try:
            line.tell(failed=traceback.format_exc().rstrip())
        except OSError:  # it is gone, so the children remove what there is, each of them at its end
            with rollferry.connect(url, namespace=namespace) as ferry:
                remove_all(ferry)
        sys.exit(1)


def remove_all(ferry: rollferry.Ferry) -> None:
    """Remove all bundles of the namespace."""
    for id in ferry.list():
        ferry.remove(id)
