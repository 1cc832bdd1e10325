"""The demo: its gradient, its digests, its processes, and a few steps of the whole."""

import contextlib
import copy
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import rollferry
from rollferry.demo import DemoOptions, Recipe, batches, objective, policy, processes, run_demo, sampling, task
from rollferry.demo.activity import Recorder
from rollferry.demo.carrier import Carrier
from rollferry.demo.coordinator import run_training
from rollferry.demo.errors import MismatchError, ProcessFailedError, StalenessError
from rollferry.demo.fingerprint import differing_fields, fingerprint
from rollferry.demo.messages import Finished, Train
from rollferry.demo.records import StepRecord
from rollferry.demo.trainer import GradientExchange, Trainer

NAMESPACE = "demo-test"
SMALL = Recipe(groups=9, group_size=4, hidden=16, minibatches=2)


def some_batch(version: int = 0, seed: int = 0, dtype: Any = np.float32) -> tuple[batches.Batch, policy.Parameters]:
    """A generated batch and the weights that sampled it."""
    rng = np.random.default_rng(seed)
    parameters = policy.init_parameters(rng, hidden=8, embedding=5, dtype=dtype)
    problems = [problem for problem in task.draw_problems(rng, 6, 12) for _ in range(4)]
    done = sampling.generate(parameters, [task.encode(problem.prompt) for problem in problems], rng)
    groups = [row // 4 for row in range(24)]
    return batches.build_batch(problems, done, groups, version=version, step=version, first=0), parameters


@pytest.fixture
def url(shm_directory: Path) -> str:
    """An engine of its own for each test."""
    return f"shm://{shm_directory}"


def bundles(url: str, namespace: str = NAMESPACE) -> list[str]:
    with rollferry.connect(url, namespace=namespace) as ferry:
        return ferry.list()


# --- the policy


def test_gradient_agrees_with_finite_differences() -> None:
    batch, parameters = some_batch(dtype=np.float64)
    rows = batches.pad_rows([batch])
    rng = np.random.default_rng(1)
    noise = rng.normal(0.0, 0.3, rows.log_probs.shape) * rows.mask  # some ratios are clipped, some are not
    rows = objective.Minibatch(
        rows.tokens, rows.mask, rows.log_probs + noise, rng.normal(size=24), rng.uniform(0.5, 1.5, rows.mask.shape)
    )
    goal = objective.Objective(clip=0.2, entropy=0.05)
    _, clipped, gradient = objective.policy_gradient(parameters, rows, goal)
    assert 0.1 < clipped < 0.9
    for name, values in parameters.items():
        for place in rng.choice(values.size, size=min(25, values.size), replace=False):
            losses = []
            for shift in (1e-6, -1e-6):
                moved = copy.deepcopy(parameters)
                moved[name].flat[place] += shift
                losses.append(objective.policy_gradient(moved, rows, goal)[0])
            assert gradient[name].flat[place] == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4, abs=1e-7)


def test_log_probs_of_generation_are_those_of_training() -> None:
    batch, parameters = some_batch()
    rows = batches.pad_rows([batch])
    np.testing.assert_allclose(objective.token_log_probs(parameters, rows), rows.log_probs, atol=1e-5)
    anchored = objective.reanchor(parameters, rows)
    np.testing.assert_allclose(anchored.trust, 1.0, atol=1e-5)


def test_generated_rows_are_well_formed() -> None:
    batch, _ = some_batch()
    for tokens, prompt, length, mask, log_probs, truncated in zip(
        batch["tokens"],
        batch["prompts"],
        batch["response_lengths"],
        batch["loss_masks"],
        batch["rollout_log_probs"],
        batch["truncated"],
        strict=True,
    ):
        head, response = tokens[:-length], tokens[-length:]
        assert head.tolist() == task.encode(prompt).tolist()
        assert 1 <= length <= sampling.MAX_RESPONSE
        assert len(mask) == len(log_probs) == length
        assert not {task.PAD, task.BEGIN} & set(response.tolist())
        assert task.END not in response[:-1]
        assert truncated == (response[-1] != task.END)


@pytest.mark.parametrize(
    ("response", "reward"), [("15$", 1.0), ("15", 1 / 3), ("14$", 1 / 3), ("1", 1 / 6), ("26", 0.0), ("15$$", 3 / 8)]
)
def test_grade_gives_partial_credit(response: str, reward: float) -> None:
    tokens = np.array([task.END if symbol == "$" else task.SYMBOLS.index(symbol) for symbol in response], np.int32)
    given, exact = task.grade(task.Problem(7, 8), tokens)
    assert given == pytest.approx(reward)
    assert exact == (reward == 1.0)


def test_advantages_are_relative_to_the_group() -> None:
    advantages = objective.group_advantages([1.0, 0.0, 0.5, 0.5, 9.0, 7.0], [3, 3, 4, 4, 1, 1])
    np.testing.assert_allclose(advantages, [1.0, -1.0, 0.0, 0.0, 1.0, -1.0], atol=1e-3)


# --- digests


def test_fingerprint_of_a_copy_is_the_same() -> None:
    batch, _ = some_batch()
    assert differing_fields(fingerprint(batch), fingerprint(copy.deepcopy(batch))) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (None, []),
        ([], ()),
        ([], {}),
        ("1", b"1"),
        (["ab", "c"], ["a", "bc"]),
        ([[1], [2]], [[1, 2]]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (np.zeros(2, np.int32), np.zeros(2, np.float32)),
        (np.zeros(2, ">i4"), np.zeros(2, "<i4")),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.float32(1), 1.0),
        (np.float32(1), np.array(1, np.float32)),
        (np.array([0x7FC00001], np.uint32).view(np.float32), np.array([0x7FC00000], np.uint32).view(np.float32)),
    ],
)
def test_fingerprint_tells_apart(one: Any, other: Any) -> None:
    assert differing_fields(fingerprint({"field": one}), fingerprint({"field": other})) == ["field"]


def test_fingerprint_names_missing_and_moved_fields() -> None:
    assert differing_fields(fingerprint({"a": 1, "b": 2}), fingerprint({"a": 1})) == ["b"]
    assert differing_fields(fingerprint({"a": 1, "b": 2}), fingerprint({"b": 2, "a": 1})) == ["b", "a"]


def test_fingerprint_refuses_what_it_cannot_walk() -> None:
    with pytest.raises(TypeError, match="set"):
        fingerprint({"field": {1, 2}})


def test_carrier_checks_what_arrives(url: str) -> None:
    batch, _ = some_batch()
    carrier = Carrier(url, NAMESPACE, Recorder())
    parcel = carrier.send(batch, 0)
    assert len(json.dumps(parcel.ref)) < 1024
    with carrier.receive(parcel, 0) as arrived:
        assert list(arrived) == list(batch)
    assert carrier.equal == 1
    parcel.fingerprint["rewards"] = "0" * 32
    with pytest.raises(MismatchError, match="step 4: .*rewards"), carrier.receive(parcel, 4):
        pytest.fail("lent in spite of the difference")
    assert carrier.drop(parcel)
    carrier.send(batch, 1)
    assert carrier.close() == 1
    assert bundles(url) == []


def test_trainer_refuses_batches_too_old(url: str) -> None:
    recorder = Recorder()
    carrier = Carrier(url, NAMESPACE, recorder)
    options = DemoOptions(trainers=1, recipe=SMALL)
    trainer = Trainer(options, carrier, GradientExchange(0, {}, carrier), recorder)
    parcel = carrier.send(some_batch(version=3)[0], 3)
    assert trainer.unpack(Train(4, [parcel], 0.0))[1] == 1
    with pytest.raises(StalenessError, match="step 5"):
        trainer.unpack(Train(5, [parcel], 0.0))
    assert carrier.close() == 1
    assert bundles(url) == []


# --- processes


def child_that_ends(connection: Any) -> None:
    connection.recv()
    connection.send(Finished(0, 0, 0.0))


def child_that_fails(connection: Any) -> None:
    raise LookupError("the reason")


def child_that_waits(connection: Any) -> None:
    connection.send(os.getpid())
    time.sleep(60)


def child_that_dies(connection: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def gone(pid: int) -> bool:
    """Whether a process has ended, give or take that nobody has waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pids: list[int], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not all(map(gone, pids)):
        assert time.monotonic() < deadline, f"still there: {[pid for pid in pids if not gone(pid)]}"
        time.sleep(0.02)


def test_team_ends_by_order() -> None:
    with processes.Team() as team:
        members = [team.start(name, child_that_ends) for name in ("one", "two")]
        team.stop()
        assert {member.name for member, _ in team.listen()} == {"one", "two"}
    assert len(members) == 2


@pytest.mark.parametrize(
    ("work", "message"),
    [(child_that_fails, "(?s)bad failed:.*Traceback.*the reason"), (child_that_dies, "bad died .* exit code -9")],
)
def test_failure_of_a_child_surfaces_and_ends_the_others(work: Any, message: str) -> None:
    pids = []
    with pytest.raises(ProcessFailedError, match=message), processes.Team() as team:
        team.start("good", child_that_waits)
        for _, pid in team.listen():
            pids.append(pid)
            team.start("bad", work)
            break
        for _ in team.listen():
            pass
    assert len(pids) == 1
    wait_until_gone(pids, 0.5)


# --- the whole


@pytest.mark.parametrize(("workers", "trainers", "staleness"), [(3, 2, 2), (1, 1, 0)])
def test_run_training_with_other_numbers_of_processes(workers: int, trainers: int, staleness: int, url: str) -> None:
    options = DemoOptions(
        steps=3,
        workers=workers,
        trainers=trainers,
        max_staleness=staleness,
        url=url,
        namespace=NAMESPACE,
        recipe=SMALL,
    )
    seen: list[StepRecord] = []
    record = run_training(options, "async", seen.append)
    assert record.steps == seen
    assert [step.step for step in seen] == [0, 1, 2]
    assert {step.samples for step in seen} == {36}
    assert {step.bundles for step in seen} == {workers * trainers}
    assert max(step.staleness for step in seen) <= staleness
    assert record.left == 0
    assert bundles(url) == []
    assert record.equal >= 3 * workers * trainers + workers
    assert len(record.activities) == workers + trainers


def test_sync_runs_are_reproducible(url: str) -> None:
    options = DemoOptions(steps=2, max_staleness=0, seed=5, url=url, namespace=NAMESPACE, recipe=SMALL)
    rewards = [[step.reward for step in run_training(options, "sync", lambda _: None).steps] for _ in range(2)]
    assert rewards[0] == rewards[1]


@contextlib.contextmanager
def running_demo(*arguments: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "rollferry.cli", "demo", *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_demo_runs_both_modes(tmp_path: Path, url: str) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("--steps", "3", "--url", url, "--out", "demo.png", "--json", "demo.json")
    with running_demo(*arguments, directory=tmp_path) as process:
        output, errors = process.communicate(timeout=60)
    assert errors == ""
    assert process.returncode == 0, output
    assert len(re.findall(r"^ *(?:sync|async) step ", output, re.MULTILINE)) == 6
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((tmp_path / "demo.json").read_text())
    assert [run["mode"] for run in figures["runs"]] == ["sync", "async"]
    for run, staleness in zip(figures["runs"], (0, 1), strict=True):
        assert len(run["steps"]) == 3
        assert max(step["staleness"] for step in run["steps"]) == staleness
        assert run["left"] == 0
        assert run["equal"] > 3 * 4


def test_demo_without_matplotlib_says_how_to_get_it(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    console = Console(file=io.StringIO(), width=120)
    options = DemoOptions(steps=1, url=url, recipe=SMALL)
    assert run_demo(options, "sync", picture=tmp_path / "demo.png", console=console)
    assert "pip install 'rollferry[demo]'" in console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_demo(number: signal.Signals, tmp_path: Path, url: str) -> None:
    arguments = ("--steps", "1000", "--mode", "async", "--url", url)
    with running_demo(*arguments, directory=tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("async step "):
                break
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert len(children) >= 4
    wait_until_gone(children)
    assert bundles(url, f"demo-{process.pid}-async") == []
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert errors == "rollferry demo: interrupted; all processes were ended\n"
    else:
        assert errors == ""
