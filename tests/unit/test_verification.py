"""Checksums of blocks: they are those of the format, and what of a partial get is verified by them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import rollferry
from rollferry import BundleError
from rollferry.bundle.checksums import BLOCK_NBYTES, Checksums, Verification, checksums_nbytes
from rollferry.bundle.manifest import Manifest, dump, load
from rollferry.engines.inprocess import STORES
from rollferry.engines.shm.segment import HEADER_NBYTES
from rollferry.layouts.rows import Rows
from rollferry.memory.plan import Member
from rollferry.testing import assert_same

ROWS = 3_000
SIZES = [0, 1, 64, BLOCK_NBYTES - 1, BLOCK_NBYTES, BLOCK_NBYTES + 1, 3 * BLOCK_NBYTES, 50_000]


def placed(sizes: list[int]) -> list[Member]:
    """Members of these sizes."""
    members, position = [], 0
    for nbytes in sizes:
        members.append(Member(position, nbytes))
        position = position + nbytes + 63 & -64
    return members


def payload_of(members: list[Member]) -> Any:
    nbytes = members[-1].offset + members[-1].nbytes if members else 0
    return np.random.default_rng(0).integers(0, 256, nbytes + 63 & -64, np.uint8)


def expected_sums(members: list[Member], payload: Any) -> bytes:
    """The checksums, as docs/wire-format.md has them."""
    found = b""
    for member in members:
        data = payload[member.offset : member.offset + member.nbytes].tobytes()
        for start in range(0, len(data), BLOCK_NBYTES):
            found += xxhash.xxh3_64_intdigest(data[start : start + BLOCK_NBYTES]).to_bytes(8, "little")
    return found


# ---- checksums ----------------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.sampled_from(SIZES), max_size=5), cuts=st.lists(st.integers(1, 60_000), max_size=20))
def test_of_blocks_however_chunks_cut_them(sizes: list[int], cuts: list[int]) -> None:
    members = placed(sizes)
    payload = payload_of(members)
    sums = Checksums(members)
    for chunk in np.split(payload, np.minimum(np.cumsum(np.array(cuts, np.int64)), len(payload))):
        sums.add(chunk)
    assert sums.dump() == expected_sums(members, payload)
    assert len(sums.dump()) == checksums_nbytes(members)


@pytest.mark.parametrize("chunk", ["100", "1000", "16kb", "40000", "1mb"])
def test_a_put_makes_them(chunk: str) -> None:
    with rollferry.connect(f"inproc://sums-{chunk}?chunk={chunk}", checksum=True) as ferry:
        ref = ferry.put(batch(150))
        stored, payload = STORES[f"sums-{chunk}"].bundles[ref.key]
        manifest = load(stored, ref.nbytes)[0]
        assert manifest.checksums == expected_sums(manifest.members, payload)
        assert_same(ferry.get(ref, verify="full"), batch(150))
        ferry.remove(ref)


@pytest.mark.parametrize("wrong", [b"", bytes(8), bytes(32), bytes(23)])
def test_there_are_as_many_as_blocks(wrong: bytes) -> None:
    # More bytes than there can be are refused before anything is computed of them.
    members = placed([40_000])
    manifest = Manifest(
        id="0" * 32, type="dict", fields=[], columns=[], members=members, payload_nbytes=40_064, checksums=bytes(24)
    )
    load(dump(manifest)[0], 40_064)
    with pytest.raises(BundleError, match="number of checksums"):
        load(dump(msgspec.structs.replace(manifest, checksums=wrong))[0], 40_064)
    huge = msgspec.structs.replace(manifest, members=[Member(0, 2**63 - 1)], checksums=b"")
    with pytest.raises(BundleError, match="does not lie in the payload"):
        load(dump(huge)[0], 40_064)


@given(sizes=st.lists(st.sampled_from(SIZES[1:]), min_size=1, max_size=5), data=st.data())
def test_ranges_are_widened_by_less_than_a_block_at_each_end(sizes: list[int], data: st.DataObject) -> None:
    members = placed(sizes)
    verification = {what: Verification(members, expected_sums(members, payload_of(members)), what) for what in WHAT}
    first, last = sorted(data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=2, max_size=2)))
    start = members[first].offset + data.draw(st.integers(0, members[first].nbytes - 1))
    lowest = start + 1 if first == last else members[last].offset + 1
    stop = data.draw(st.integers(lowest, members[last].offset + members[last].nbytes))
    for what, one in verification.items():
        wide = one.widened(Rows.span(start, stop))
        found = int(wide.starts[0]), int(wide.stops[0])
        if what == "full" or stop - start >= BLOCK_NBYTES:
            begin, end = members[first].offset, members[last].offset
            assert found == (
                begin + (start - begin) // BLOCK_NBYTES * BLOCK_NBYTES,
                min(end - (end - stop) // BLOCK_NBYTES * BLOCK_NBYTES, end + members[last].nbytes),
            )
        else:
            assert found == (start, stop)


WHAT: Any = ("full", "auto")


# ---- damage -------------------------------------------------------------------------------------------------------


def batch(rows: int = ROWS) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "dense": rng.random((rows, 32)),
        "tokens": [rng.integers(0, 1000, n) for n in rng.integers(0, 60, rows)],
        "tensor": torch.from_numpy(rng.random((rows, 9))),
        "rewards": rng.random(rows).tolist(),
        "text": [f"row {n}" * (n % 7) for n in range(rows)],
        "meta": [{"id": n, "tags": ["x"] * (n % 3), "score": n / 2} for n in range(rows)],
    }


class Stored:
    """A Ferry, a bundle in it, and how to damage its payload."""

    def __init__(
        self, ferry: Any, ref: rollferry.TransferRef, replace: Callable[[bytes], None], payload: bytes
    ) -> None:
        self.ferry = ferry
        self.ref = ref
        self._replace = replace
        self.payload = payload
        self.manifest: Manifest

    def damaged(self, position: int) -> None:
        """Change one byte; position -1 changes none."""
        changed = bytearray(self.payload)
        if position >= 0:
            changed[position] ^= 1 << position % 8
        self._replace(bytes(changed))

    def get(self, **options: Any) -> Any:
        return self.ferry.get(self.ref, **options)

    @property
    def fetched_nbytes(self) -> int:
        return int(self.ferry.timings[-1].fetched_nbytes)

    def place_of(self, values: Any) -> Member:
        """Where the bytes of an array are in the payload."""
        offset = self.payload.index(np.ascontiguousarray(values).tobytes())
        assert offset % 64 == 0
        return Member(offset, values.nbytes)


@pytest.fixture(params=["inproc", "shm"])
def stored(request: pytest.FixtureRequest, shm_directory: Path) -> Iterator[Stored]:
    if request.param == "shm":
        with rollferry.connect(f"shm://{shm_directory}", checksum=True) as ferry:
            ref = ferry.put(batch())
            path = shm_directory / "live" / ref.key
            segment = path.read_bytes()
            payload = segment[HEADER_NBYTES : HEADER_NBYTES + ref.nbytes]

            def replace(payload: bytes) -> None:
                path.unlink()  # not over the old one, which results may have mapped
                path.write_bytes(segment[:HEADER_NBYTES] + payload + segment[HEADER_NBYTES + ref.nbytes :])

            found = Stored(ferry, ref, replace, payload)
            found.manifest = load(segment[HEADER_NBYTES + ref.nbytes :][: manifest_nbytes(segment)], ref.nbytes)[0]
            yield found
        return
    with rollferry.connect("inproc://damage", checksum=True) as ferry:
        ref = ferry.put(batch())
        data, memory = STORES["damage"].bundles[ref.key]

        def replace_in_store(payload: bytes) -> None:
            STORES["damage"].bundles[ref.key] = data, np.frombuffer(payload, np.uint8)

        found = Stored(ferry, ref, replace_in_store, memory.tobytes())
        found.manifest = load(data, ref.nbytes)[0]
        yield found
        ferry.remove(ref)


def manifest_nbytes(segment: bytes) -> int:
    return int.from_bytes(segment[24:32], "little")


def positions(members: list[Member], count: int) -> Iterator[int]:
    """First, last and some other bytes of every block of members, at most so many of a member."""
    rng = np.random.default_rng(2)
    for member in members:
        inner = rng.integers(0, member.nbytes, count - 2).tolist() if member.nbytes else []
        edges = rng.permutation(np.arange(0, member.nbytes, BLOCK_NBYTES))[: count // 3].tolist()
        inner += [*edges, *(edge - 1 for edge in edges if edge), member.nbytes - 1] if member.nbytes else []
        yield from (member.offset + place for place in inner)


def test_full_finds_every_flip_in_all_rows(stored: Stored) -> None:
    assert_same(stored.get(rows=slice(None), verify="full"), batch())
    assert sum(member.nbytes > BLOCK_NBYTES for member in stored.manifest.members) >= 4
    for position in positions(stored.manifest.members, 6):
        stored.damaged(position)
        for options in ({}, {"rows": slice(None)}, {"fields": list(batch())}):
            with pytest.raises(BundleError, match=rf"bundle {stored.ref.key}: block \d+ of member \d+ is corrupt"):
                stored.get(verify="full", **options)
    stored.damaged(-1)
    assert_same(stored.get(verify="full", fields=["text"]), {"text": batch()["text"]})


def test_full_finds_every_flip_in_the_block_of_a_row(stored: Stored) -> None:
    values, rng = batch(), np.random.default_rng(3)
    dense = stored.place_of(values["dense"])
    number = stored.manifest.members.index(dense)
    row_nbytes = dense.nbytes // ROWS
    for row in rng.integers(0, ROWS, 40).tolist():
        first = row * row_nbytes // BLOCK_NBYTES * BLOCK_NBYTES
        within = first + int(rng.integers(0, min(BLOCK_NBYTES, dense.nbytes - first)))
        stored.damaged(dense.offset + within)
        error = rf"block {first // BLOCK_NBYTES} of member {number} is corrupt"
        for rows in ([row], [0, row, row], slice(row, row + 1)):
            with pytest.raises(BundleError, match=error):
                stored.get(rows=rows, fields=["dense"], verify="full")
        # A block that isn't read does not matter.
        other = (row + ROWS // 2) % ROWS
        assert_same(stored.get(rows=[other], fields=["dense"], verify="full"), {"dense": values["dense"][[other]]})
    assert stored.fetched_nbytes in (BLOCK_NBYTES, dense.nbytes % BLOCK_NBYTES)


def test_full_finds_flips_in_offsets_and_values_of_rows(stored: Stored) -> None:
    tokens = batch()["tokens"]
    values = stored.place_of(np.concatenate(tokens))
    starts = np.cumsum([0, *(len(row) for row in tokens)])
    offsets = stored.place_of(starts)
    for row in np.random.default_rng(4).integers(0, ROWS, 40).tolist():
        if not len(tokens[row]):
            continue
        places = [offsets.offset + 8 * row, offsets.offset + 8 * row + 15, values.offset + 8 * int(starts[row])]
        for position in [*places, values.offset + 8 * int(starts[row + 1]) - 1]:
            stored.damaged(position)
            with pytest.raises(BundleError, match="corrupt"):
                stored.get(rows=[row], fields=["tokens"], verify="full")
            with pytest.raises(BundleError, match="corrupt"):
                stored.get(rows=[row], fields=["tokens"], verify="full", lazy=True, readonly=True)
    stored.damaged(-1)
    assert_same(stored.get(rows=[7, 5], fields=["tokens"], verify="full"), {"tokens": [tokens[7], tokens[5]]})


def test_nothing_is_written_to_a_buffer_before(stored: Stored) -> None:
    dense = stored.place_of(batch()["dense"])
    stored.damaged(dense.offset + dense.nbytes // 2)
    buffer = np.full((ROWS, 32), -1.0)
    with pytest.raises(BundleError, match="corrupt"):
        stored.get(rows=slice(None), fields=["dense"], into={"dense": buffer}, verify="full")
    assert (buffer == -1).all()


def test_manifest_fetches_and_verifies_no_more(stored: Stored) -> None:
    values = batch()["dense"]
    dense = stored.place_of(values)
    stored.damaged(dense.offset)
    for verify in ("manifest", "auto"):  # the engines here use no network
        found = stored.get(rows=slice(0, 1_000), fields=["dense"], verify=verify)["dense"]
        assert stored.fetched_nbytes == found.nbytes
        assert (found != values[:1_000]).sum() == 1


# ---- auto, on an engine that uses a network -----------------------------------------------------------------------


@pytest.fixture
def networked(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.setattr(stored.ferry._engine, "networked", True)
    return stored


def test_auto_finds_every_flip_in_a_slice(networked: Stored) -> None:
    values, rng = batch(), np.random.default_rng(5)
    dense = networked.place_of(values["dense"])
    row_nbytes = dense.nbytes // ROWS
    least = BLOCK_NBYTES // row_nbytes
    for _ in range(40):
        start = int(rng.integers(0, ROWS - least))
        stop = int(rng.integers(start + least, ROWS + 1))
        rows = slice(start, stop)
        networked.damaged(-1)
        assert_same(networked.get(rows=rows, fields=["dense"]), {"dense": values["dense"][rows]})
        asked = (stop - start) * row_nbytes
        assert asked <= networked.fetched_nbytes < asked + 2 * BLOCK_NBYTES
        ends = (start * row_nbytes, stop * row_nbytes - 1)
        for place in (*ends, int(rng.integers(*ends))):
            networked.damaged(dense.offset + place)
            with pytest.raises(BundleError, match="corrupt"):
                networked.get(rows=rows, fields=["dense"])


def test_auto_verifies_scattered_rows_where_they_cover_whole_blocks(networked: Stored) -> None:
    dense = networked.place_of(batch()["dense"])
    networked.damaged(dense.offset)
    rows = list(range(0, ROWS, 100))
    found = networked.get(rows=rows, fields=["dense"])["dense"]
    assert networked.fetched_nbytes == found.nbytes
    with pytest.raises(BundleError, match="corrupt"):
        networked.get(rows=rows, fields=["dense"], verify="full")
    with rollferry.connect("inproc://whole-blocks", checksum=True) as ferry:
        wide = np.random.default_rng(6).integers(0, 256, (4, BLOCK_NBYTES), np.uint8)
        ref = ferry.put({"wide": wide, "small": [1, 2, 3, 4]})
        ferry._engine.networked = True  # type: ignore[attr-defined]
        STORES["whole-blocks"].bundles[ref.key][1][2 * BLOCK_NBYTES] ^= 1
        assert_same(ferry.get(ref, rows=[1, 3])["wide"], wide[[1, 3]])
        with pytest.raises(BundleError, match="block 2 of member 0"):
            ferry.get(ref, rows=[0, 2])
        ferry.remove(ref)


def test_forms_for_training_are_verified_likewise(networked: Stored) -> None:
    values = networked.place_of(np.concatenate(batch()["tokens"]))
    networked.damaged(values.offset + values.nbytes // 2)
    ferry, ref = networked.ferry, networked.ref
    for read in (ferry.packed, ferry.padded, ferry.nested):
        with pytest.raises(BundleError, match="corrupt"):
            read(ref, "tokens")
        with pytest.raises(BundleError, match="corrupt"):
            read(ref, "tokens", rows=slice(10, ROWS))


# ---- bundles without checksums, and of several stages -------------------------------------------------------------


def test_full_needs_checksums(shm_directory: Path) -> None:
    url = f"shm://{shm_directory}"
    with rollferry.connect(url) as ferry, rollferry.connect(url, checksum=True) as checked:
        ref = ferry.put(batch(10))
        for options in ({"rows": [1]}, {"fields": ["dense"]}, {"fields": []}, {}):
            with pytest.raises(BundleError, match=f"bundle {ref.key}: .*checksum=True"):
                ferry.get(ref, verify="full", **options)
        longer = checked.append(ref, {"more": list(range(10))})
        with pytest.raises(BundleError, match="checksum=True"):
            ferry.get(longer, verify="full")
        assert ferry.get(longer, rows=[2], fields=["more"]) == {"more": [2]}


def test_a_damaged_stage_is_named(shm_directory: Path) -> None:
    with rollferry.connect(f"shm://{shm_directory}", checksum=True) as ferry:
        first = ferry.put({"a": np.arange(10)})
        ref = ferry.append(first, {"b": np.arange(10)})
        assert_same(ferry.get(ref, verify="full"), {"a": np.arange(10), "b": np.arange(10)})
        path = shm_directory / "live" / first.key
        segment = bytearray(path.read_bytes())
        segment[HEADER_NBYTES] ^= 1
        path.write_bytes(segment)
        with pytest.raises(BundleError, match=f"bundle {ref.key}: block 0 of member 0 of its stage {first.key} is"):
            ferry.get(ref, verify="full")
        assert_same(ferry.get(ref, verify="full", fields=["b"]), {"b": np.arange(10)})
