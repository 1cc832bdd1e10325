"""Publishing an encoded batch: plan, pack, manifest last."""

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from rollferry.bundle.checksums import Checksums, checksums_nbytes
from rollferry.bundle.fields import EncodedBatch
from rollferry.bundle.lifetime import age_of, born
from rollferry.bundle.manifest import Base, Manifest, dump
from rollferry.bundle.space import Space
from rollferry.engines.base import Engine
from rollferry.memory.plan import CopyPlan
from rollferry.refs import TransferRef
from rollferry.timings import Stopwatch

__all__ = ["Terms", "publish"]

WAITED = 0.1  # seconds from which on a put had to wait


class Terms(NamedTuple):
    """On which terms a batch is put; `Ferry.put` and `connect` document them.

    Parameters
    ----------
    namespace, checksum, space
        As of the Ferry.
    metadata, policy_version, ttl, readers
        As of the put.
    base
        The bundle that it is a further stage of.
    reclaim
        Removes bundles whose time is over; says whether there were any.
    """

    namespace: str = "default"
    checksum: bool = False
    space: Space = Space()
    metadata: dict[str, Any] | None = None
    policy_version: int | None = None
    ttl: float | None = None
    readers: int | None = None
    base: TransferRef | None = None
    reclaim: Callable[[], bool] = bool


def publish(engine: Engine, batch: EncodedBatch, terms: Terms, watch: Stopwatch) -> TransferRef:
    """Store a batch in an engine; the bundle is complete and visible when this returns, and on failure nothing is left."""
    plan = CopyPlan(batch.encoder.sources)
    base = terms.base
    manifest = Manifest(
        id=secrets.token_hex(16),
        type=batch.type,
        fields=batch.fields,
        columns=batch.encoder.specs,  # type: ignore[arg-type]  # list is invariant
        members=plan.members,
        payload_nbytes=plan.nbytes,
        rows=batch.rows,
        keys=batch.keys,
        checksums=bytes(checksums_nbytes(plan.members)) if terms.checksum or engine.networked else None,
        envelope=batch.envelope,
        base=None if base is None else Base.of(base),
        lifetime=born(terms.ttl, terms.readers),
    )
    data, digest = dump(manifest)
    key = f"{terms.namespace}.{manifest.id}"
    nbytes = plan.nbytes + len(data)
    described = Described(manifest, data, digest)

    def attempt() -> str:
        return write(engine, key, plan, described.now(), watch)

    digest = terms.space.place(engine, key, nbytes, attempt, watch=watch, reclaim=terms.reclaim)
    return TransferRef(
        id=manifest.id,
        engine=engine.scheme,
        namespace=terms.namespace,
        nbytes=plan.nbytes,
        rows=batch.rows,
        digest=digest,
        metadata=terms.metadata,
        stages=1 if base is None else base.stages + 1,
        policy_version=terms.policy_version,
        readers=terms.readers,
    )


class Described(NamedTuple):
    """A manifest, its bytes and its digest."""

    manifest: Manifest
    data: bytes
    digest: str

    def now(self) -> "Described":
        """Let the life of the bundle begin only now where the put had to wait. That changes nothing in length."""
        lifetime = self.manifest.lifetime
        if lifetime is None or age_of(lifetime) < WAITED:
            return self
        manifest = msgspec.structs.replace(self.manifest, lifetime=born(lifetime.ttl, lifetime.readers))
        return Described(manifest, *dump(manifest))


def write(engine: Engine, key: str, plan: CopyPlan, described: Described, watch: Stopwatch) -> str:
    """Write a bundle, and make it visible; give the digest of its manifest."""
    manifest, data, digest = described
    writer = engine.begin(key, plan.nbytes, len(data), plan.ready)
    try:
        sums = None if manifest.checksums is None else Checksums(plan.members)
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
    return digest
