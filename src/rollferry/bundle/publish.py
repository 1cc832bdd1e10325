"""Publishing an encoded batch: plan, pack, manifest last."""

import secrets
from typing import Any

import msgspec

from rollferry.bundle.checksums import Checksums, checksums_nbytes
from rollferry.bundle.fields import EncodedBatch
from rollferry.bundle.manifest import Base, Manifest, dump
from rollferry.engines.base import Engine
from rollferry.memory.plan import CopyPlan
from rollferry.refs import TransferRef
from rollferry.timings import Stopwatch

__all__ = ["publish"]


def publish(
    engine: Engine,
    batch: EncodedBatch,
    *,
    namespace: str,
    checksum: bool,
    metadata: dict[str, Any] | None,
    watch: Stopwatch,
    base: TransferRef | None = None,
    policy_version: int | None = None,
) -> TransferRef:
    """Store a batch in an engine, as a stage over `base` if there is one; the bundle is complete and visible when this returns, and on failure nothing is left."""
    checksum = checksum or engine.networked
    plan = CopyPlan(batch.encoder.sources)
    manifest = Manifest(
        id=secrets.token_hex(16),
        type=batch.type,
        fields=batch.fields,
        columns=batch.encoder.specs,  # type: ignore[arg-type]  # list is invariant
        members=plan.members,
        payload_nbytes=plan.nbytes,
        rows=batch.rows,
        keys=batch.keys,
        checksums=bytes(checksums_nbytes(plan.members)) if checksum else None,
        envelope=batch.envelope,
        base=None if base is None else Base.of(base),
    )
    data, digest = dump(manifest)
    key = f"{namespace}.{manifest.id}"
    writer = engine.begin(key, plan.nbytes, len(data), plan.ready)
    try:
        sums = Checksums(plan.members) if checksum else None
        for chunk in plan.packed(writer.chunks):
            if sums is not None:
                sums.add(chunk)
        if sums is not None:
            data, digest = dump(msgspec.structs.replace(manifest, checksums=sums.dump()))
        watch.lap("pack")
        writer.publish(data)
        watch.lap("publish")
    except BaseException as error:
        try:
            writer.abort()
        except Exception as second:  # noqa: BLE001  # the first error is the one to raise
            error.add_note(f"giving back what was written failed too: {second!r}")
        raise
    return TransferRef(
        id=manifest.id,
        engine=engine.scheme,
        namespace=namespace,
        nbytes=plan.nbytes,
        rows=batch.rows,
        digest=digest,
        metadata=metadata,
        stages=1 if base is None else base.stages + 1,
        policy_version=policy_version if base is None else base.policy_version,
    )
