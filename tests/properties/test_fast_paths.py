"""Fast paths do what the general ones do, on whatever batch hypothesis makes."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given

from rollferry import _native
from rollferry.bundle.fields import encode_batch
from rollferry.bundle.read import places, rebuild
from rollferry.bundle.rebuild import Found, rebuild_field
from rollferry.bundle.manifest import Manifest
from rollferry.layouts import encoder as encoder_module
from rollferry.layouts.decoder import Decoder
from rollferry.memory.plan import CopyPlan
from rollferry.testing import assert_same, strategies


def encoded(batch: dict[Any, Any]) -> tuple[Manifest, bytes]:
    """The manifest and the payload of a batch."""
    found = encode_batch(batch, None, allow_pickle=False)
    plan = CopyPlan(found.encoder.sources)
    payload = np.zeros(plan.nbytes, np.uint8)
    for _ in plan.packed([payload]):
        pass
    specs: Any = found.encoder.specs
    manifest = Manifest(
        id="0" * 32,
        type="dict",
        fields=found.fields,
        columns=specs,
        members=plan.members,
        payload_nbytes=plan.nbytes,
        rows=found.rows,
        keys=found.keys,
    )
    return manifest, payload.tobytes()


def rebuilt(manifest: Manifest, payload: bytes) -> dict[Any, Any]:
    memory = np.frombuffer(bytearray(payload), np.uint8)
    members = [memory[member.offset : member.offset + member.nbytes] for member in manifest.members]
    decoder = Decoder(manifest.columns, members.__getitem__)
    found = [Found(place, field, decoder) for place, field in places(manifest, decoder.column)]
    return {place.key: value for place, value in rebuild(found, rebuild_field, {}).items()}


def without_direct_reads(work: Callable[[], Any]) -> Any:
    assert _native.trust_objects(False), "this CPython should be a known one"
    try:
        return work()
    finally:
        _native.trust_objects(True)


@given(batch=strategies.batches())
def test_objects_read_directly_or_by_the_api(batch: dict[Any, Any]) -> None:
    manifest, payload = encoded(batch)
    slow, slow_payload = without_direct_reads(lambda: encoded(batch))
    assert msgspec.msgpack.encode(manifest) == msgspec.msgpack.encode(slow)
    assert payload == slow_payload
    assert_same(rebuilt(manifest, payload), batch)
    assert_same(without_direct_reads(lambda: rebuilt(manifest, payload)), batch)


@pytest.mark.parametrize("room", [0, 16, 1 << 20])
def test_numbers_kept_or_read_again(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {
        "tokens": [[1, 2, 70_000], [], [3]],
        "floats": [[0.5, -0.0], [float("nan")]],
        "wide": [1 << 40, -1],
        "doubles": [0.1, 0.2],
        "flags": [True, False],
    }
    expected = encoded(batch)
    monkeypatch.setattr(encoder_module, "KEPT_NUMBERS", room)
    manifest, payload = encoded(batch)
    assert (msgspec.msgpack.encode(manifest), payload) == (msgspec.msgpack.encode(expected[0]), expected[1])
    assert_same(rebuilt(manifest, payload), batch)
