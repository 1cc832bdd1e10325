"""shm://: bundles that were renamed, replaced, or are of another version or user, and folders that can't be used."""

import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollferry
from rollferry import BundleError, BundleNotFoundError, EngineError, RollferryError
from rollferry.testing import assert_same

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
NOBODY = 65534


def batch(fill: int = 1) -> dict[str, Any]:
    return {"a": np.full(100_000, fill), "texts": ["x", "y"]}


def as_nobody(work: Callable[[], None]) -> None:
    """Do something in a child, as another user."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def change_header(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(8)
        file.write(struct.pack("<H", 2))


def change_manifest(path: Path) -> None:
    with open(path, "r+b") as file:
        payload_nbytes = struct.unpack("<16xQ", file.read(24))[0]
        file.seek(128 + payload_nbytes + 4)
        file.write(struct.pack("<H", 2))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "segment version": (change_header, "the segment of {key} has version 2; this rollferry reads version 1"),
    "manifest version": (change_manifest, "{key}: the manifest has version 2; this rollferry reads version 1"),
    "text": (lambda path: path.write_text("mine" * 100), "the file of {key} is no segment"),
    "nothing": (lambda path: path.write_bytes(b""), "the segment of {key} is truncated"),
    "short": (lambda path: os.truncate(path, 1000), "the segment of {key} is truncated"),
    "fifo": (fifo, "what is in the place of {key} is no segment"),
    "folder": (folder, "what is in the place of {key} is no segment"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_in_the_place_of_a_bundle(name: str, shm_directory: Path) -> None:
    """A get says what it is, and whose place; all else goes on, and it can be removed."""
    damage, words = DAMAGES[name]
    with rollferry.connect(f"shm://{shm_directory}", quota="10mb") as ferry:
        kept, ref = ferry.put(batch(5)), ferry.put(batch(), ttl=60, readers=2)
        path = shm_directory / "live" / ref.key
        damage(path)
        with pytest.raises(RollferryError) as caught:
            ferry.get(ref)
        assert isinstance(caught.value, BundleError | EngineError)
        assert words.format(key=ref.key) in str(caught.value)
        assert ferry.gc() == []
        ferry.remove(ferry.put(batch()))
        assert_same(ferry.get(kept), batch(5))
        assert set(ferry.list()) == {kept.id, ref.id}
        if path.is_dir():
            path.rmdir()
        else:
            assert ferry.remove(ref, force=True)
        with pytest.raises(BundleNotFoundError, match=ref.key):
            ferry.get(ref)
        for _ in range(3):
            new = ferry.put(batch(6))
            assert_same(ferry.get(new), batch(6))
            ferry.remove(new)
        assert ferry.list() == [kept.id]


def test_a_bundle_that_was_renamed(ferry: rollferry.Ferry, shm_directory: Path) -> None:
    one, two = ferry.put(batch(1)), ferry.put(batch(2))
    live = shm_directory / "live"
    (live / one.key).rename(live / two.key)
    with pytest.raises(BundleNotFoundError, match=one.key):
        ferry.get(one)
    with pytest.raises(BundleError, match=f"the segment of {two.key} holds another bundle"):
        ferry.get(two)
    assert ferry.list() == [two.id]
    assert ferry.remove(two)
    assert not ferry.remove(one)
    assert_same(ferry.get(ferry.put(batch(3))), batch(3))


def test_a_bundle_that_was_replaced_by_an_older_self(ferry: rollferry.Ferry, shm_directory: Path) -> None:
    """A copy is as good as what it is a copy of."""
    ref = ferry.put(batch(1))
    path = shm_directory / "live" / ref.key
    shutil.copy(path, shm_directory / "copy")
    (shm_directory / "copy").rename(path)
    held = ferry.get(ref)
    assert ferry.remove(ref)
    ferry.put(batch(2))
    assert_same(held, batch(1))


@needs_root
@pytest.mark.parametrize("folder", ["live", "pool", "tmp", "notes"])
def test_files_of_another_user(folder: str, shm_directory: Path) -> None:
    """What this user can't open is an error that names it, and hinders nothing else."""
    engine = shm_directory / "engine"
    engine.mkdir()
    os.chown(engine, NOBODY, NOBODY)
    shm_directory.chmod(0o755)
    url = f"shm://{engine}"
    with rollferry.connect("shm://" + str(shm_directory / "other")) as other:
        foreign = other.put(batch())

    def begin() -> None:
        with rollferry.connect(url) as ferry:
            (engine / "ref").write_text(ferry.put(batch(1), readers=2).to_json())

    def go_on() -> None:
        with rollferry.connect(url, quota="10mb") as ferry:
            if folder in ("live", "notes"):
                with pytest.raises(EngineError, match=f"Permission denied: .*{ref.key}"):
                    ferry.get(ref) if folder == "live" else ferry.remove(ref)
            for _ in range(3):
                new = ferry.put(batch(2))
                assert_same(ferry.get(new), batch(2))
                assert ferry.remove(new)
            assert ferry.list() == [ref.id]
            assert ferry.gc() == []
            assert ferry.remove(ref, force=True)
            for _ in range(3):
                ferry.remove(ferry.put(batch(3)))
            assert ferry.list() == []

    as_nobody(begin)
    ref = rollferry.TransferRef.from_json((engine / "ref").read_text())
    segment = shm_directory / "other" / "live" / foreign.key
    size, inode = segment.stat().st_size, segment.stat().st_ino
    places = {"live": ref.key, "pool": f"{size:x}-{inode:032x}", "tmp": f"{inode:032x}", "notes": ref.key}
    segment.rename(engine / folder / places[folder])
    as_nobody(go_on)


@needs_root
def test_the_directory_of_another_user(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    with rollferry.connect(url) as ferry:
        ref = ferry.put(batch())
        shm_directory.chmod(0o755)

        def work() -> None:
            with pytest.raises(EngineError, match="belongs to, or is open to, other users"):
                rollferry.connect(url)
            for use in (lambda: ferry.get(ref), lambda: ferry.put(batch()), lambda: ferry.remove(ref), ferry.list):
                with pytest.raises(EngineError, match="Permission denied"):
                    use()

        as_nobody(work)
        assert_same(ferry.get(ref), batch())
        assert ferry.remove(ref)


@needs_root
@pytest.mark.parametrize("folder", ["live", "pool", "tmp", "notes", "reserved"])
def test_a_folder_that_cannot_be_written(folder: str, shm_directory: Path) -> None:
    """An error says so, nothing is half there, and all goes on once it can be written again."""
    engine = shm_directory / "engine"
    engine.mkdir()
    os.chown(engine, NOBODY, NOBODY)
    shm_directory.chmod(0o755)

    def work() -> None:
        with rollferry.connect(f"shm://{engine}", quota="10mb") as ferry:
            kept, shared = ferry.put(batch(1)), ferry.put(batch(2), readers=2)
            ferry.remove(ferry.put(batch(3)))
            (engine / folder).chmod(0o500)
            refused = 0
            for use in (lambda: ferry.put(batch(4)), lambda: ferry.remove(kept), lambda: ferry.remove(shared)):
                try:
                    use()
                except EngineError as error:
                    assert "Permission denied" in str(error) and str(engine) in str(error)
                    refused += 1
                assert_same(ferry.get(shared), batch(2))
            assert refused > 0
            (engine / folder).chmod(0o700)
            ferry.remove(kept)
            for name in ferry.list():
                assert ferry.remove(name)
            new = ferry.put(batch(5))
            assert_same(ferry.get(new), batch(5))
            assert ferry.remove(new)
        with rollferry.connect(f"shm://{engine}", quota="10mb") as ferry:
            ferry.remove(ferry.put(batch(6)))
        left = {part: os.listdir(engine / part) for part in ("live", "tmp", "notes", "reserved")}
        assert left == {"live": [], "tmp": [], "notes": [], "reserved": ["default"]}

    as_nobody(work)
