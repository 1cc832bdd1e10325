"""Pickle protocol 5, in band, through a file."""

from __future__ import annotations

import os
import pickle

from rollferry.bench.arms.base import Arm, ArmSetup
from rollferry.bench.workloads import Batch

__all__ = ["PickleDisk", "PickleMemory"]


class PickleMemory(Arm):
    """A file in shared memory."""

    title = "pickle 5 in /dev/shm"

    def __init__(self, setup: ArmSetup) -> None:
        self._path = os.path.join(self.directory(setup), "batch.pickle")

    @staticmethod
    def directory(setup: ArmSetup) -> str:
        """Give where the file lies."""
        return setup.memory

    def put(self, batch: Batch) -> str:
        with open(self._path, "wb") as file:
            pickle.dump(batch, file, protocol=5)
        return self._path

    def get(self, ref: str) -> Batch:
        with open(ref, "rb") as file:
            batch: Batch = pickle.load(file)  # noqa: S301  # this benchmark wrote it
        return batch

    def remove(self, ref: str) -> None:
        os.unlink(ref)

    def stored_nbytes(self, ref: str) -> int:
        return os.stat(ref).st_size


class PickleDisk(PickleMemory):
    """A file on a disk."""

    title = "pickle 5 on disk"
    holds = 0.0
    remark = "without fsync: written to, and read from, the page cache"

    @staticmethod
    def directory(setup: ArmSetup) -> str:
        return setup.disk
