"""What an arm is: one way to hand a batch from one process to another."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from importlib import metadata
from typing import Any, ClassVar

import msgspec

from rollferry.bench.workloads import Batch

__all__ = ["Arm", "ArmSetup"]


class ArmSetup(msgspec.Struct, frozen=True):
    """Where and how an arm works in one of the two processes.

    Parameters
    ----------
    side
        ``"producer"`` or ``"consumer"``.
    memory, disk
        Private directories in shared memory and on a disk.
    payload_nbytes
        Bytes of payload that the arm has to carry.
    lends
        Whether this side lends memory to a store that lives in the memory of its clients.
    allow_pickle
        Whether rollferry may pickle values that it doesn't know.
    service
        What the service that the arm needs said of itself: addresses by name.
    """

    side: str
    memory: str
    disk: str
    payload_nbytes: int
    lends: bool
    allow_pickle: bool
    service: dict[str, str]


class Arm(ABC):
    """One way to hand a batch over. Made once in each process, from its `ArmSetup`; used by one thread.

    Only `put`, `get`, `release` and `remove` are timed. References cross between the processes as text, which `export`
    and `load` take care of, outside the timed parts.
    """

    title: ClassVar[str]
    #: Module that has to be there, and the distributions that may bring it.
    module: ClassVar[str] = ""
    distributions: ClassVar[tuple[str, ...]] = ()
    #: What has to run for it: "ray", "mooncake" (a master for each arm), or nothing.
    service: ClassVar[str] = ""
    #: How many times the payload it keeps in memory beside batches and results, in both processes and its store.
    holds: ClassVar[float] = 1.0
    #: Whether a result that differs from what was put is an error.
    exact: ClassVar[bool] = False
    #: What a reader of the figures has to know.
    remark: ClassVar[str] = ""

    @abstractmethod
    def __init__(self, setup: ArmSetup) -> None: ...

    @classmethod
    def missing(cls) -> str:
        """Say what isn't installed; empty when all is."""
        if cls.module and importlib.util.find_spec(cls.module) is None:
            return f"{' or '.join(cls.distributions)} isn't installed"
        return ""

    @classmethod
    def version(cls) -> tuple[str, str] | None:
        """Give the name and version of what it measures, if that isn't part of Python or rollferry."""
        for name in cls.distributions:
            try:
                return name, metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return None

    @abstractmethod
    def put(self, batch: Batch) -> Any:
        """Store a batch; give its reference."""

    def export(self, ref: Any) -> str:
        """Give the reference as the text that crosses to the other process."""
        return str(ref)

    def load(self, text: str) -> Any:
        """Give the reference that a text stands for."""
        return text

    @abstractmethod
    def get(self, ref: Any) -> Batch:
        """Give the complete batch."""

    def release(self, batch: Batch) -> None:
        """Give back what a result holds; nobody else refers to it."""
        batch.clear()

    @abstractmethod
    def remove(self, ref: Any) -> None:
        """Remove what was put."""

    @abstractmethod
    def stored_nbytes(self, ref: Any) -> int:
        """Say how many bytes are stored."""

    def phases(self) -> dict[str, float]:
        """Give the seconds of each phase of the last call, where the arm knows them."""
        return {}

    def close(self) -> None:  # noqa: B027  # most arms have nothing to do
        """Let go of everything."""
