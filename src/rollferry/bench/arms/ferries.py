"""rollferry, through each of its engines."""

from __future__ import annotations

import os
from typing import ClassVar

import rollferry
from rollferry.bench.arms.base import Arm, ArmSetup
from rollferry.bench.arms.stores import MOONCAKE, client_nbytes
from rollferry.bench.workloads import Batch

__all__ = ["Mooncake", "Ray", "SharedMemory", "SharedMemoryLazy", "SharedMemoryReadonly"]


class FerryArm(Arm):
    """A Ferry; subclasses say which, and how they get."""

    exact = True
    lazy: ClassVar[bool] = False
    readonly: ClassVar[bool] = False

    def __init__(self, setup: ArmSetup) -> None:
        self._ferry = rollferry.connect(self.url(setup), namespace="bench", allow_pickle=setup.allow_pickle)

    @staticmethod
    def url(setup: ArmSetup) -> str:
        """Give the engine's URL."""
        raise NotImplementedError

    def put(self, batch: Batch) -> rollferry.TransferRef:
        return self._ferry.put(batch)

    def export(self, ref: rollferry.TransferRef) -> str:
        return ref.to_json()

    def get(self, ref: str) -> Batch:
        batch: Batch = self._ferry.get(ref, lazy=self.lazy, readonly=self.readonly)
        return batch

    def release(self, batch: Batch) -> None:
        self._ferry.release(batch)

    def remove(self, ref: rollferry.TransferRef) -> None:
        self._ferry.remove(ref)

    def stored_nbytes(self, ref: rollferry.TransferRef) -> int:
        return self._ferry.usage().live_nbytes

    def phases(self) -> dict[str, float]:
        return self._ferry.timings[-1].phases

    def close(self) -> None:
        self._ferry.close()


class SharedMemory(FerryArm):
    """shm://, rows cut by get."""

    title = "rollferry shm://"

    @staticmethod
    def url(setup: ArmSetup) -> str:
        return f"shm://{os.path.join(setup.memory, 'ferry')}"


class SharedMemoryLazy(SharedMemory):
    """shm://, rows cut when they are asked for."""

    title = "rollferry shm://, lazy"
    holds = 0.0
    lazy = True


class SharedMemoryReadonly(SharedMemory):
    """shm://, arrays that can't be written."""

    title = "rollferry shm://, readonly"
    holds = 0.0
    readonly = True


class Ray(FerryArm):
    """ray://."""

    title = "rollferry ray://"
    module = "ray"
    distributions = ("ray",)
    service = "ray"
    holds = 2.5
    remark = "the first put in a cluster starts its actors"

    @staticmethod
    def url(setup: ArmSetup) -> str:
        return f"ray://{setup.service['address']}"


class Mooncake(FerryArm):
    """mooncake://."""

    title = "rollferry mooncake://"
    module = "mooncake"
    distributions = MOONCAKE
    service = "mooncake"
    holds = 2.5
    remark = "computes and checks checksums, as it does by default on a network"

    @staticmethod
    def url(setup: ArmSetup) -> str:
        segment = client_nbytes(setup.payload_nbytes) if setup.lends else 0
        options = (
            f"metrics={setup.service['metrics_port']}&segment={segment}&buffer={client_nbytes(setup.payload_nbytes)}"
        )
        return f"mooncake://{setup.service['master']}?{options}"
