"""Small bundles that ask for much: a size in them must never cost more memory or time than their bytes warrant.

Each case is read in a forked child with little memory and time; it has to be refused with a RollferryError, not with a
MemoryError, and not by the kernel.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest

import rollferry
from tests.fuzz.grammar import Maker
from tests.fuzz.test_hostile import Seed, header_for, limit_memory, seal, touch

MEMORY = 200 << 20
SECONDS = 5
HUGE = 1 << 40
CASES: dict[str, Callable[[Maker], int]] = {}


def case(build: Callable[[Maker], int]) -> Callable[[Maker], int]:
    """Note a case: it appends columns, the last of them a hostile one of one row."""
    CASES[build.__name__] = build
    return build


def registered(maker: Maker, name: str, parts: int) -> int:
    return maker.add("registered", 1, name=name, parts=parts)


def long_range(maker: Maker) -> int:
    return registered(maker, "range", maker.tuples(1, [one_int(maker, value) for value in (0, HUGE, 1)]))


def one_int(maker: Maker, value: int) -> int:
    return maker.add("numbers", 1, type="int", dtype="<i8", data=maker.ints([value]))


@case
def null_rows(maker: Maker) -> int:
    return maker.add("null", HUGE, bitmap=maker.member(bytes(64)))


@case
def text_rows(maker: Maker) -> int:
    return maker.add("text", HUGE, type="str", offsets=maker.ints([0, 0]), data=maker.member(b""))


@case
def record_rows(maker: Maker) -> int:
    return maker.add("record", HUGE, keys=[], columns=[], shapes=[[]], tags=maker.member(bytes(8)))


@case
def ragged_scalars(maker: Maker) -> int:
    rest = {"library": "numpy", "dtype": "|u1", "ndim": 0, "values": maker.member(bytes(64))}
    return maker.add("ragged", 1 << 33, **rest)


@case
def ragged_tensor_scalars(maker: Maker) -> int:
    rest = {"library": "torch", "dtype": "uint8", "ndim": 0, "values": maker.member(bytes(64))}
    return maker.add("ragged", 1 << 33, **rest)


@case
def original_dtype(maker: Maker) -> int:
    rest = {"dtype": "|u1", "original": "<U200000000", "shape": [64], "values": maker.member(bytes(64))}
    return maker.add("dense", 1, library="numpy", **rest)


@case
def unit_of_no_length(maker: Maker) -> int:
    # numpy divides by it when it converts, which ends the process.
    rest = {"dtype": "<M8[s]", "original": "<M8[0s]", "shape": [8], "values": maker.member(bytes(64))}
    return maker.add("dense", 1, library="numpy", **rest)


@case
def zero_width_scalar(maker: Maker) -> int:
    return registered(maker, "numpy.zero_width_scalar", maker.strings(['"|V2147483647"']))


@case
def zero_width_text_array(maker: Maker) -> int:
    parts = maker.tuples(1, [maker.strings(['"|S0"']), maker.lists([[HUGE]])])
    return registered(maker, "numpy.zero_width", parts)


@case
def set_of_range(maker: Maker) -> int:
    return registered(maker, "set", long_range(maker))


@case
def frozenset_of_range(maker: Maker) -> int:
    return registered(maker, "frozenset", long_range(maker))


@case
def complex_of_range(maker: Maker) -> int:
    return registered(maker, "complex", long_range(maker))


@case
def size_of_range(maker: Maker) -> int:
    return registered(maker, "torch.Size", long_range(maker))


@case
def stack_of_range(maker: Maker) -> int:
    return registered(maker, "tensordict.NonTensorStack", maker.tuples(1, [long_range(maker), one_int(maker, 0)]))


@case
def dataclass_of_range(maker: Maker) -> int:
    return registered(maker, "golden:Turn", long_range(maker))


@case
def bytes_of_int(maker: Maker) -> int:
    return registered(maker, "numpy.bytes_", one_int(maker, 1 << 33))


@case
def image_without_width(maker: Maker) -> int:
    size = maker.lists([[0, (1 << 31) - 1]])
    nothing = [maker.add("null", 1, bitmap=maker.member(b"\0")) for _ in range(2)]
    attributes = maker.tuples(1, [maker.strings(["L"]), size, *nothing])
    return maker.add("media", 1, attributes=attributes, offsets=maker.ints([0, 0]), pixels=maker.member(b""))


@case
def object_array_shape(maker: Maker) -> int:
    return maker.add("objects", 1, shapes=maker.lists([[(1 << 62) + 1] * 300_000]), items=one_int(maker, 0))


@case
def jagged_offsets(maker: Maker) -> int:
    values = {"dtype": "float32", "shape": [16], "values": maker.member(bytes(64))}
    offsets = {"dtype": "int64", "shape": [3], "values": maker.ints([0, 1 << 28, 1 << 30])}
    tensors = [maker.add("dense", 1, library="torch", **rest) for rest in (values, offsets)]
    nothing = maker.add("null", 1, bitmap=maker.member(b"\0"))
    return registered(maker, "torch.jagged", maker.tuples(1, [*tensors, nothing, one_int(maker, 1)]))


@case
def jagged_column_offsets(maker: Maker) -> int:
    values = {"dtype": "float32", "shape": [16], "values": maker.member(bytes(64))}
    offsets = {"dtype": "int64", "shape": [3], "values": maker.ints([0, 1 << 28, 1 << 30])}
    tensors = [maker.add("dense", 1, library="torch", **rest) for rest in (values, offsets)]
    nothing = maker.add("null", 1, bitmap=maker.member(b"\0"))
    names = ("values", "offsets", "lengths", "axes")
    return maker.add("jagged", 1, **dict(zip(names, [*tensors, nothing, one_int(maker, 1)], strict=True)))


def read(ferry: rollferry.Ferry, live: Path, seed: Seed, name: str) -> str:
    """Read one case, and say what came of it."""
    maker = Maker(Random(0), badness=0)
    column = CASES[name](maker)
    manifest = maker.manifest([{"key": "field", "form": "value", "column": column}])
    sealed, ref = seal(seed, manifest, bytes(maker.payload))
    (live / ref.key).unlink(missing_ok=True)
    (live / ref.key).write_bytes(header_for(seed, maker.payload, sealed) + maker.payload + sealed)
    try:
        batch = ferry.get(ref)
    except (Exception, MemoryError) as error:
        return type(error).__name__
    touch(batch)
    return "read"


def forked(work: Callable[[], str]) -> str:
    """Do work in a child with little memory and time."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        limit_memory(MEMORY)
        os.write(writing, work().encode())
        os._exit(0)
    os.close(writing)
    outcome = os.read(reading, 1000).decode()
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return outcome or signal.Signals(-status).name


def run_all(read: Callable[[rollferry.Ferry, Path, Seed, str], str], names: Iterable[str]) -> None:
    """Print the outcome of each case as JSON."""
    import tensordict  # noqa: F401  # before the fork, not in each child
    import torch  # noqa: F401

    warnings.simplefilter("ignore")
    root = Path(tempfile.mkdtemp(prefix="rollferry-test-", dir="/dev/shm"))
    try:
        with rollferry.connect(f"shm://{root}") as ferry:
            seed = Seed.of({}, ferry, root / "live")
            outcomes = {name: forked(lambda: read(ferry, root / "live", seed, name)) for name in names}
    finally:
        shutil.rmtree(root)
    print(json.dumps(outcomes))


def outcomes_of(program: str) -> dict[str, str]:
    """Run a program that prints the outcomes of its cases."""
    command = [sys.executable, program]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return outcomes_of(__file__)


@pytest.mark.parametrize("name", sorted(CASES))
def test_is_refused(outcomes: dict[str, str], name: str) -> None:
    # An array of any length takes no memory where its items have none.
    assert outcomes[name] == ("read" if name == "zero_width_text_array" else "BundleError")


if __name__ == "__main__":
    run_all(read, CASES)
