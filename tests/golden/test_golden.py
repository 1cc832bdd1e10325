"""Bundles written by earlier versions are read as they were meant; see write.py."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

import rollferry
from rollferry.bundle.manifest import Manifest, load
from rollferry.layouts.kinds import AnySpec
from rollferry.testing import assert_same

from tests.golden.batches import CASES

FOLDER = Path(__file__).parent
REFERENCES: dict[str, str] = json.loads((FOLDER / "references.json").read_text())


def segment(name: str) -> bytes:
    """The stored segment of a case."""
    return (FOLDER / f"{name}.segment").read_bytes()


def manifest(name: str) -> Manifest:
    """The stored manifest of a case."""
    stored = segment(name)
    nbytes = json.loads(REFERENCES[name])["nbytes"]
    return load(stored[128 + nbytes :], nbytes)[0]


@pytest.mark.parametrize("name", CASES)
def test_is_read_as_it_was_put(name: str, shm_directory: Path) -> None:
    case = CASES[name]
    if case.package is not None:
        pytest.importorskip(case.package)
    ref = rollferry.TransferRef.from_json(REFERENCES[name])
    options: dict[str, Any] = {**case.options, "schema": None}
    with rollferry.connect(f"shm://{shm_directory}", **options) as ferry:
        (shm_directory / "live" / ref.key).write_bytes(segment(name))
        batch = ferry.get(REFERENCES[name], verify="full" if case.options.get("checksum") else "auto")
    assert_same(batch, (case.expected or case.make)())


def test_every_kind_of_column_is_there() -> None:
    found = {type(spec) for name in REFERENCES for spec in manifest(name).columns}
    assert found == set(get_args(AnySpec))


def test_references_are_as_they_were() -> None:
    for text in REFERENCES.values():
        assert rollferry.TransferRef.from_json(text).to_json() == text


def test_files_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.segment")) < 100_000
    assert {path.stem for path in FOLDER.glob("*.segment")} == set(REFERENCES) == set(CASES)
