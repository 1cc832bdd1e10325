"""Publishing an encoded batch: plan, pack, manifest last."""

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
import xxhash

from rollferry.bundle.fields import EncodedBatch
from rollferry.bundle.manifest import Manifest, dump
from rollferry.engines.base import Bytes, Engine
from rollferry.memory.plan import CopyPlan, Member
from rollferry.refs import TransferRef

__all__ = ["publish"]


def publish(
    engine: Engine, batch: EncodedBatch, *, namespace: str, checksum: bool, metadata: dict[str, Any] | None
) -> TransferRef:
    """Store a batch in an engine; the bundle is complete and visible when this returns, and on failure nothing is left."""
    checksum = checksum or engine.networked
    plan = CopyPlan(batch.encoder.sources)
    manifest = Manifest(
        id=secrets.token_hex(16),
        type="dict",
        fields=batch.fields,
        columns=batch.encoder.specs,  # type: ignore[arg-type]  # list is invariant
        members=plan.members,
        payload_nbytes=plan.nbytes,
        rows=batch.rows,
        keys=batch.keys,
        checksums=bytes(8 * len(plan.members)) if checksum else None,
    )
    data, digest = dump(manifest)
    key = f"{namespace}.{manifest.id}"
    writer = engine.begin(key, plan.nbytes, len(data))
    try:
        plan.pack(writer.chunks)
        if checksum:
            sums = b"".join(checksum_of(writer.chunks, member) for member in plan.members)
            data, digest = dump(msgspec.structs.replace(manifest, checksums=sums))
        writer.publish(data)
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
    )


def checksum_of(chunks: Sequence[Bytes], member: Member) -> bytes:
    """Give the xxh3-64 of a member that lies in one chunk or several, little-endian."""
    state = xxhash.xxh3_64()
    start = 0
    for chunk in chunks:
        low = max(member.offset - start, 0)
        high = min(member.offset + member.nbytes - start, len(chunk))
        if low < high:
            state.update(chunk[low:high].data)
        start += len(chunk)
    return state.intdigest().to_bytes(8, "little")
