"""The benchmark: its batches and judgements, what it leaves out, and one small run of every arm that is installed."""

import contextlib
import gc
import importlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from rollferry import LazyRows
from rollferry.bench import children, floors, pair, plan, report, session, touch, worker, workloads
from rollferry.bench.arms import ARMS
from rollferry.bench.children import Child
from rollferry.bench.errors import BenchError, MismatchError, Refused
from rollferry.bench.fidelity import EXACT, TYPES, VALUES, judge, same_values
from rollferry.bench.options import BenchOptions, parse_size, parse_sizes
from rollferry.bench.plot import draw
from rollferry.bench.results import FIGURES, ArmResult, Floor, Report, Run, Spread, Trial
from rollferry.bench.workloads import WORKLOADS, Source
from rollferry.cli import app
from rollferry.cli.bench import bench as command
from rollferry.testing import assert_same

EMBEDDED = ("shm", "shm-lazy", "shm-readonly", "pickle-shm", "pickle-disk")
TINY = {"samples": 5, "trials": 2, "cold": False}


def quiet() -> Console:
    return Console(file=io.StringIO(), width=150)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# --- batches


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_the_same_in_every_process(name: str) -> None:
    if WORKLOADS[name].needs:
        pytest.importorskip(WORKLOADS[name].needs)
    first, second = Source(name, 6).make(), Source(name, 6).make()
    assert_same(first, second)
    assert all(len(value) == 6 for value in first.values())
    assert first.keys() != Source("dense", 1).make().keys() or name == "dense"


def test_shuffled_rows_are_the_same_rows() -> None:
    assert_same(workloads.rows_shuffled(30), workloads.rows(30))


def test_varied_rows_vary() -> None:
    batch = workloads.rows_varied(40)
    assert len(set(batch["rewards"])) == 40
    assert len({len(row) for row in batch["tokens"]}) > 10
    assert [len(row) for row in batch["loss_masks"]] == batch["response_lengths"]


# --- judgements


def test_judge_tells_values_from_types() -> None:
    expected = {"rows": [np.arange(3, dtype=np.int32)], "texts": [["a"], None], "numbers": [1.5, float("nan")]}
    assert judge(expected, expected, exact=True) == (EXACT, [])
    other = {"numbers": np.array([1.5, np.nan]), "rows": [np.arange(3)], "texts": np.array([["a"], None], dtype=object)}
    kind, notes = judge(other, expected, exact=False)
    assert kind == TYPES
    assert any("numbers" in note for note in notes)
    kind, notes = judge(expected | {"numbers": [1.5, 2.0]}, expected, exact=False)
    assert kind == VALUES
    with pytest.raises(MismatchError, match="rows"):
        judge({**expected, "rows": [np.arange(3)]}, expected, exact=True)


def test_judge_cuts_lazy_rows() -> None:
    lazy = LazyRows(np.arange(5), np.array([0, 2, 5]))
    assert judge({"a": lazy}, {"a": [np.arange(2), np.arange(2, 5)]}, exact=True) == (EXACT, [])
    assert judge({"a": lazy}, {"a": (np.arange(2), np.arange(2, 5))}, exact=True) == (EXACT, [])


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ([1, 2], (1, 2), True),
        ([1, 2], np.array([1.0, 2.0]), True),
        ([1, 2], [1, 2, 3], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"b": 1}, False),
        ({"a": 1}, [1], False),
        (np.zeros((2, 3)), np.zeros((3, 2)), False),
        (np.zeros((2, 1)), [[0], [0]], True),
        ("ab", ["a", "b"], False),
        (None, 0, False),
        (np.array(["x"]), ["x"], True),
    ],
)
def test_same_values(left: Any, right: Any, same: bool) -> None:
    assert same_values(left, right) is same
    assert same_values(right, left) is same


def test_touch_reads_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    class Digest:
        def update(self, data: Any) -> None:
            read.append(memoryview(data).nbytes)

    monkeypatch.setattr(touch.xxhash, "xxh3_64", Digest)
    shared = np.ones(3)
    touch.touch(
        {
            "arrays": [
                shared,
                np.zeros((2, 2)).T,
                np.array(["2020"], dtype="M8[s]"),
                np.array([None, "x", shared], object),
            ],
            "values": [1, 2.0, None, "\ud800", b"x", bytearray(b"y"), (1, [2, {"a": shared}])],
            "lazy": LazyRows(np.arange(5), np.array([0, 2, 5])),
            "empty": np.zeros((0, 4)),
        }
    )
    assert sorted(read) == sorted([24, 32, 8, 24, 1, 1, 24, 40, 24, 0])


def test_touch_reads_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    read: list[int] = []
    monkeypatch.setattr(
        touch.xxhash, "xxh3_64", lambda: type("", (), {"update": lambda _, data: read.append(len(data))})()
    )
    touch.touch({"rows": [torch.ones(3), torch.ones((2, 2), dtype=torch.bfloat16).T], "none": None})
    assert sorted(read) == [8, 12]


def test_floor_of_get_is_over_rows_of_arrays_only() -> None:
    columns = floors.ndarray_columns(
        {
            "rows": [np.zeros((2, 3), np.int8), np.zeros((0, 3), np.int8), np.zeros((4, 3), np.int8)],
            "several": [np.zeros(2), np.zeros(2, np.int8)],
            "scalars": [np.zeros(()), np.zeros(())],
            "numbers": [1, 2],
            "dense": np.zeros(4),
        }
    )
    assert [(values.shape, offsets.tolist()) for values, offsets in columns] == [((6, 3), [0, 2, 2, 6])]
    assert floors.ViewsFloor({"numbers": [1]}).measure() == {}
    [(title, against, seconds)] = floors.ViewsFloor({"rows": [np.zeros(2)]}).measure().values()
    assert (title, against) == ("making its views in C", "get")
    assert seconds > 0


def test_floor_of_put_copies_with_one_thread_and_with_all(shm_directory: Path) -> None:
    floor = floors.CopyFloor(100_003, str(shm_directory))
    names = {"copy-1", f"copy-{len(os.sched_getaffinity(0))}"}
    assert floor.measure().keys() == names
    assert (floor._target == 1).all()
    floor.close()
    assert list(shm_directory.iterdir()) == []


# --- figures


def trial(put: float, get: float) -> Trial:
    return Trial(put, get, 0.0, 0.0, 0.0, 0.0, {"pack": put}, {}, 1, 1, 0, 0, 0, 0, True)


def small_run(nbytes: int = 10) -> Run:
    return Run(
        "rows",
        "title",
        1,
        nbytes,
        arms={
            "shm": ArmResult("shm", "", "", trials=[trial(1.0, 2.0), trial(3.0, 4.0), trial(2.0, 9.0)]),
            "pickle-shm": ArmResult("pickle-shm", "", "", trials=[trial(10.0, 1.0)]),
        },
        floors={
            "copy-1": Floor("copy-1", "", "put", [0.5, 0.5]),
            "copy-2": Floor("copy-2", "", "put", [0.25]),
        },
    )


def test_ratios() -> None:
    run = small_run()
    assert run.arms["shm"].spread("put") == Spread(2.0, 1.0, 3.0)
    assert run.arms["shm"].phases("put") == {"pack": 2.0}
    assert run.over_floor("shm", "put") == 8.0  # the lower floor counts
    assert run.over_floor("shm", "get") is None
    assert run.speedup("shm", "put", "pickle-shm") == 5.0
    assert run.speedup("shm", "get", "pickle-shm") == 0.25
    assert run.speedup("shm", "put", "ray") is None


# --- what is measured, and what is not


def test_sizes() -> None:
    assert parse_size("64mb") == 64 << 20
    assert parse_size("1.5 KB") == 1536
    assert parse_sizes("1mb..20mb") == (1 << 20, 4 << 20, 16 << 20, 20 << 20)
    assert parse_sizes("2gb") == (2 << 30,)
    assert parse_sizes("") == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": ("shm", "nosuch")}, "there is no arm nosuch; choose from shm"),
        ({"baseline": "x"}, "there is no arm x"),
        ({"workloads": ("nosuch",)}, "there is no workload nosuch"),
        ({"trials": 0}, "at least one trial"),
        ({"size": "12 parsecs"}, "'12 parsecs' is no size"),
        ({"size": "2mb..1mb"}, "does not grow"),
        ({"size": "0mb"}, "no size"),
        ({"memory": "much"}, "'much' is no size"),
        ({"samples": 3, "size": "1mb"}, "not several"),
        ({"samples": 3, "sweep": True}, "not several"),
        ({"size": "1mb..4mb", "sweep": True}, "not several"),
        ({"quick": True, "sweep": True}, "not several"),
        ({"json_file": "/no/such/directory/x.json"}, "there is no directory /no/such/directory"),
        ({"json_file": "/"}, "/ can't be written"),
        ({"png": "/no/such/directory/x.png"}, "there is no directory /no/such/directory"),
        ({"png": "x.jpeg2"}, "x.jpeg2 is no picture; choose from .png"),
        ({"segment_at": "moon"}, "'moon' is no side"),
        ({"file": "nosuch.json"}, "there is no file nosuch.json"),
        ({"file": "x.npz", "workloads": ("rows",)}, "a file is measured as it is"),
    ],
)
def test_bad_options_say_what_is_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BenchOptions(**options)


def test_a_pickled_file_needs_permission(tmp_path: Path) -> None:
    file = tmp_path / "batch.pkl"
    file.write_bytes(pickle.dumps({"a": [1, 2]}))
    with pytest.raises(ValueError, match="--allow-pickle"):
        BenchOptions(file=str(file))
    assert Source("", 0, BenchOptions(file=str(file), allow_pickle=True).file, allow_pickle=True).make() == {
        "a": [1, 2]
    }
    file.write_bytes(b"no pickle")
    with pytest.raises(ValueError, match="can't be unpickled"):
        Source("", 0, str(file), allow_pickle=True).make()
    file.write_bytes(pickle.dumps([1]))
    with pytest.raises(ValueError, match="not list"):
        Source("", 0, str(file), allow_pickle=True).make()


def test_a_torch_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"a": [torch.arange(3)]}, tmp_path / "batch.pt")
    source = Source("", 0, str(tmp_path / "batch.pt"), allow_pickle=True)
    assert_same(source.make(), {"a": [torch.arange(3)]})


class FakeWorker:
    """Says that a sample has 1,000 bytes, and 3,000 of objects."""

    def __enter__(self) -> "FakeWorker":
        return self

    def __exit__(self, *_: object) -> None: ...

    def ask(self, do: str, source: Source, least_nbytes: int) -> dict[str, Any]:
        assert do == "measure"
        return {"per_sample": 1000.0, "objects": 3.0}


def test_a_sweep_ends_where_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "available_nbytes", lambda: 100 << 30)
    options = BenchOptions(arms=("shm",), size="1mb..2gb", memory="3gb")
    planned, left_out = plan.plan(options, ["shm"], FakeWorker)  # type: ignore[arg-type]
    assert [round(batch.nbytes / 2**20) for batch in planned] == [1, 4, 16, 64]
    assert [left.what for left in left_out] == ["rows of 256 MiB", "rows of 1,024 MiB", "rows of 2,048 MiB"]
    assert "GiB; the limit is 3.0 (--memory)" in left_out[0].reason
    monkeypatch.setattr(plan, "available_nbytes", lambda: 1 << 30)
    planned, left_out = plan.plan(options, ["shm"], FakeWorker)  # type: ignore[arg-type]
    assert [round(batch.nbytes / 2**20) for batch in planned] == [1, 4, 16]


def test_needs_grow_with_batch_and_arms() -> None:
    assert plan.needed_nbytes(1 << 20, 1.0, ["shm"]) < plan.needed_nbytes(2 << 20, 1.0, ["shm"])
    assert plan.needed_nbytes(1 << 20, 1.0, ["shm"]) < plan.needed_nbytes(1 << 20, 5.0, ["shm"])
    assert plan.needed_nbytes(1 << 20, 1.0, ["shm"]) < plan.needed_nbytes(1 << 20, 1.0, ["shm", "ray"])
    assert plan.needed_nbytes(136 << 20, 1.2, list(ARMS)) < parse_size(BenchOptions().memory)
    # What torch-rows takes is 3.7 GiB: the PSS of all processes, with all arms.
    assert 3775 << 20 < plan.needed_nbytes(97 << 20, 1.87, list(ARMS)) < parse_size(BenchOptions().memory)
    assert plan.limit_nbytes(5, 0) == 5


def test_samples_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def samples(**options: Any) -> list[int]:
        planned, _ = plan.plan(BenchOptions(workloads=("shard", "rows"), **options), ["shm"], FakeWorker)  # type: ignore[arg-type]
        return [batch.source.samples for batch in planned]

    assert samples() == [64, 39_221]
    assert samples(samples=7) == [7, 7]
    assert samples(quick=True) == [64, 8389]
    assert samples(size="4kb") == [4, 4]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ARMS["ray-objects"], "missing", lambda: "ray isn't installed")
    console = quiet()
    options = BenchOptions(arms=("pickle-disk", "ray-objects"), samples=2, trials=1, cold=False)
    found = session.run_and_show(options, console=console)
    assert [(left.what, left.reason) for left in found.left_out] == [("ray-objects", "ray isn't installed")]
    assert "left out: ray-objects: ray isn't installed" in text_of(console)
    with pytest.raises(BenchError, match="nothing left to measure: ray-objects: ray isn't installed"):
        session.run_and_show(msgspec.structs.replace(options, arms=("ray-objects",)), console=quiet())


def test_imports_are_no_memory_of_a_batch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with Child("worker", log=tmp_path / "log") as child:
        kind = child.ask("measure", source=Source("torch-rows", 64), least_nbytes=4 << 20)
    assert 1000 < kind["per_sample"] < 1100
    assert kind["objects"] < 5  # torch itself is some 20 times these 4 MiB


def test_missing_workloads_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "torch-rows", replace(WORKLOADS["torch-rows"], needs="nosuchpackage"))
    _, left_out = plan.plan(BenchOptions(workloads=("torch-rows",)), ["shm"], FakeWorker)  # type: ignore[arg-type]
    assert left_out[0].what == "torch-rows"
    assert "nosuchpackage isn't installed" in left_out[0].reason


# --- whole runs


def importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


@pytest.fixture(scope="module")
def everything() -> tuple[Report, str]:
    """One run of every arm, and what it printed."""
    before, console = children._descendants(os.getpid()), quiet()
    found = session.run_and_show(BenchOptions(workloads=("shard",), **TINY), console=console)
    assert set(children._descendants(os.getpid())) <= set(before)
    return found, text_of(console)


def test_every_arm_that_is_installed_hands_over_the_same_batch(everything: tuple[Report, str]) -> None:
    found, shown = everything
    [run] = found.runs
    left = {left.what: left.reason for left in [*found.left_out, *run.left_out]}
    assert run.arms.keys() | left.keys() == set(ARMS)
    assert run.arms.keys() & left.keys() == set()
    assert set(EMBEDDED) <= run.arms.keys()
    if importlib.util.find_spec("ray"):
        assert {"ray", "ray-objects"} <= run.arms.keys(), left
    if importlib.util.find_spec("mooncake") and importable("mooncake.store"):
        assert {"mooncake", "mooncake-structured"} <= run.arms.keys(), left
    for name, reason in left.items():
        assert f"{name}: {reason}" in " ".join(shown.split())
    for name, result in run.arms.items():
        assert len(result.trials) == 2
        assert result.fidelity == EXACT or not ARMS[name].exact
        assert result.fidelity != VALUES
        for one in [result.warmup, *result.trials]:
            assert all(getattr(one, figure) > 0 for figure in FIGURES)
            assert one.stored_nbytes > 5 * 3000
            assert 0 < one.ref_nbytes < 10_000
            assert one.producer_peak >= 10 << 20 <= one.consumer_peak
    assert run.nbytes > 5 * 3000
    assert run.floors.keys() >= {"copy-1", "views"}
    assert all(len(floor.seconds) == 2 for floor in run.floors.values())


def test_rollferry_says_where_its_time_goes(everything: tuple[Report, str]) -> None:
    found, shown = everything
    result = found.runs[0].arms["shm"]
    assert list(result.phases("put")) == ["choose", "pack", "publish"]
    assert list(result.phases("get")) == ["open", "fetch", "rebuild"]
    assert found.runs[0].arms["pickle-shm"].phases("put") == {}
    assert "median ms of each phase" in shown


def test_lossy_arms_are_called_so() -> None:
    run = small_run()
    run.arms["types"] = ArmResult("types", "one", "", None, None, [trial(1.0, 1.0)], TYPES, ["batch['a']: list"])
    run.arms["values"] = ArmResult("values", "two", "", None, None, [trial(1.0, 1.0)], VALUES, ["batch['b']: 1"])
    console = quiet()
    console.print(report.tables(run, "shm"))
    shown = text_of(console)
    assert shown.count("is lossy:") == 2
    assert "one is lossy: the values are the same, but not their types: batch['a']: list" in shown
    assert "two is lossy: values differ: batch['b']: 1" in shown
    assert "one (lossy)" in shown


def test_json_has_everything(everything: tuple[Report, str]) -> None:
    found, _ = everything
    whole = json.loads(json.dumps(found.to_dict()))
    assert whole["format"] == 1
    assert whole.keys() == {"format", *Report.__struct_fields__}
    assert whole["machine"].keys() >= {"cpu", "cores", "kernel", "python"}
    assert whole["packages"].keys() >= {"rollferry", "numpy"}
    assert whole["options"]["trials"] == 2
    [run] = whole["runs"]
    assert run.keys() == {*Run.__struct_fields__}
    for result in run["arms"].values():
        assert result.keys() == {"summary", *ArmResult.__struct_fields__}
        assert result["trials"][0].keys() == {*Trial.__struct_fields__}
        assert result["summary"].keys() == {*FIGURES, "put_over_floor", "get_over_floor"}
        assert result["summary"]["put"].keys() == {"median", "min", "max"}
    assert all(floor["summary"].keys() == {"median", "min", "max"} for floor in run["floors"].values())


def test_pictures(everything: tuple[Report, str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found, _ = everything
    swept = Report("2030-01-01", found.machine, {}, {}, [small_run(1 << 20), small_run(1 << 22)])
    for name, one, baseline in [("a.png", found, "pickle-shm"), ("b.png", found, "shm"), ("c.png", swept, "shm")]:
        draw(one, baseline, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_first_calls_are_kept_apart(tmp_path: Path) -> None:
    file = tmp_path / "batch.npz"
    np.savez(file, tokens=np.arange(60).reshape(20, 3), rewards=np.zeros(20))
    out, console = tmp_path / "out.json", quiet()
    options = BenchOptions(
        arms=("shm", "pickle-shm"), file=str(file), trials=1, json_file=str(out), png=str(tmp_path / "out.png")
    )
    found = session.run_and_show(options, console)
    [run] = found.runs
    assert (run.workload, run.samples, run.nbytes) == ("batch.npz", 0, 640)
    for result in run.arms.values():
        assert result.cold is not None
        assert len(result.trials) == 1
        assert result.fidelity == EXACT
    assert json.loads(out.read_text())["runs"][0]["arms"]["shm"]["cold"]["put"] > 0
    assert "First calls of fresh processes" in text_of(console)


def test_a_terminal_shows_bars() -> None:
    console = Console(file=io.StringIO(), width=150, force_terminal=True)
    session.run_and_show(BenchOptions(arms=("shm",), workloads=("shard",), **TINY), console=console)
    shown = text_of(console)
    assert "planning" in shown
    assert "shard, about 0.0 MiB" in shown
    assert "First calls" not in shown


def pair_of(directory: Path, disk: Path) -> pair.Pair:
    planned = plan.Planned(Source("shard", 3), "", 10_000)
    start = partial(Child, "worker", log=directory / "log")
    return pair.Pair(start, planned, memory=directory, disk=disk, lender="consumer", services={})


def test_an_arm_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    with pair_of(tmp_path, tmp_path / "gone") as two:
        for arm in ("pickle-disk", "pickle-shm"):
            two.open(arm)
        with pytest.raises(Refused, match="FileNotFoundError"):
            two.hand_over("pickle-disk")
        assert two.hand_over("pickle-shm")[1] == EXACT
        with pytest.raises(Refused, match="KeyError"):
            two.open("nosuch")
        assert two.hand_over("pickle-shm")[1] == EXACT


def test_a_bundle_is_removed_where_get_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair_of(tmp_path, tmp_path) as two:
        two.open("pickle-disk")
        ask = two._sides["consumer"].ask

        def refuse(do: str, **values: Any) -> dict[str, Any]:
            return ask(do, **(values | {"ref": str(tmp_path / "nosuch")}))

        monkeypatch.setattr(two._sides["consumer"], "ask", refuse)
        with pytest.raises(Refused, match="nosuch"):
            two.hand_over("pickle-disk")
        assert not (tmp_path / "batch.pickle").exists()


def test_a_batch_of_which_no_arm_is_left_has_no_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    empty = Run("lists", "", 1, 1)
    machine = {"cpu": "", "cores": 1}
    draw(Report("2030-01-01", machine, {}, {}, [small_run(), empty]), "shm", tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()
    options = BenchOptions(png=str(tmp_path / "b.png"))
    assert session._draw(Report("2030-01-01", machine, {}, {}, [empty]), options) == "No picture: no arm is left."


def test_floors_that_fail_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Refused("no space")

    monkeypatch.setattr(pair.Pair, "floors", refuse)
    console = quiet()
    found = session.run_and_show(BenchOptions(arms=("shm",), workloads=("shard",), **TINY), console)
    assert found.runs[0].floors == {}
    assert text_of(console).count("left out here: floors: no space") == 1


def test_the_collector_looks_right_after_get() -> None:
    """Nothing starts it in between, though get has paused it."""
    looked: list[int] = []

    class Way:
        exact = True

        def load(self, ref: str) -> str:
            return ref

        def get(self, ref: str) -> Any:
            gc.disable()
            batch = {"a": [[i] for i in range(10_000)]}
            gc.enable()
            return batch

        def phases(self) -> dict[str, float]:
            return {}

        def release(self, batch: Any) -> None:
            batch.clear()

    def watch(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looked.append(info["generation"])

    one = worker.Worker()
    one._arms["way"] = Way()  # type: ignore[assignment]
    one._batch = {"a": [[i] for i in range(10_000)]}
    gc.callbacks.append(watch)
    try:
        figures = one.get("way", "")
    finally:
        gc.callbacks.remove(watch)
    assert looked[:2] == [2, 0]  # all of it before get, and the young after it
    assert figures["collect"] > 0


def test_a_process_that_dies_is_told_with_its_log(tmp_path: Path) -> None:
    with Child("worker", log=tmp_path / "log") as child:
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(BenchError, match="a process has died; it logged: nothing"):
            child.ask("payload")


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A benchmark in a process of its own, once its producer and consumer run."""
    command = [sys.executable, "-m", "rollferry.cli", "bench", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_behind(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running(
        "--arms", "shm,mooncake,pickle-disk", "--workloads", "lists", "--trials", "1000", "--no-cold"
    ) as process:
        deadline = time.monotonic() + 60
        started: list[tuple[int, str]] = []
        while not (has_mooncake(started) if importable("mooncake.store") else len(started) >= 2):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
            started = children._descendants(process.pid)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "rollferry bench: interrupted; all processes were ended" in said
    assert [pid for pid, birth in started if birth and children._stat(pid)[1] == birth] == []
    assert list(tmp_path.iterdir()) == []
    assert [name for name in os.listdir("/dev/shm") if name.startswith(f"rollferry-bench-{process.pid}-")] == []


def has_mooncake(started: list[tuple[int, str]]) -> bool:
    """Whether master, producer and consumer run."""
    with contextlib.suppress(OSError):
        commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid, _ in started]
        return sum("bench.worker" in line for line in commands) >= 2 and any(
            "mooncake_master" in line for line in commands
        )
    return False


# --- the command


def test_command_lists_choices() -> None:
    result = CliRunner().invoke(app, ["bench", "--list"])
    assert result.exit_code == 0
    assert all(name in result.output for name in [*ARMS, *WORKLOADS])


@pytest.mark.parametrize("arguments", [["--trials", "0"], ["--samples", "-1"], ["--nosuch"]])
def test_command_refuses_bad_options(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["bench", *arguments]).exit_code == 2


def test_command_says_what_is_wrong() -> None:
    result = CliRunner().invoke(app, ["bench", "--arms", "shm, nosuch"])
    assert result.exit_code == 1
    assert "rollferry bench: there is no arm nosuch" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--file", "list.json"], "nothing left to measure: list.json: ValueError: a batch is an object with a field"),
        (["--file", "field.json"], "nothing left to measure: field.json: "),
        (["--json", "no/such/x.json"], "there is no directory no/such"),
    ],
)
def test_command_needs_no_traceback(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "field.json").write_text('{"a": [' + "[" * 5000 + "]" * 5000 + "]}")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bench", "--arms", "shm", *arguments])
    assert result.exit_code == 1
    assert message in result.output
    assert isinstance(result.exception, SystemExit)


def test_command_has_the_defaults_of_the_options() -> None:
    import inspect

    defaults = {name: parameter.default for name, parameter in inspect.signature(command).parameters.items()}
    options = msgspec.structs.asdict(BenchOptions())
    own = {"arms": "", "workloads": "", "file": None, "json_file": None, "png": None}
    for name, value in options.items():
        assert defaults[name] == own.get(name, value), name
