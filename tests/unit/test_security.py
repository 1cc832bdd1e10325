"""The promises of docs/security.md; each test is named there."""

import os
import re
import socket
import stat
import struct
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollferry
from rollferry import BundleError, BundleNotFoundError, EngineError, RefError, RollferryError, TransferRef
from rollferry.bundle import lifetime
from rollferry.bundle.manifest import PREFIX, Base, Lifetime, Manifest, dump, load
from rollferry.engines.shm.notes import read as read_notes
from rollferry.engines.shm.reader import ShmReader
from rollferry.engines.shm.segment import HEADER_NBYTES, pack_header, unpack_header
from tests.fuzz.grammar import Maker
from tests.fuzz.test_hostile import Seed, header_for, seal

ROOT = Path(__file__).resolve().parents[2]
BATCH = {"a": [1, 2, 3], "b": ["x", "yy", "zzz"]}
KEY = "default." + "a" * 32


def store(ferry: rollferry.Ferry, manifest: Manifest, namespace: str = "default") -> TransferRef:
    """Put a manifest without payload as it is."""
    data, digest = dump(manifest)
    writer = ferry._engine.begin(f"{namespace}.{manifest.id}", 0, len(data))
    writer.publish(data)
    return TransferRef(id=manifest.id, engine="shm", namespace=namespace, nbytes=0, rows=None, digest=digest)


def empty(**more: Any) -> Manifest:
    """A bundle of nothing."""
    return Manifest(id="f" * 32, type="dict", fields=[], columns=[], members=[], payload_nbytes=0, **more)


def forged(ferry: rollferry.Ferry, root: Path, maker: Maker, column: int, form: str = "value") -> TransferRef:
    """Store a bundle with one field that a hostile producer has made up."""
    manifest = maker.manifest([{"key": "field", "form": form, "column": column}])
    seed = Seed.of({}, ferry, root / "live")
    sealed, ref = seal(seed, manifest, bytes(maker.payload))
    path = root / "live" / ref.key
    path.unlink()
    path.write_bytes(header_for(seed, maker.payload, sealed) + maker.payload + sealed)
    return ref


# ---- other users --------------------------------------------------------------------------------------------------


def test_nothing_is_open_to_other_users(shm_directory: Path) -> None:
    root = shm_directory / "engine"
    before = os.umask(0)
    try:
        with rollferry.connect(f"shm://{root}", quota="1gb", guarantee="1mb") as ferry:
            ref = ferry.put(BATCH, readers=2)
            ferry.remove(ref)
            ferry.remove(ferry.put(BATCH))
            ferry._engine.reserve("default", KEY, 100, 1000, queue=True)
            found = [root, *root.rglob("*")]
            folders = {"live", "pool", "notes", "reserved", "guarantees", "peaks"}
            assert {path.parent.name for path in found if path.is_file()} == folders
            for path in found:
                status = path.lstat()
                assert status.st_uid == os.geteuid()
                assert stat.S_IMODE(status.st_mode) == (0o700 if path.is_dir() else 0o600), path
    finally:
        os.umask(before)


# ---- references ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["../x", "/etc/passwd", "a/b", "..", "a\0", "a" * 64, ".", "x\n", "é", "a.b"])
def test_no_path_comes_from_a_reference(text: str, shm_directory: Path) -> None:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        ref = ferry.put(BATCH)
        for name in ("id", "namespace", "digest"):
            with pytest.raises(RefError, match=name):
                msgspec.structs.replace(ref, **{name: text})
            with pytest.raises(RefError):
                ferry.get(ref.to_dict() | {name: text})
        # The engine doesn't rely on that.
        for key in (text, f"{text}.{ref.id}", f"default.{text}"):
            for use in (ferry._engine.open, ferry._engine.remove, ferry._engine.notes):
                with pytest.raises(EngineError, match="no key"):
                    use(key)


def test_check_sums_of_references_authenticate_nobody(shm_directory: Path) -> None:
    """Who knows a bundle's id and digest can make a reference to it, and who knows its id can remove it."""
    with rollferry.connect(f"shm://{shm_directory}") as ferry, rollferry.connect(f"shm://{shm_directory}") as other:
        ref = ferry.put(BATCH)
        made = TransferRef(
            id=ref.id, engine="shm", namespace=ref.namespace, nbytes=ref.nbytes, rows=ref.rows, digest=ref.digest
        )
        assert other.get(made.to_json()) == BATCH
        assert other.remove(msgspec.structs.replace(made, digest="0" * 32, nbytes=0))
        with pytest.raises(BundleNotFoundError):
            ferry.get(ref)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
HANDLE = TransferRef(
    id="a" * 32, engine="shm", namespace="default", nbytes=8, rows=3, digest="b" * 32, stages=2, readers=2
).to_dict()


@given(st.dictionaries(st.sampled_from([*HANDLE, "metadata", "policy_version"]), JSON, max_size=4), st.booleans())
def test_mutated_references_raise_ref_errors_only(changes: dict[str, Any], as_json: bool) -> None:
    handle = {**HANDLE, **changes}
    try:
        text = msgspec.json.encode(handle) if as_json else None
    except (OverflowError, UnicodeEncodeError):
        return
    try:
        ref = TransferRef.from_dict(handle) if text is None else TransferRef.from_json(text)
    except RefError:
        return
    assert ref.key == f"default.{'a' * 32}"


@given(st.binary(max_size=300) | st.text(max_size=300))
def test_any_text_as_a_reference(text: bytes | str) -> None:
    with pytest.raises(RefError):
        TransferRef.from_json(text)


# ---- segments and manifests ---------------------------------------------------------------------------------------


@given(
    st.binary(max_size=200)
    | st.builds(
        struct.pack,
        st.just("<8sHHIQQ96s"),
        st.just(b"RFSEG\r\n\x00"),
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(0, 1),
        st.integers(0, (1 << 64) - 1),
        st.integers(0, (1 << 64) - 1),
        st.just(KEY.encode()),
    ),
    st.integers(0, 1 << 40),
)
def test_mutated_segment_headers(header: bytes, file_nbytes: int) -> None:
    try:
        sizes = unpack_header(header, KEY, file_nbytes)
    except BundleError:
        return
    assert sizes is None or (min(sizes) >= 0 and HEADER_NBYTES + sum(sizes) <= file_nbytes)


@given(st.binary(max_size=400), st.integers(0, 1 << 40), st.booleans())
def test_any_bytes_as_a_manifest(data: bytes, payload_nbytes: int, sealed: bool) -> None:
    import xxhash

    if sealed:
        data = PREFIX.pack(b"RFMF", 1, 0, xxhash.xxh3_128_digest(data)) + data
    with pytest.raises(BundleError):
        load(data, payload_nbytes)


def test_a_manifest_is_copied_before_it_is_checked(shm_directory: Path) -> None:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        ref = ferry.put(BATCH)
        reader = ferry._engine.open(ref.key)
        assert isinstance(reader, ShmReader)
        before = bytes(reader.manifest)
        with open(shm_directory / "live" / ref.key, "r+b") as file:
            file.write(b"\xff" * (shm_directory / "live" / ref.key).stat().st_size)
        assert type(reader.manifest) is bytes
        assert reader.manifest == before
        assert reader.fetch([(0, 1)])[0][0] == 0xFF  # the payload isn't
        reader.close()


@pytest.mark.parametrize("payload", [0, 1 << 62, (1 << 64) - 1])
@pytest.mark.parametrize("manifest", [0, 1 << 62, (1 << 64) - 1])
def test_sizes_in_a_header_are_checked_against_the_file(payload: int, manifest: int, shm_directory: Path) -> None:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        ref = ferry.put(BATCH)
        with open(shm_directory / "live" / ref.key, "r+b") as file:
            file.write(pack_header(ref.key, payload, manifest))
        with pytest.raises(BundleError):
            ferry.get(ref)


@pytest.mark.parametrize("rows", [slice(None, None, -2), slice(None), slice(5, None), [0, -1]])
@pytest.mark.parametrize("form", ["list", "value"])
def test_rows_that_are_only_stated_are_not_counted(rows: Any, form: str, shm_directory: Path) -> None:
    maker = Maker(Random(0), badness=0)
    rest = {"library": "numpy", "dtype": "|u1", "values": maker.member(bytes(64))}
    column = (
        maker.add("ragged", 1 << 40, ndim=0, **rest)
        if form == "list"
        else maker.add("dense", 1, shape=[1 << 40, 0], **rest)
    )
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        with pytest.raises(BundleError, match="more than there are bits"):
            ferry.get(forged(ferry, shm_directory, maker, column, form), rows=rows)


def test_rows_that_share_items_cost_no_more_than_the_payload(shm_directory: Path) -> None:
    """Falling offsets between rows that are not asked for: each of the others is the whole payload."""
    rows, nbytes = 4000, 1 << 20
    maker = Maker(Random(0), badness=0)
    text = maker.add(
        "text",
        rows,
        type="bytes",
        offsets=maker.ints([0, nbytes] * (rows // 2) + [nbytes]),
        data=maker.member(bytes(nbytes)),
    )
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        ref = forged(ferry, shm_directory, maker, text, "list")
        for wanted in (slice(None, None, 2), list(range(0, rows, 2))[::-1]):
            with pytest.raises(BundleError, match="offsets fall"):
                ferry.get(ref, rows=wanted)
        assert len(ferry.get(ref, rows=[0, 0])["field"][1]) == nbytes  # asked for twice


def test_modules_named_by_a_bundle_are_not_imported(shm_directory: Path) -> None:
    sys.modules.pop("antigravity", None)
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        ferry.get(ferry.put(BATCH))  # imports what is imported in any case
    for name in ("antigravity", "antigravity.fly", "os:system", "builtins.eval", "rollferry.demo.report", "torch.x:y"):
        maker = Maker(Random(0), badness=0)
        column = maker.add("registered", 1, name=name, parts=maker.tuples(1, [maker.strings(["x"])]))
        before = set(sys.modules)
        with rollferry.connect(f"shm://{shm_directory}") as ferry:
            with pytest.raises(BundleError, match="not registered"):
                ferry.get(forged(ferry, shm_directory, maker, column))
        assert set(sys.modules) - before == set()


# ---- what a bundle says about others ------------------------------------------------------------------------------


def test_a_bundle_can_not_have_others_removed(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    with rollferry.connect(url) as ferry, rollferry.connect(url, namespace="victim") as victim:
        target = victim.put(BATCH)
        ref = store(ferry, empty(base=Base.of(target)))
        assert ferry.remove(ref)  # which says that it is one stage
        assert victim.get(target) == BATCH
        ref = store(ferry, empty(base=Base.of(target)))
        assert ferry.remove(ref.id)  # by id, and so within the namespace
        assert victim.get(target) == BATCH
        ref = store(ferry, empty(base=Base.of(target)))
        assert ferry.remove(msgspec.structs.replace(ref, readers=1))
        assert victim.get(target) == BATCH
        ref = store(ferry, empty(base=Base.of(target)))
        ferry._engine.remove(ref.key)
        ref = store(ferry, empty(base=Base.of(target), lifetime=lifetime.born(1e-9, None)))
        time.sleep(0.01)
        assert [found.key for found in ferry.gc()] == [ref.key]
        assert victim.get(target) == BATCH
        # The reference could have named the other one itself.
        ref = msgspec.structs.replace(store(ferry, empty(base=Base.of(target))), stages=2)
        assert ferry.remove(ref)
        assert victim.list() == []


ODD = [float("nan"), float("inf"), float("-inf"), -1e300, 1e300, 0.0, -1.0]


@pytest.mark.parametrize("name", ["created", "uptime", "ttl", "readers", "owner", "boot"])
def test_a_hostile_lifetime_is_its_own_bundles_only(name: str, shm_directory: Path) -> None:
    odd: dict[str, list[Any]] = {
        "readers": [-1, 0, 1 << 62, -(1 << 62)],
        "boot": ["", "x" * 100_000, "\0", "another"],
        "owner": ["", ":", "1:2", f"{'9' * 5000}:1:1", "-1:-1:-1", "1:1:1:1", "\0:1:1", "../../self:1:1", "1_0: 2 :٣"],
    }
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        kept, due = ferry.put(BATCH), ferry.put(BATCH, ttl=1e-9)
        for boot in (lifetime.born(None, None).boot, "another"):
            for value in odd.get(name, ODD):
                born: Lifetime = msgspec.structs.replace(lifetime.born(5.0, None), boot=boot)
                store(ferry, empty(lifetime=msgspec.structs.replace(born, **{name: value})), "hostile")
                found = {one.key for one in ferry.gc(dry_run=True)}
                assert due.key in found
                assert kept.key not in found
                rollferry.connect(f"shm://{shm_directory}", namespace="hostile").remove("f" * 32)
        assert [one.key for one in ferry.gc()] == [due.key]


# ---- files that are not ours --------------------------------------------------------------------------------------


def plant(path: Path, kind: str) -> None:
    """Put something odd where a file belongs."""
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            # The names of sockets are short, and those of files here may not be.
            here = os.open(path.parent, os.O_PATH)
            server.bind(f"/proc/self/fd/{here}/s")
            os.rename("s", path, src_dir_fd=here)
            os.close(here)
    elif kind == "binary":
        path.write_bytes(bytes(range(256)) * 1000 + b"\nkept-nan\nkept-\nkept-inf\ndone-\n\xff\n" + b"x" * 100_000)
    else:
        path.write_text("")


KINDS = ["link", "fifo", "folder", "socket", "binary", "empty"]


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files_of_notes(kind: str, shm_directory: Path) -> None:
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        odd, due = ferry.put(BATCH, readers=2, ttl=1e-9), ferry.put(BATCH, ttl=1e-9)
        plant(shm_directory / "notes" / odd.key, kind)
        time.sleep(0.01)
        assert due.key in {one.key for one in ferry.gc()}  # whatever becomes of the other
        for work in (lambda: ferry.keep(odd, 5), lambda: ferry.remove(odd), lambda: ferry.remove(odd, force=True)):
            try:
                work()
            except RollferryError:
                pass
        assert odd.id not in ferry.list()
        assert ferry.get(ferry.put(BATCH)) == BATCH


def test_notes_of_great_length_are_read_in_part(shm_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollferry.engines.shm.notes.MAX_NBYTES", 100)
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        ref = ferry.put(BATCH)
        (shm_directory / "notes" / ref.key).write_text("x\n" * 1000)
        assert read_notes(ferry._engine._directory, ref.key) == {"x"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("folder", ["live", "pool", "tmp", "reserved", "guarantees", "peaks"])
def test_hostile_files_in_folders(kind: str, folder: str, shm_directory: Path) -> None:
    names = {
        "live": [KEY],
        "pool": [f"1000-{'0' * 32}", f"{'f' * 16}-{'f' * 32}"],
        "tmp": ["0" * 32],
        "reserved": [f"{KEY}-ff", f"default~{'0' * 16}-{'a' * 32}", "x" * 255],
        "guarantees": [f"other+{'f' * 16}-{'0' * 16}", f"{KEY}-ff!ff", f"{KEY}-{'f' * 16}"],
        "peaks": ["default+ff", f"other+{'f' * 16}", "x" * 255],
    }
    with rollferry.connect(f"shm://{shm_directory}", quota="1gb") as ferry:
        for name in names[folder]:
            plant(shm_directory / folder / name, kind)
        due = ferry.put(BATCH, ttl=1e-9)
        time.sleep(0.01)
        ferry.usage(), ferry.list()
        assert due.key in {one.key for one in ferry.gc()}
        for _ in range(3):
            ref = ferry.put(BATCH)
            assert ferry.get(ref) == BATCH
            ferry.remove(ref)
        if folder == "live":
            fake = TransferRef(id="a" * 32, engine="shm", namespace="default", nbytes=0, rows=None, digest="0" * 32)
            with pytest.raises(RollferryError):
                ferry.get(fake)


def test_a_process_that_stands_still_stops_nobody_for_ever(
    shm_directory: Path, monkeypatch: pytest.MonkeyPatch, start: Any
) -> None:
    code = """
import sys
from rollferry.engines.shm import claims
with claims.alone(sys.argv[1].removeprefix("shm://") + "/" + sys.argv[2]):
    print("ready", flush=True)
    sys.stdin.read()
"""
    url = f"shm://{shm_directory}"
    monkeypatch.setattr("rollferry.engines.shm.claims.PATIENCE", 0.1)
    rollferry.connect(url).close()
    start(code, url, "reserved/default")
    with rollferry.connect(url, quota="1gb") as ferry, pytest.raises(EngineError, match="another process has had"):
        ferry.put(BATCH)
    with rollferry.connect(url, quota="1gb", namespace="other") as ferry:
        assert ferry.get(ferry.put(BATCH)) == BATCH
    with rollferry.connect(url, namespace="other", guarantee=100) as ferry:
        start(code, url, "guarantees/lock")
        with pytest.raises(EngineError, match="another process has had"):
            ferry.put(BATCH)
        assert [path.name for path in shm_directory.glob("tmp/*")] == []


def test_quotas_and_readers_are_cooperative(shm_directory: Path) -> None:
    """They hold among those that ask for them; nothing keeps others from putting, noting and removing."""
    url = f"shm://{shm_directory}"
    with rollferry.connect(url, quota=10_000) as own, rollferry.connect(url) as other:
        other.put({"a": np.zeros(100_000)})
        with pytest.raises(rollferry.EngineFullError):
            own.put(BATCH)
        ref = other.put(BATCH, readers=5)
        assert other.remove(ref, force=True)


# ---- what callers say ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["shm:///tmp/a\0b", "shm:///tmp/a%00b", "shm:///\ud800", "shm://\0"])
def test_urls_that_no_path_can_have(url: str) -> None:
    with pytest.raises(EngineError):
        rollferry.connect(url)


@pytest.mark.parametrize("reader", ["", "a/b", "../x", "a\n", "x" * 64, "done-\0", 5, b"x", "é"])
def test_names_of_readers(reader: Any) -> None:
    with pytest.raises(ValueError, match="no name of a reader"):
        rollferry.connect("inproc://", reader=reader)


# ---- the page -----------------------------------------------------------------------------------------------------


def test_the_page_names_tests_that_there_are() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", text))
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert named - there == set()
    own = {name for name in globals() if name.startswith("test_")}
    assert own - named == {"test_the_page_names_tests_that_there_are"}
