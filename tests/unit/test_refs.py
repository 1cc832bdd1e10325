"""References: what carries them, and that nothing but the right one opens a bundle."""

import copy
import json
import pickle
from collections import OrderedDict
from typing import Any

import msgspec
import numpy as np
import pytest

import rollferry
from rollferry import BundleError, BundleNotFoundError, RefError, TransferRef

FIELDS = ("id", "engine", "namespace", "nbytes", "rows", "digest")
METADATA = {"step": 7, "who": ["a", "ü", None, True, 1.5], "nested": {"": {}}, "quote": '"\\'}
DIGEST = "0123456789abcdef0123456789abcdef"


def reference(**changes: Any) -> TransferRef:
    values = {"id": DIGEST, "engine": "shm", "namespace": "default", "nbytes": 100, "rows": 4, "digest": DIGEST}
    return TransferRef(**{**values, **changes})


@pytest.mark.parametrize("metadata", [None, {}, METADATA])
@pytest.mark.parametrize("rows", [None, 0, 4])
def test_round_trips(metadata: dict[str, Any] | None, rows: int | None) -> None:
    ref = reference(metadata=metadata, rows=rows)
    handle = ref.to_dict()
    assert "\n" not in ref.to_json()
    copies = [
        TransferRef.from_json(ref.to_json()),
        TransferRef.from_json(ref.to_json().encode()),
        TransferRef.from_dict(handle),
        TransferRef.from_dict(json.loads(json.dumps(handle, indent=2))),
        TransferRef.from_dict(OrderedDict(reversed(handle.items()))),
        copy.deepcopy(ref),
        *(pickle.loads(pickle.dumps(ref, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)),
    ]
    for other in copies:
        assert type(other) is TransferRef
        assert other == ref
        assert hash(other) == hash(ref)
        assert other.metadata == metadata


def test_is_frozen_and_hashable() -> None:
    ref = reference(metadata=METADATA)
    for name in (*FIELDS, "metadata"):
        with pytest.raises(AttributeError):
            setattr(ref, name, None)
    assert len({ref, reference(metadata=METADATA), reference(id="f" * 32)}) == 2
    assert ref != reference(metadata=None)


def test_is_under_1_kb_whatever_the_batch(ferry: rollferry.Ferry) -> None:
    ref = ferry.put({f"field{i}": [np.arange(i % 5)] * 50 for i in range(300)})
    assert len(ref.to_json()) < 1024
    largest = reference(namespace="n" * 63, engine="e" * 16, nbytes=(1 << 63) - 1, rows=(1 << 63) - 1)
    assert len(largest.to_json()) < 1024


def test_the_longest_namespace_works(shm_directory: Any) -> None:
    with rollferry.connect(f"shm://{shm_directory}", namespace="n" * 63) as ferry:
        assert ferry.get(ferry.put({"a": 1})) == {"a": 1}
    for name in ("n" * 64, "", "../x", "a/b", "a.b", "a\0", "ü", "-a", "a\n"):
        with pytest.raises(ValueError, match="namespace"):
            rollferry.connect(f"shm://{shm_directory}", namespace=name)


@pytest.mark.parametrize(
    "metadata",
    [
        {1: "int key"},
        {True: 1},
        {"tuple": (1, 2)},
        {"nan": float("nan")},
        {"inf": float("inf")},
        {"bytes": b""},
        {"set": set()},
        {"array": np.zeros(2)},
        {"object": object()},
        [1],
        "text",
    ],
)
def test_metadata_must_be_json_safe(metadata: Any, ferry: rollferry.Ferry) -> None:
    with pytest.raises(RefError, match="metadata"):
        reference(metadata=metadata)
    with pytest.raises(RefError, match="metadata"):
        ferry.put({"a": 1}, metadata=metadata)
    assert ferry.list() == []


def test_metadata_that_contains_itself_or_is_too_deep() -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"deep": deep}
    for metadata in (loop, deep):
        with pytest.raises(RefError, match="metadata"):
            reference(metadata=metadata)
    while deep:  # unwound here, since a recursive deallocation of so many levels is no test of ours
        deep = deep.popitem()[1]
    with pytest.raises(RefError):
        TransferRef.from_json("[" * 1_000_000)


def test_metadata_is_the_references_own(ferry: rollferry.Ferry) -> None:
    metadata: dict[str, Any] = {"step": 1, "inner": [1]}
    ref = ferry.put({"a": 1}, metadata=metadata)
    metadata["step"] = object()
    metadata["inner"].append(object())
    assert TransferRef.from_json(ref.to_json()).metadata == {"step": 1, "inner": [1]}


@pytest.mark.parametrize("metadata", [None, METADATA])
def test_every_changed_character_is_noticed(metadata: dict[str, Any] | None) -> None:
    ref = reference(metadata=metadata)
    text = ref.to_json()
    covered = text.index(',"metadata"') if metadata else len(text)
    survivors = 0
    for position, old in enumerate(text):
        for new in {*'0159afZ"{}[]:,\\ +-.eE\x00\nü\ud800', chr(ord(old) ^ 1), chr(ord(old) ^ 32)} - {old}:
            changed = text[:position] + new + text[position + 1 :]
            try:
                other = TransferRef.from_json(changed)
            except RefError:
                continue
            assert position > covered, changed
            assert [getattr(other, name) for name in FIELDS] == [getattr(ref, name) for name in FIELDS]
            survivors += 1
    assert (survivors > 0) == (metadata is not None)


def test_every_changed_byte_and_truncation_is_noticed(ferry: rollferry.Ferry) -> None:
    text = ferry.put({"a": 1}).to_json().encode()
    for position in range(len(text)):
        with pytest.raises(RefError):
            ferry.get(text[:position])
        with pytest.raises(RefError):
            ferry.get(text[:position].decode())
        with pytest.raises(RefError):
            ferry.get(text[:position] + text[position + 1 :])
        for bit in range(8):
            with pytest.raises(RefError):
                ferry.get(text[:position] + bytes([text[position] ^ 1 << bit]) + text[position + 1 :])


@pytest.mark.parametrize(
    "handle",
    [
        {},
        {"type": "rollferry_ref"},
        {"type": "mooncake_ref", "version": 1},
        {**reference().to_dict(), "type": "TransferRef"},
        {**reference().to_dict(), "version": 2},
        {**reference().to_dict(), "version": "1"},
        {**reference().to_dict(), "version": None},
        {**reference().to_dict(), "check": 5},
        *(
            {name: value for name, value in reference().to_dict().items() if name != left}
            for left in (*FIELDS, "check")
        ),
    ],
)
def test_foreign_and_incomplete_handles_are_refused(handle: dict[str, Any], ferry: rollferry.Ferry) -> None:
    for ref in (handle, json.dumps(handle)):
        for use in (ferry.get, ferry.remove):
            with pytest.raises(RefError, match="bad reference"):
                use(ref)


@pytest.mark.parametrize("ref", [None, 5, [], "", "null", "5", "[]", '"x"', b"\xff", object(), bytearray(b"{}")])
def test_anything_else_is_refused(ref: Any, ferry: rollferry.Ferry) -> None:
    with pytest.raises(RefError, match="bad reference"):
        ferry.get(ref)


TEXTS = [
    "../" * 10 + "ab",
    "/etc/passwd",
    "a" * 29 + "/..",
    "A" * 32,
    "a" * 31,
    "a" * 33,
    "a" * 31 + "\0",
    "\0",
    "",
    None,
    7,
]


@pytest.mark.parametrize("value", [*TEXTS, "a" * 32 + "\n", "١" * 32, ["a"]])
@pytest.mark.parametrize("name", ["id", "digest"])
def test_bad_ids_are_refused(name: str, value: Any) -> None:
    with pytest.raises(RefError, match=name):
        reference(**{name: value})
    with pytest.raises(RefError):
        msgspec.structs.replace(reference(), **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("namespace", value) for value in ("..", "../x", "a/b", "a.b", "a\0", "", "n" * 64, None, 3)),
        *(("engine", value) for value in ("", "SHM", "shm://", "../shm", "e" * 17, None, 3)),
        *(("nbytes", value) for value in (-1, 1 << 63, 1.0, "5", None, True)),
        *(("rows", value) for value in (-1, 1 << 63, 4.0, "4", False)),
    ],
)
def test_bad_values_are_refused(name: str, value: Any) -> None:
    with pytest.raises(RefError, match=name):
        reference(**{name: value})


def test_refs_of_another_engine_are_refused(ferry: rollferry.Ferry) -> None:
    with rollferry.connect("inproc://") as other:
        for ref, wrong in ((ferry.put({"a": 1}), other), (other.put({"a": 1}), ferry)):
            for use in (wrong.get, wrong.remove):
                with pytest.raises(RefError, match=f"it is of {ref.engine}://"):
                    use(ref)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"digest": DIGEST}, RefError),
        ({"nbytes": 8}, RefError),
        ({"nbytes": 1 << 62}, RefError),
        ({"rows": 9}, RefError),
        ({"rows": None}, RefError),
        ({"engine": "inproc"}, RefError),
        ({"id": DIGEST}, BundleNotFoundError),
        ({"namespace": "other"}, BundleNotFoundError),
    ],
)
def test_forged_refs_never_give_data(changes: dict[str, Any], error: type[Exception], ferry: rollferry.Ferry) -> None:
    ref = ferry.put({"a": [np.arange(5)] * 3, "b": [1, 2, 3]})
    forged = msgspec.structs.replace(ref, **changes)
    for handle in (forged, forged.to_json(), forged.to_dict()):
        with pytest.raises(error):
            ferry.get(handle)
    assert ferry.get(ref)["b"] == [1, 2, 3]


def test_the_digest_of_another_bundle_does_not_open_this_one(ferry: rollferry.Ferry) -> None:
    mine, other = ferry.put({"a": [1, 2]}), ferry.put({"a": [1, 2]})
    for changes in ({"id": mine.id}, {"digest": mine.digest}):
        with pytest.raises((RefError, BundleError)):
            ferry.get(msgspec.structs.replace(other, **changes))
