"""Ray's own `ray.put` and `ray.get` of the dict."""

from __future__ import annotations

import logging
from typing import Any

from rollferry.bench.arms.base import Arm, ArmSetup
from rollferry.bench.workloads import Batch

__all__ = ["RayObjects"]

_NAMESPACE = "rollferry-bench"


class Holder:
    """An actor that passes references from the producer on to the consumer, as Ray means references to travel."""

    def __init__(self) -> None:
        self._refs: dict[str, Any] = {}

    def hold(self, key: str, refs: list[Any]) -> None:
        """Keep a reference; it comes within a list, or Ray would give its value."""
        self._refs[key] = refs[0]

    def take(self, key: str) -> list[Any]:
        """Give a reference, within a list likewise."""
        return [self._refs[key]]

    def drop(self, key: str) -> None:
        """Forget a reference."""
        del self._refs[key]


class RayObjects(Arm):
    """One object for the whole dict. The reference that crosses is its id; an actor passes on what is behind it."""

    title = "Ray put/get of the dict"
    module = "ray"
    distributions = ("ray",)
    service = "ray"
    holds = 1.5
    remark = "arrays come back read-only; Ray frees removed objects later"

    def __init__(self, setup: ArmSetup) -> None:
        import ray  # here, for it is an extra

        self._ray: Any = ray
        if not ray.is_initialized():
            ray.init(
                address=setup.service["address"],
                namespace=_NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        holder = ray.remote(Holder).options(
            name="holder", namespace=_NAMESPACE, lifetime="detached", get_if_exists=True, num_cpus=0
        )
        self._holder: Any = holder.remote()

    def put(self, batch: Batch) -> Any:
        return self._ray.put(batch)

    def export(self, ref: Any) -> str:
        self._ray.get(self._holder.hold.remote(ref.hex(), [ref]))
        return f'"{ref.hex()}"'

    def load(self, text: str) -> Any:
        return self._ray.get(self._holder.take.remote(text.strip('"')))[0]

    def get(self, ref: Any) -> Batch:
        batch: Batch = self._ray.get(ref)
        return batch

    def remove(self, ref: Any) -> None:
        self._ray.get(self._holder.drop.remote(ref.hex()))

    def stored_nbytes(self, ref: Any) -> int:
        found = self._ray.experimental.get_object_locations([ref])
        return int(found[ref]["object_size"])

    def close(self) -> None:
        self._ray.shutdown()
