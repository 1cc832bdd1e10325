"""examples/grpo_torch: it learns, in turns and overlapped, two ranks step as one would, and nothing outlives it."""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch isn't installed: pip install 'rollferry[torch]'")

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo_torch"
SMALL = ("--limit", "10", "--warm-up", "60")  # sums of one-digit numbers
SUMMARY = re.compile(r"mean reward ([\d.]+) in the first \d+ steps, ([\d.]+) in the last; 0 bundles left\n$")


@contextmanager
def running(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(EXAMPLE), "--url", f"shm://{directory}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def bundles(directory: Path) -> list[Path]:
    return list((directory / "live").iterdir())


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_reward_rises(mode: str, shm_directory: Path) -> None:
    with running(shm_directory, "--mode", mode, "--steps", "18", *SMALL) as process:
        output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, output + errors
    steps = [line.split() for line in output.splitlines() if re.match(r" *\d+  ", line)]
    assert [int(step[0]) for step in steps] == list(range(18))
    for _, _, _, _, stale, drift, *_ in steps:
        assert int(stale) <= (mode == "async")
        # Fresh samples: rollout, with its cache, and trainer, in shards, computed the same log-probs; so had the same weights.
        assert (float(drift) < 1e-5) == (int(stale) == 0)
    assert ("1" in {step[4] for step in steps}) == (mode == "async")
    before, after = map(float, SUMMARY.search(output).groups())
    assert after > before + 0.2, output
    assert bundles(shm_directory) == []


@pytest.mark.parametrize("victim", ["trainer 1", "all"])
def test_a_killed_process_ends_the_rest(victim: str, shm_directory: Path) -> None:
    with running(shm_directory, "--mode", "async", "--steps", "100000", "--limit", "10", "--warm-up", "1") as process:
        for line in process.stdout:
            if line.startswith("   2  "):
                break
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(workers) == 4  # in the order of their start: rollouts, then trainers
        killed = {"trainer 1": workers[3], "all": process.pid}[victim]
        os.kill(killed, signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
    if victim != "all":
        assert process.returncode == 1
        assert f"{victim}: died without a word, exit code -9" in errors
    deadline = time.monotonic() + 60.0
    while any(map(alive, children)) or bundles(shm_directory):
        assert time.monotonic() < deadline, (children, bundles(shm_directory))
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


STEP = argparse.Namespace(
    seed=0, groups=8, workers=1, group_size=8, limit=20, longest=3, minibatches=1, staleness=0, rate=1e-3
)


def test_two_ranks_step_as_one_would(shm_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    import policy
    import processes
    import rollout

    import rollferry

    url = f"shm://{shm_directory}"
    with rollferry.connect(url) as ferry, tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(STEP.seed)
        worker = rollout.Rollout(ferry, STEP, 0)
        torch.manual_seed(STEP.seed)
        worker.version, worker.policy = 0, policy.Policy()  # as the trainers begin with
        ref = ferry.put(worker.generate(0))
        with processes.Team(url, "default", patience=60.0) as team:
            for rank in range(2):
                team.start(f"trainer {rank}", one_step, rank, ref.to_json(), folder)
            heard = dict(team.hear() for _ in range(2))
        weights = ferry.get(heard["trainer 0"]["weights"])
        expected = step_by_hand(worker.policy, ferry.get(ref))
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5)


def one_step(line: Any, ferry: Any, rank: int, ref: str, folder: str) -> None:
    """A trainer's whole life: one step of plain gradient descent."""
    import trainer

    trainer.LARGEST_NORM = 1e9
    trainer.meet(rank, f"{folder}/meeting")
    one = trainer.Trainer(ferry, STEP, rank)
    one.optimizer = torch.optim.SGD(one.policy.parameters(), 1.0)
    batch, _ = one.read([ref])
    one.train(batch)
    line.tell(**one.publish())
    line.hear()  # the order to stop


def step_by_hand(policy: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The same step in one process, sample by sample."""
    rewards = torch.tensor(batch["rewards"]).view(STEP.groups, STEP.group_size)
    gains = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True, correction=0) + 1e-4)
    loss = torch.zeros(())
    for tokens, log_probs, gain in zip(batch["tokens"], batch["rollout_log_probs"], gains.flatten(), strict=True):
        row, old = torch.from_numpy(tokens).long()[None], torch.from_numpy(log_probs)
        chosen = policy(row[:, :-1])[0].gather(1, row[0, 1:, None])[-len(old) :, 0]
        loss = loss - ((chosen - old).exp() * gain).sum()
    (loss / sum(batch["response_lengths"])).backward()
    return {name: (value - value.grad).detach() for name, value in policy.named_parameters()}
