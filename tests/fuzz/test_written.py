"""Bundles that another process writes to while they are read give values, or RollferryError: never a crash.

    python tests/fuzz/test_written.py --count 300

Offsets that are checked and then read again would be used unchecked. Exit status 0: nothing was found.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import rollferry
from rollferry.bundle.manifest import Manifest
from rollferry.bundle.stages import open_manifest
from tests.fuzz.test_hostile import HEADER_NBYTES, touch

ROWS = 2000
VALUES = (-1, 1, 1 << 20, 1 << 40, -(1 << 63), (1 << 63) - 1)


def batch(*, torch: bool) -> dict[str, Any]:
    """Rows of every layout that has offsets, shapes, tags or numbers of other rows."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 5, ROWS).tolist()
    again = [np.arange(length) for length in lengths[:40]]
    words = ["", "plain text", "ünïcode", "a" * 40]
    found: dict[str, Any] = {
        "ragged": [np.arange(length, dtype=np.float32) for length in lengths],
        "shapes": [np.ones((length, 2 + length % 2), np.int16) for length in lengths],
        "text": [words[length % 4] + str(i) for i, length in enumerate(lengths)],
        "bytes": [bytes(length) for length in lengths],
        "tokens": [list(range(length)) for length in lengths],
        "texts": [words[:length] for length in lengths],
        "tuples": [tuple({"a": i} for i in range(length)) for length in lengths],
        "records": [{"a": 1, **({"b": 2.5} if length > 2 else {})} for length in lengths],
        "maps": [{f"{i}": i, f"{i + 1}": length} for i, length in enumerate(lengths)],
        "mixed": [None if length > 3 else length if length > 1 else str(length) for length in lengths],
        "shared": [again[i % 40] for i in range(ROWS)],
        "shared again": [[again[i % 40]] for i in range(ROWS)],
        "objects": [np.array([None] * length, object) for length in lengths],
    }
    if torch:
        import torch as library

        rows = [library.ones(length + 1) for length in lengths]
        found["tensors"] = rows
        found["jagged"] = library.nested.nested_tensor(rows, layout=library.jagged)
    return found


def write_forever(path: Path, manifest: Manifest, seed: int) -> None:
    """Put something else in the place of a member, and the member back, again and again."""
    rng = Random(seed)
    payload = np.memmap(path, np.uint8, "r+", HEADER_NBYTES, (manifest.payload_nbytes,))
    members = [member for member in manifest.members if member.nbytes >= 8]
    while True:
        member = rng.choice(members)
        whole = payload[member.offset : member.offset + member.nbytes // 8 * 8].view(np.int64)
        right = whole.copy()
        for _ in range(rng.randrange(1, 60)):
            start = rng.randrange(len(right)) if rng.random() < 0.5 else 0
            whole[start:] = rng.choice(VALUES) if rng.random() < 0.7 else right[start:][::-1]
            whole[:] = right


def read(rng: Random, ferry: rollferry.Ferry, ref: rollferry.TransferRef, names: list[str]) -> str:
    """Read one field in one way, and look at all that comes back; say what came of it."""
    name = rng.choice(names)
    rows = rng.choice([None, None, slice(1, None, 2), rng.choices(range(ROWS), k=100)])
    ways: list[Callable[[], Any]] = [
        lambda: ferry.get(ref, fields=[name], rows=rows),
        lambda: ferry.get(ref, fields=[name], rows=rows, lazy=True, readonly=True),
        lambda: ferry.packed(ref, name, rows=rows).values,
        lambda: ferry.padded(ref, name, rows=rows) if name != "shared" else None,
        lambda: in_place(ferry, ref, name),
    ]
    try:
        found = rng.choice(ways)()
        if name == "jagged" and isinstance(found, dict):
            found = found[name].to_padded_tensor(0.0)
        touch(found)
    except (rollferry.RollferryError, MemoryError) as error:
        return type(error).__name__
    return "read"


def in_place(ferry: rollferry.Ferry, ref: rollferry.TransferRef, name: str) -> Any:
    """Read a field into a buffer."""
    shape = (sum(np.random.default_rng(7).integers(0, 5, ROWS)),)
    return ferry.get(ref, fields=[name], into={name: np.empty(shape, np.float32)})


def child(count: int, seed: int, *, torch: bool) -> None:
    """Read while another process writes; print how often what came out."""
    if not torch:
        sys.modules |= {"torch": None, "tensordict": None}  # type: ignore[dict-item]  # can't be imported
    root = Path(tempfile.mkdtemp(prefix="rollferry-test-", dir="/dev/shm"))
    counts: Counter[str] = Counter()
    writer = 0
    try:
        with rollferry.connect(f"shm://{root}") as ferry:
            everything = batch(torch=torch)
            for name, values in everything.items():
                names = [name] if name != "shared again" else ["shared", name]
                ref = ferry.put({key: everything[key] for key in names} if len(names) > 1 else {name: values})
                manifest, _ = open_manifest(ferry._engine, ref.key)
                writer = os.fork()
                if writer == 0:
                    write_forever(root / "live" / ref.key, manifest, seed)
                rng = Random(f"{seed}:{name}")
                for _ in range(count):
                    counts[read(rng, ferry, ref, names)] += 1
                os.kill(writer, signal.SIGKILL)
                os.waitpid(writer, 0)
                writer = 0
    finally:
        if writer:
            with suppress(ProcessLookupError):
                os.kill(writer, signal.SIGKILL)
        shutil.rmtree(root)
    print(dict(counts), flush=True)


def test_bundles_that_are_written_to() -> None:
    command = [sys.executable, "-W", "error", "-W", "ignore:The PyTorch API", __file__, "--count", "60"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert "'read'" in done.stdout
    assert "'BundleError'" in done.stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="reads of each field")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--torch", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    child(arguments.count, arguments.seed, torch=arguments.torch)
