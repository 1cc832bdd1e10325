"""Mooncake's own structured layer, as Miles calls it."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from rollferry.bench.arms.base import Arm, ArmSetup
from rollferry.bench.arms.stores import MOONCAKE, client_nbytes
from rollferry.bench.errors import BenchError
from rollferry.bench.workloads import Batch

__all__ = ["MooncakeStructured"]

#: Codec -> the fields that Miles stores with it; what isn't here is left to Mooncake.
_CODECS = {
    "typed_ragged": ("tokens", "loss_masks", "rollout_log_probs", "rollout_routed_experts"),
    "ndarray": ("partition", "response_lengths", "truncated", "sample_indices", "rewards"),
    "ragged_tensor_dict": ("multimodal_train_inputs",),
    "msgpack_ragged": ("weight_versions",),
}
_NAMESPACE = "bench"


class MooncakeStructured(Arm):
    """MooncakeBundleTransfer over a client of the same kind of master, segment and buffer as rollferry's mooncake://."""

    title = "Mooncake structured"
    module = "mooncake"
    distributions = MOONCAKE
    service = "mooncake"
    holds = 2.5

    def __init__(self, setup: ArmSetup) -> None:
        from mooncake import structured_object_store as structured  # here, for it is an extra
        from mooncake.store import MooncakeDistributedStore

        self._structured: Any = structured
        self._metrics = f"http://{setup.service['metrics']}/metrics"
        self._store: Any = MooncakeDistributedStore()
        config = {
            "local_hostname": "127.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "global_segment_size": str(client_nbytes(setup.payload_nbytes) if setup.lends else 0),
            "local_buffer_size": str(client_nbytes(setup.payload_nbytes)),
            "protocol": "tcp",
            "rdma_devices": "",
            "master_server_addr": setup.service["master"],
        }
        status = self._store.setup(config)
        if status != 0:
            raise BenchError(f"Mooncake's client can't be set up (status {status})")
        self._transfer: Any = structured.MooncakeBundleTransfer(self._store, key_prefix="rollferry-bench")
        self._schemas = {name: structured.FieldSchema(codec) for codec, names in _CODECS.items() for name in names}

    def put(self, batch: Batch) -> Any:
        schemas = {name: schema for name, schema in self._schemas.items() if name in batch}
        return self._transfer.put(batch, type="dict", namespace=_NAMESPACE, field_schemas=schemas)

    def export(self, ref: Any) -> str:
        return json.dumps(self._structured.export_ref(ref))

    def load(self, text: str) -> Any:
        return self._structured.import_ref(json.loads(text))

    def get(self, ref: Any) -> Batch:
        batch: Batch = self._transfer.get(ref, type="dict")
        return batch

    def release(self, batch: Batch) -> None:
        self._transfer.release_result(batch)
        batch.clear()

    def remove(self, ref: Any) -> None:
        self._transfer.cleanup_dataproto(ref)

    def stored_nbytes(self, ref: Any) -> int:
        with urllib.request.urlopen(self._metrics, timeout=10) as reply:  # noqa: S310  # http
            lines = reply.read().decode().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("master_allocated_bytes ")))

    def close(self) -> None:
        self._store.close()
