"""The arms by name, in the order of the report. A new one is a class in a file here, and a line."""

from __future__ import annotations

from rollferry.bench.arms.base import Arm, ArmSetup
from rollferry.bench.arms.ferries import Mooncake, Ray, SharedMemory, SharedMemoryLazy, SharedMemoryReadonly
from rollferry.bench.arms.pickles import PickleDisk, PickleMemory
from rollferry.bench.arms.ray_objects import RayObjects
from rollferry.bench.arms.structured import MooncakeStructured

__all__ = ["ARMS", "Arm", "ArmSetup"]

ARMS: dict[str, type[Arm]] = {
    "shm": SharedMemory,
    "shm-lazy": SharedMemoryLazy,
    "shm-readonly": SharedMemoryReadonly,
    "pickle-shm": PickleMemory,
    "pickle-disk": PickleDisk,
    "ray": Ray,
    "ray-objects": RayObjects,
    "mooncake": Mooncake,
    "mooncake-structured": MooncakeStructured,
}
