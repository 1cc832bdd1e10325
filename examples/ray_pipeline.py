"""Rollout actors and trainer actors on Ray, with rollferry between them: only references go through Ray's calls.

    python examples/ray_pipeline.py --mode sync
    python examples/ray_pipeline.py --mode async

sync: every step waits for all rollouts, then trains. async: each rollout actor starts on the next batch as soon as it is
done, and the trainers take whatever is ready, one step stale at most. Attaches to the Ray of `ray start --head`, or to one
of its own with --local.
"""

import argparse
import time
from collections import Counter
from typing import Any

import numpy as np
import ray

import rollferry


class Rollout:
    def __init__(self, seed: int) -> None:
        self.ferry = rollferry.connect("ray://")
        self.rng = np.random.default_rng(seed)

    def generate(self, version: int, samples: int) -> str:
        lengths = self.rng.integers(64, 512, samples)
        tokens = [self.rng.integers(0, 150_000, n).astype(np.int32) for n in lengths]
        batch = {
            "tokens": tokens,
            "log_probs": [-self.rng.random(n, np.float32) for n in lengths],
            "rewards": self.rng.random(samples).tolist(),
            "checks": [int(row.sum(dtype=np.int64)) for row in tokens],
            "versions": [version] * samples,
        }
        return self.ferry.put(batch).to_json()  # 0.2 KB, whatever the batch


class Trainer:
    def __init__(self) -> None:
        self.ferry = rollferry.connect("ray://")

    def train(self, refs: list[str]) -> dict[str, float]:
        samples, waited, versions = 0, 0.0, []
        for ref in refs:
            start = time.perf_counter()
            batch = self.ferry.get(ref)
            waited += time.perf_counter() - start
            for row, check in zip(batch["tokens"], batch["checks"], strict=True):
                if int(row.sum(dtype=np.int64)) != check:
                    raise RuntimeError("a row did not arrive as it was sent")
            for row in batch["log_probs"]:
                np.multiply(row, 0.5, out=row)  # results are writable, and this trainer's own
            samples += len(batch["tokens"])
            versions += batch["versions"]
            self.ferry.remove(ref)  # memory of the object store goes back; what is held stays valid
        return {"samples": samples, "get_ms": waited * 1e3, "oldest": min(versions)}


def run_sync(rollouts: list[Any], trainers: list[Any], steps: int, samples: int) -> int:
    total = 0
    for step in range(steps):
        refs = ray.get([rollout.generate.remote(step, samples) for rollout in rollouts], timeout=60)
        shares = [refs[number :: len(trainers)] for number in range(len(trainers))]
        results = ray.get(
            [trainer.train.remote(share) for trainer, share in zip(trainers, shares, strict=True)], timeout=60
        )
        total += sum(result["samples"] for result in results)
        print(f"step {step}: {total} samples, get {max(result['get_ms'] for result in results):.1f} ms")
    return total


def run_async(rollouts: list[Any], trainers: list[Any], steps: int, samples: int) -> int:
    total, step = 0, 0
    started = Counter(dict.fromkeys(range(len(rollouts)), 1))
    generating = {rollout.generate.remote(0, samples): number for number, rollout in enumerate(rollouts)}
    training: list[Any] = []
    while generating or training:
        ready, _ = ray.wait([*generating, *training], timeout=60)
        if not ready:
            raise TimeoutError("nothing was ready within a minute")
        for done in ready:
            if done in generating:
                number = generating.pop(done)
                training.append(trainers[step % len(trainers)].train.remote([ray.get(done)]))
                step += 1
                if started[number] < steps:
                    again = rollouts[number].generate.remote(started[number], samples)
                    generating[again] = number
                    started[number] += 1
            else:
                training.remove(done)
                result = ray.get(done)
                total += result["samples"]
                print(f"trained on version {result['oldest']}: {total} samples, get {result['get_ms']:.1f} ms")
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--samples", type=int, default=2000, help="samples of each rollout actor and step")
    parser.add_argument("--rollouts", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--local", action="store_true", help="start a Ray for this run")
    options = parser.parse_args()
    if options.local:
        ray.init(address="local", num_cpus=2, object_store_memory=512 << 20, include_dashboard=False)
    ferry = rollferry.connect("ray://")  # attaches to a running Ray unless this process is attached
    rollouts = [ray.remote(Rollout).options(num_cpus=0).remote(seed) for seed in range(options.rollouts)]
    trainers = [ray.remote(Trainer).options(num_cpus=0).remote() for _ in range(options.trainers)]
    run = run_sync if options.mode == "sync" else run_async
    total = run(rollouts, trainers, options.steps, options.samples)
    expected = options.steps * options.rollouts * options.samples
    left = ferry.usage().bundles
    print(f"{options.mode}: trained on {total} of {expected} samples; {left} bundles left in the store")
    if total != expected or left:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
