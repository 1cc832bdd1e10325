"""Fork: the child works on, the parent notices nothing, and nobody hangs."""

from collections.abc import Callable
from pathlib import Path

import pytest

# What every script starts with. A child that hangs is ended by its alarm, which `wait` then reports.
SETUP = """
import faulthandler, multiprocessing, os, signal, sys, threading, warnings
import numpy as np
import rollferry

warnings.filterwarnings("ignore", message=".*use of fork\\\\(\\\\) may lead to deadlocks")  # Python 3.12 and later
ferry = rollferry.connect(sys.argv[1])

faulthandler.dump_traceback_later(200)

def batch(seed, rows=40):
    rng = np.random.default_rng(seed)
    return {"rows": [rng.integers(0, 99, n) for n in rng.integers(0, 3000, rows)], "ints": rng.integers(0, 9, rows).tolist()}

def same(result, seed):
    wanted = batch(seed)
    assert result["ints"] == wanted["ints"]
    assert all(np.array_equal(a, b) for a, b in zip(result["rows"], wanted["rows"], strict=True))

def cycle(seed):
    ref = ferry.put(batch(seed))
    same(ferry.get(ref.to_json()), seed)
    assert ferry.remove(ref)

def watch():
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(60)

def fork(work, *arguments):
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    watch()
    code = 1
    try:
        work(*arguments)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(code)

def wait(pid):
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"a child ended with status {status}"
"""
CLEAN = """
ferry.close()
for folder in ("live", "tmp"):
    left = os.listdir(sys.argv[1].removeprefix("shm://") + "/" + folder)
    assert not left, left
print("done")
"""

IDLE = """
cycle(1)
before = ferry.put(batch(2))
result = ferry.get(before)

def child():
    same(result, 2)
    result["rows"][0][:] = -1  # the child's own from here on
    same(ferry.get(before), 2)
    for seed in range(10, 20):
        cycle(seed)
    sys.stdout.write(ferry.put(batch(3)).to_json() + "\\n")
    sys.stdout.flush()

read, write = os.pipe()
out = os.dup(1)
os.dup2(write, 1)
pid = fork(child)
os.dup2(out, 1)
os.close(write)
for seed in range(20, 30):
    cycle(seed)
wait(pid)
with os.fdopen(read) as lines:
    made = lines.readline()
same(ferry.get(made), 3)
same(result, 2)
assert ferry.remove(made) and ferry.remove(before)
cycle(4)
"""

# Children forked while threads are in the middle of puts: their writers must not hold the parent's locks or descriptors.
BUSY = """
stop = threading.Event()
def put():
    seed = threading.get_ident() % 1000
    while not stop.is_set():
        cycle(seed)
threads = [threading.Thread(target=put) for _ in range(3)]
cycle(0)  # no imports in threads: Python itself hangs in a child that was forked during one
for thread in threads:
    thread.start()
try:
    for _ in range(12):
        pids = [fork(lambda n=n: [cycle(seed) for seed in range(n, n + 5)]) for n in (100, 200)]
        for pid in pids:
            wait(pid)
finally:
    stop.set()
    for thread in threads:
        thread.join()
for seed in range(5):
    cycle(seed)
"""

# The parent's writer ends while the child lives; its segment must be free for others all the same.
LONG_LIVED_CHILD = """
from rollferry.engines.shm.writer import ShmWriter
entered, go = threading.Event(), threading.Event()
publish = ShmWriter.publish
def slow(self, manifest):
    if threading.current_thread() is not threading.main_thread():
        entered.set()
        go.wait()
    publish(self, manifest)
ShmWriter.publish = slow
refs = []
thread = threading.Thread(target=lambda: refs.append(ferry.put(batch(1))))
thread.start()
entered.wait()
read, write = os.pipe()
started, starting = os.pipe()
def child():
    os.close(write)
    os.write(starting, b"x")
    os.read(read, 1)
    cycle(2)
pid = fork(child)
os.close(read)
os.read(started, 1)
go.set()
thread.join()
same(ferry.get(refs[0]), 1)
live = sys.argv[1].removeprefix("shm://") + "/live/"
inode = os.stat(live + refs[0].key).st_ino
ferry.remove(refs[0])
again = ferry.put(batch(1))
assert os.stat(live + again.key).st_ino == inode, "the child keeps the segment locked"
os.close(write)
wait(pid)
same(ferry.get(again), 1)
ferry.remove(again)
"""

# A view that only the child still has keeps its segment from reuse.
LEASE_OF_THE_CHILD = """
ref = ferry.put(batch(1))
result = ferry.get(ref)
read, write = os.pipe()
def child():
    os.close(write)
    os.read(read, 1)
    same(result, 1)
pid = fork(child)
os.close(read)
result.clear()
ferry.remove(ref)
for seed in range(2, 8):
    ferry.remove(ferry.put(batch(seed)))
os.close(write)
wait(pid)
cycle(8)
"""

# A lease of the parent's outlives the child.
LEASE_OF_THE_PARENT = """
ref = ferry.put(batch(1))
result = ferry.get(ref)
wait(fork(lambda: result.clear()))
wait(fork(ferry.close))
ferry.remove(ref)
for seed in range(2, 8):
    ferry.remove(ferry.put(batch(seed)))
same(result, 1)
"""

# Ended as multiprocessing ends them, with finalizers and atexit functions.
MULTIPROCESSING = """
def child(queue, ref):
    watch()
    same(ferry.get(ref), 1)
    cycle(5)
    queue.put(ferry.put(batch(6)).to_json())

context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
ref = ferry.put(batch(1))
children = [context.Process(target=child, args=(queue, ref)) for _ in range(3)]
for process in children:
    process.start()
made = [queue.get() for _ in children]
for process in children:
    process.join()
    assert process.exitcode == 0, process.exitcode
for text in made:
    same(ferry.get(text), 6)
    assert ferry.remove(text)
same(ferry.get(ref), 1)
ferry.remove(ref)
"""

# A child that is killed in the middle, and one that forks again.
KILLED_AND_NESTED = """
def endless():
    while True:
        cycle(1)
pid = fork(endless)
for seed in range(5):
    cycle(seed)
os.kill(pid, signal.SIGKILL)
assert os.waitpid(pid, 0)[1] == signal.SIGKILL
for ref in ferry.list():  # it may have died between its put and its remove
    os.unlink(f"{sys.argv[1].removeprefix('shm://')}/live/default.{ref}")
wait(fork(lambda: (cycle(2), wait(fork(cycle, 3)), cycle(4))))
cycle(5)
"""

INPROC = """
other = rollferry.connect("inproc://")
ref = other.put(batch(1))
wait(fork(lambda: (same(other.get(ref), 1), other.put(batch(2)), other.remove(ref))))
same(other.get(ref), 1)
assert len(other.list()) == 1
"""

# torch's threads don't live on in the child, where all that they would do hangs.
TORCH = """
import torch
value = torch.arange(1_000_000).reshape(1000, 1000)
def strided():
    ref = ferry.put({"t": value.t()})
    assert np.array_equal(ferry.get(ref)["t"].numpy(), value.numpy().T)
    ferry.remove(ref)
strided()
wait(fork(strided))
strided()
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(IDLE, id="idle"),
        pytest.param(BUSY, id="busy"),
        pytest.param(LONG_LIVED_CHILD, id="long-lived child"),
        pytest.param(LEASE_OF_THE_CHILD, id="lease of the child"),
        pytest.param(LEASE_OF_THE_PARENT, id="lease of the parent"),
        pytest.param(MULTIPROCESSING, id="multiprocessing"),
        pytest.param(KILLED_AND_NESTED, id="killed and nested"),
        pytest.param(INPROC, id="inproc"),
        pytest.param(TORCH, id="torch"),
    ],
)
def test_fork(script: str, shm_directory: Path, python: Callable[..., str]) -> None:
    assert python(SETUP + script + CLEAN, f"shm://{shm_directory}") == "done\n"


QUIET = """
import sys, rollferry, numpy as np
ferry = rollferry.connect(sys.argv[1])
held = ferry.get(ferry.put({"a": [np.arange(4)] * 3, "t": ["x"], "d": np.ones(3)}))
loop = [held]
loop.append(loop)
assert not any(name.startswith("multiprocessing") for name in sys.modules), "multiprocessing was imported"
assert not {"torch", "PIL", "tensordict"} & set(sys.modules)
"""


@pytest.mark.parametrize("end", ["", "ferry.close()", "sys.exit(0)", "sys.stderr.flush(); import os; os._exit(0)"])
def test_processes_end_silently_whatever_they_hold(end: str, shm_directory: Path, python: Callable[..., str]) -> None:
    python(QUIET + end, f"shm://{shm_directory}")
