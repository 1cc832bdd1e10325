"""GRPO with torch: rollout processes, two FSDP2 trainer ranks, and rollferry between them. A minute on two cores.
Tried with torch 2.13, on CPUs.

    python examples/grpo_torch                # in turns: generate a step, train on it
    python examples/grpo_torch --mode async   # the workers are up to --staleness steps ahead of the trainers

A small transformer learns sums of two numbers. Rollout workers sample it token by token and put batches; each trainer rank
gets its own rows of them (``ferry.get(ref, rows=...)``), and rank 0 puts the new weights for the workers. Between the
processes, pipes carry JSON: orders, figures and refs.

The policy begins with random weights and a short supervised warm-up, on sums of which many have wrong digits; so it gets the
form of an answer, and a share of right ones. Putting it right is left to GRPO.

Columns: `stale` is how many versions old the oldest samples are; `drift` how far, on average, log-probs of the rollout are
from those of the weights that training begins with (0, but for rounding, where nothing is stale); `clip` the share of tokens
whose importance ratio was clipped. `put KB` is what all workers put, `get KB` what one rank fetched: its rows of the fields
that it needs; `weights KB` comes with the times of their put and get. Times are those of the slowest process.
"""

import argparse
import secrets
import signal
import sys
import tempfile

import rollferry
from processes import ProcessError, Team, remove_all
from rollout import run_rollout
from schedule import Schedule
from trainer import RANKS, run_trainer


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--steps", type=int, default=60, help="GRPO steps")
    parser.add_argument("--workers", type=int, default=2, help="rollout processes")
    parser.add_argument("--staleness", type=int, default=1, help="of async: versions that samples may be old")
    parser.add_argument("--url", help="by default, ROLLFERRY_URL, else shm://")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=20, help="numbers are below it")
    parser.add_argument("--groups", type=int, default=64, help="problems of each step")
    parser.add_argument("--group-size", type=int, default=8, help="samples of each problem")
    parser.add_argument("--minibatches", type=int, default=4, help="optimizer steps of each step")
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--warm-up", type=int, default=250, help="supervised steps before the first GRPO step")
    parser.add_argument("--warm-up-noise", type=float, default=0.5, help="share of digits that are random in them")
    options = parser.parse_args()
    if options.steps < 1 or options.workers < 1 or options.minibatches < 1 or options.staleness < 0:
        parser.error("a number is too small")
    if options.groups < 1 or options.groups % (options.workers * RANKS):
        parser.error(f"--groups must be a multiple of {RANKS} for each worker: trainer ranks read whole groups")
    if options.minibatches > options.group_size:
        parser.error("--minibatches can't be more than --group-size: each has samples of all groups")
    if options.mode == "sync":
        options.staleness = 0
    options.longest = len(str(2 * options.limit - 2)) + 1
    return options


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("grpo_torch: terminated"))
    namespace = f"grpo-{secrets.token_hex(4)}"  # others may use the engine too
    with rollferry.connect(options.url, namespace=namespace) as ferry:
        try:
            with tempfile.TemporaryDirectory() as folder, Team(options.url, namespace, patience=120.0) as team:
                for index in range(options.workers):
                    team.start(f"rollout {index}", run_rollout, options, index)
                for rank in range(RANKS):
                    team.start(f"trainer {rank}", run_trainer, options, rank, f"{folder}/meeting")
                steps = Schedule(options, team, ferry).run()
            left = len(ferry.list())
        finally:
            remove_all(ferry)
    few = max(1, len(steps) // 10)
    before, after = (sum(step["reward"] for step in some) / few for some in (steps[:few], steps[-few:]))
    print(
        f"{options.mode}: mean reward {before:.3f} in the first {few} steps, {after:.3f} in the last; {left} bundles left"
    )
    if left:
        raise SystemExit(1)


if __name__ == "__main__":
    try:
        main()
    except (ProcessError, rollferry.RollferryError) as error:
        raise SystemExit(f"grpo_torch: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("grpo_torch: interrupted") from None
