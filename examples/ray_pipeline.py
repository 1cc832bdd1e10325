"""Rollout actors and trainer actors on Ray, with rollferry between them: only references go through Ray's calls.

    python examples/ray_pipeline.py --mode sync
    python examples/ray_pipeline.py --mode async

sync: every step waits for all rollouts, then trains. async: the rollout actors generate the next step while the trainers
are at one. They begin it with the newest version there is, and not before the step before the one in training is done; so
no sample is trained on at more than one version past its own, and no more than two steps are in the store.

Attaches to the Ray at --address, or to the one that Ray takes for the current one, or starts one of its own with --local.
"""

import argparse
import secrets
import time
from typing import Any

import numpy as np
import ray

import rollferry


class Rollout:
    def __init__(self, namespace: str, seed: int) -> None:
        self.ferry = rollferry.connect("ray://", namespace=namespace)
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
    def __init__(self, namespace: str) -> None:
        self.ferry = rollferry.connect("ray://", namespace=namespace)

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


class Run:
    def __init__(self, options: argparse.Namespace, ferry: rollferry.Ferry, namespace: str) -> None:
        self.steps, self.samples, self.ferry = options.steps, options.samples, ferry
        self.rollouts = [ray.remote(Rollout).options(num_cpus=0).remote(namespace, n) for n in range(options.rollouts)]
        self.trainers = [ray.remote(Trainer).options(num_cpus=0).remote(namespace) for _ in range(options.trainers)]
        self.version = 0  # of the policy: how many steps were trained
        self.total = self.staleness = self.most = 0

    def train(self, refs: list[str]) -> list[Any]:
        """Begin to train a step, shared among the trainers."""
        self.count()
        shares = [refs[number :: len(self.trainers)] for number in range(len(self.trainers))]
        return [trainer.train.remote(share) for trainer, share in zip(self.trainers, shares, strict=True) if share]

    def count(self) -> None:
        """Count the bundles that are there."""
        self.most = max(self.most, len(self.ferry.list()))

    def trained(self, results: list[dict[str, float]]) -> None:
        """Take the results of a step."""
        self.total += sum(result["samples"] for result in results)
        staleness = self.version - min(result["oldest"] for result in results)
        self.staleness = max(self.staleness, staleness)
        waited = max(result["get_ms"] for result in results)
        print(f"step {self.version}: {self.total} samples, {staleness} versions stale, get {waited:.1f} ms")
        self.version += 1

    def sync(self) -> None:
        while self.version < self.steps:
            refs = [rollout.generate.remote(self.version, self.samples) for rollout in self.rollouts]
            self.trained(ray.get(self.train(ray.get(refs, timeout=60)), timeout=60))

    def overlapped(self) -> None:
        begun = [0] * len(self.rollouts)  # steps that each actor has begun to generate
        generating: dict[Any, int] = {}  # by which actor
        ready: list[list[str]] = [[] for _ in range(self.steps)]  # references of each step
        training: list[Any] = []
        results: list[dict[str, float]] = []
        while self.version < self.steps:
            for number in set(range(len(begun))) - set(generating.values()):
                if begun[number] < min(self.steps, self.version + 2):  # the one in training, or the one after it
                    generating[self.rollouts[number].generate.remote(self.version, self.samples)] = number
                    begun[number] += 1
            if not training and len(ready[self.version]) == len(self.rollouts):
                training = self.train(ready[self.version])
            done, _ = ray.wait([*generating, *training], timeout=60)
            if not done:
                raise TimeoutError("nothing was ready within a minute")
            if done[0] in generating:
                number = generating.pop(done[0])
                ready[begun[number] - 1].append(ray.get(done[0]))
                self.count()
                continue
            training.remove(done[0])
            results.append(ray.get(done[0]))
            if not training:
                self.trained(results)
                results = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["sync", "async"], default="sync")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--samples", type=int, default=2000, help="samples of each rollout actor and step")
    parser.add_argument("--rollouts", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--address", default="", help="host:port of a Ray that runs")
    where.add_argument("--local", action="store_true", help="start a Ray for this run")
    options = parser.parse_args()
    if options.local:
        ray.init(address="local", num_cpus=2, object_store_memory=512 << 20, include_dashboard=False)
    namespace = f"pipeline-{secrets.token_hex(4)}"  # others may use the cluster too
    try:
        ferry = rollferry.connect(f"ray://{options.address}", namespace=namespace)
    except rollferry.EngineError as error:
        raise SystemExit(f"{error}; --local starts a Ray for this run") from None
    run = Run(options, ferry, namespace)
    if options.mode == "sync":
        run.sync()
    else:
        run.overlapped()
    expected = options.steps * options.rollouts * options.samples
    left = len(ferry.list())
    print(f"{options.mode}: trained on {run.total} of {expected} samples, {run.staleness} versions stale at most")
    print(f"{left} bundles left in the store, {run.most} seen there at most")
    stale, steps = (0, 1) if options.mode == "sync" else (1, 2)
    if run.total != expected or left or run.staleness > stale or run.most > steps * options.rollouts:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
