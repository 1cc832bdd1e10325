"""Hostile bundles raise RollferryError, or are read: never another exception, a crash, a hang, or memory without bound.

    python tests/fuzz/test_hostile.py --count 1000000 --seed 7

Case `index` of a seed is always the same: `--only INDEX` runs it alone. Cases run in a child process with a limit on its
memory, so that a crash is seen. Exit status 0: nothing was found.
"""

import argparse
import contextlib
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import msgspec
import numpy as np
import pytest
import xxhash

import rollferry
from rollferry.bundle.manifest import PREFIX
from rollferry.testing import differences
from tests.fuzz import grammar, mutations
from tests.golden.batches import CASES

HEADER_NBYTES = 128
SECONDS = 10.0  # that one case may take
MEMORY = 1 << 30  # that one case may take
TORCH = ("tensors", "tensordicts", "jagged")
Finding = dict[str, Any]


class TooSlow(BaseException):
    """A case takes too long."""


class Seed(NamedTuple):
    """A bundle to start from: its segment, cut into its parts, and its batch."""

    name: str
    ref: rollferry.TransferRef
    header: bytes
    payload: bytes
    manifest: bytes
    batch: dict[Any, Any]

    @classmethod
    def of(cls, batch: dict[Any, Any], ferry: rollferry.Ferry, live: Path, name: str = "") -> "Seed":
        """Put a batch."""
        ref = ferry.put(batch)
        segment = (live / ref.key).read_bytes()
        start = HEADER_NBYTES + ref.nbytes
        stop = start + int.from_bytes(segment[24:32], "little")
        return cls(name, ref, segment[:HEADER_NBYTES], segment[HEADER_NBYTES:start], segment[start:stop], batch)

    def parsed(self) -> dict[str, Any]:
        """Its manifest as plain objects."""
        found: dict[str, Any] = msgspec.msgpack.decode(self.manifest[PREFIX.size :])
        return found


def seal(seed: Seed, manifest: dict[str, Any], payload: bytes) -> tuple[bytes, rollferry.TransferRef]:
    """The bytes of a manifest in the place of a seed's, with the right digest, and a reference that goes with it."""
    body = mutations.to_bytes({"id": seed.ref.id, **manifest})
    digest = xxhash.xxh3_128_digest(body)
    rows = manifest.get("rows")
    rows = rows if type(rows) is int and 0 <= rows < 1 << 62 else None
    ref = msgspec.structs.replace(seed.ref, nbytes=len(payload), rows=rows, digest=digest.hex())
    return PREFIX.pack(b"RFMF", 1, 0, digest) + body, ref


def header_for(seed: Seed, payload: bytes | bytearray, manifest: bytes) -> bytes:
    """The header of a segment with the key of a seed."""
    sizes = len(payload).to_bytes(8, "little") + len(manifest).to_bytes(8, "little")
    return seed.header[:16] + sizes + seed.header[32:]


class Hunter:
    """One directory with hostile segments, and a Ferry that reads them."""

    def __init__(self, root: Path, *, torch: bool) -> None:
        self.live = root / "live"
        self.ferry = rollferry.connect(f"shm://{root}")
        self.seeds = [self.make_seed(name, root) for name in CASES if torch or name not in TORCH]
        self.manifests = [seed.parsed() for seed in self.seeds]

    def make_seed(self, name: str, root: Path) -> Seed:
        """Put one golden batch."""
        case = CASES[name]
        with rollferry.connect(f"shm://{root}", **{**case.options, "checksum": True}) as ferry:
            seed = Seed.of(case.make(), ferry, self.live, name)
        return seed._replace(batch=(case.expected or case.make)())

    def run(self, number: int, index: int) -> str:
        """Run one case; say what came of it. Raises what must not be raised."""
        rng = Random(f"{number}:{index}")
        position = rng.randrange(len(self.seeds))
        seed = self.seeds[position]
        if index % 4 == 0:
            segment = mutations.damage(rng, seed.header + seed.payload + seed.manifest)
            return self.read(rng, segment, seed.ref, seed if rng.random() < 0.5 else None)
        if index % 4 == 1:
            parsed, payload = grammar.make(rng)
        else:
            parsed, payload = seed.parsed(), seed.payload
            if rng.random() < 0.9:
                with contextlib.suppress(RecursionError):  # of the copying of deeply nested lists
                    mutations.mutate(rng, parsed, self.manifests)
            if rng.random() < 0.4:
                payload = mutations.damage_payload(rng, payload)
            if rng.random() < 0.1:
                payload += bytes(64)
                parsed["payload_nbytes"] = len(payload)
        manifest, ref = seal(seed, parsed, payload)
        return self.read(rng, header_for(seed, payload, manifest) + payload + manifest, ref, None)

    def read(self, rng: Random, segment: bytes, ref: rollferry.TransferRef, intact: Seed | None) -> str:
        """Read a segment; where `intact` is given, its checksums have to notice every change."""
        path = self.live / ref.key
        path.unlink(missing_ok=True)  # not over the old one, which earlier results may have mapped
        path.write_bytes(segment)
        verify: Any = "auto" if intact is None and rng.random() < 0.9 else "full"
        lazy, readonly = rng.random() < 0.3, rng.random() < 0.3
        self.ferry.bundles()
        with contextlib.suppress(rollferry.RollferryError):
            self.ferry.describe(ref)
        try:
            if intact is None and rng.random() < 0.5:
                batch = self.read_some(rng, ref, lazy=lazy, readonly=readonly, verify=verify)
            else:
                # All fields by name are read as some of them are.
                fields = None if intact is None or rng.random() < 0.5 else list(intact.batch)
                lazy = lazy and intact is None
                batch = self.ferry.get(ref.to_json(), fields=fields, verify=verify, lazy=lazy, readonly=readonly)
        except (rollferry.RollferryError, MemoryError) as error:
            return type(error).__name__
        if intact is not None:
            wrong = differences(batch, intact.batch)
            assert not wrong, f"damage went unnoticed: {wrong[:3]}"
        touch(batch)
        return "read"

    def read_some(self, rng: Random, ref: rollferry.TransferRef, *, lazy: bool, readonly: bool, verify: Any) -> Any:
        """Read some rows, or one field in a form for training."""
        rows: Any = rng.choice(
            [None, [0], [], slice(1, 3), slice(None, None, -2), [1, 1, 0], [-1], slice(None), [True, False]]
        )
        everything = self.ferry.get(ref, rows=rows, lazy=lazy, readonly=readonly, verify=verify)
        names = list(everything)
        if names and rng.random() < 0.5:
            name = rng.choice(names)
            call = rng.choice([self.ferry.packed, self.ferry.padded])
            return {"field": everything, "form": tuple(call(ref, name, rows=rows))}
        fields = rng.sample(names, rng.randint(0, len(names)))
        return self.ferry.get(ref, fields=fields, rows=rows, verify=verify)


def touch(batch: Any) -> None:
    """Read all memory that a result is made of."""
    stack = [batch]
    steps = 0
    while stack and steps < 100_000:
        steps += 1
        value = stack.pop()
        if isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            stack += value
        elif isinstance(value, np.ndarray) and value.dtype == object:
            stack += value.reshape(-1).tolist()
        elif isinstance(value, rollferry.LazyRows | rollferry.LazyList):
            with contextlib.suppress(IndexError, rollferry.RollferryError, MemoryError):
                stack += value
        elif isinstance(value, np.ndarray | np.generic | str | bytes | bytearray):
            hash(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(memoryview_of(value)))
        elif type(value).__module__.startswith(("torch", "PIL")):
            # What torch and pillow say to odd but complete values is theirs; that they don't crash is what counts.
            with contextlib.suppress(Exception):
                bytes(value.tobytes() if hasattr(value, "tobytes") else value.clone().numpy())


def memoryview_of(value: Any) -> Any:
    """The bytes of an array, a scalar, or of bytes."""
    return value.tobytes() if isinstance(value, np.ndarray | np.generic) else value


# ---- the child process ----


def limit_memory(nbytes: int) -> None:
    """Let this process have so many bytes more than now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + nbytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def child(arguments: argparse.Namespace) -> None:
    """Run cases; print findings as lines of JSON, and note the case that runs, for when this process crashes."""
    signal.signal(signal.SIGALRM, too_slow)
    if not arguments.torch:
        sys.modules |= {"torch": None, "tensordict": None}  # type: ignore[dict-item]  # can't be imported
    root = Path(tempfile.mkdtemp(prefix="rollferry-test-", dir="/dev/shm"))
    counts: Counter[str] = Counter()
    try:
        hunter = Hunter(root, torch=arguments.torch)
        if arguments.limit:
            limit_memory(MEMORY)
        with open(arguments.note, "w") as note:
            for index in range(arguments.start, arguments.count):
                note.seek(0)
                note.write(f"{index:12}")
                note.flush()
                counts[one(hunter, arguments.seed, index)] += 1
    finally:
        shutil.rmtree(root)
    print(json.dumps({"counts": counts}), flush=True)


def one(hunter: Hunter, seed: int, index: int) -> str:
    """Run one case; print what is wrong with it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        # The alarm may come as late as while it is turned off.
        try:
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            outcome = hunter.run(seed, index)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (Exception, TooSlow) as error:
        trace = "".join(traceback.format_exception(error)[-6:])
        print(json.dumps({"seed": seed, "index": index, "what": type(error).__name__, "trace": trace}), flush=True)
        return "wrong"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if outcome == "MemoryError" or grown > 100_000:
        print(json.dumps({"seed": seed, "index": index, "what": "greedy", "mb": grown // 1000}), flush=True)
        return "greedy"
    return outcome


def too_slow(*_: object) -> None:
    """End a case."""
    raise TooSlow


# ---- the parent process ----


def hunt(
    count: int, seed: int, *, start: int = 0, torch: bool = True, limit: bool = True
) -> tuple[list[Finding], Counter[str]]:
    """Run cases in child processes, a new one after each crash; give findings and how often what came out."""
    findings: list[Finding] = []
    counts: Counter[str] = Counter()
    with tempfile.NamedTemporaryFile("r") as note:
        while start < count:
            command = [sys.executable, "-W", "error", __file__, "--child", "--note", note.name]
            command += ["--count", str(count), "--seed", str(seed), "--start", str(start)]
            command += ["--torch" if torch else "--no-torch", "--limit" if limit else "--no-limit"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
            lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            findings += [line for line in lines if "what" in line]
            if done.returncode == 0:
                counts.update(lines[-1]["counts"])
                break
            index = int(Path(note.name).read_text() or start)
            what = f"exit status {done.returncode}"
            findings.append({"seed": seed, "index": index, "what": what, "trace": done.stderr[-3000:]})
            start = index + 1
    return findings, counts


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this case alone")
    parser.add_argument("--torch", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--limit", action=argparse.BooleanOptionalAction, default=True, help="limit memory (not under ASan)"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--note", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return
    if arguments.only is not None:
        arguments.start, arguments.count = arguments.only, arguments.only + 1
    findings, counts = hunt(
        arguments.count, arguments.seed, start=arguments.start, torch=arguments.torch, limit=arguments.limit
    )
    for finding in findings:
        trace = finding.pop("trace", "")
        print(json.dumps(finding), trace, sep="\n", end="\n\n" if trace else "")
    print(dict(counts), f"{len(findings)} findings, seed {arguments.seed}")
    sys.exit(any(finding["what"] != "greedy" for finding in findings))


# ---- tests ----


def test_hostile_bundles() -> None:
    findings, counts = hunt(10_000, seed=1)
    assert not [finding for finding in findings if finding["what"] != "greedy"]
    assert counts["read"] > 1_000
    assert counts["BundleError"] > 4_000


class Bomb:
    """Unpickling it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_pickles_are_not_opened_unless_allowed(shm_directory: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    url = f"shm://{shm_directory}"
    with rollferry.connect(url, allow_pickle=True) as trusting, rollferry.connect(url) as ferry:
        ref = trusting.put({"bombs": [Bomb(mark)], "plain": [1]})
        for options in ({}, {"lazy": True}, {"readonly": True}):
            with pytest.raises(rollferry.UnsupportedValueError, match="allow_pickle"):
                ferry.get(ref, **options)["bombs"][0]
        assert not mark.exists()
        trusting.get(ref)  # the bomb is a real one
        assert mark.exists()


@pytest.mark.parametrize("place", ["value", "keys", "child"])
def test_bytes_do_not_become_pickles(shm_directory: Path, tmp_path: Path, place: str) -> None:
    mark = tmp_path / "mark"
    data = pickle.dumps(Bomb(mark))
    maker = grammar.Maker(Random(0), badness=0)
    text = maker.add("text", 1, type="bytes", offsets=maker.offsets([len(data)]), data=maker.member(data))
    column = maker.add("pickled", 1, column=text)
    if place == "child":
        column = maker.add("sequence", 1, type="list", offsets=maker.offsets([1]), items=column)
    keys = {"keys": column} if place == "keys" else {}
    column = maker.null(1, 0) if place == "keys" else column
    manifest = maker.manifest([{"key": "field", "form": "value", "column": column}]) | keys
    with rollferry.connect(f"shm://{shm_directory}") as ferry:
        live = shm_directory / "live"
        seed = Seed.of({}, ferry, live)
        sealed, ref = seal(seed, manifest, bytes(maker.payload))
        (live / ref.key).write_bytes(header_for(seed, maker.payload, sealed) + maker.payload + sealed)
        with pytest.raises(rollferry.UnsupportedValueError, match="allow_pickle"):
            ferry.get(ref)
    assert not mark.exists()


if __name__ == "__main__":
    main()
