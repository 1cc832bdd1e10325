"""Batches from a rollout host to a trainer host; only references, one line each, pass between the two programs.

    python examples/cluster.py lend    --url 'mooncake://10.77.0.1:50051?segment=512mb'
    python examples/cluster.py rollout --url 'mooncake://10.77.0.1:50051?segment=0' > references
    python examples/cluster.py train   --url 'mooncake://10.77.0.1:50051?segment=0' < references

The URL may be `ray://` as well, which needs nobody to lend memory. docs/cluster.md says more.
"""

import argparse
import signal
import sys
import threading
import time

import numpy as np

import rollferry


def lend() -> None:
    """Keep bundles in this process's memory until it is told to end."""
    ends = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ends.set())
    print("lending memory", flush=True)
    while not ends.wait(0.5):
        pass


def rollout(ferry: rollferry.Ferry, batches: int, samples: int) -> None:
    """Put batches; print their references."""
    rng = np.random.default_rng()
    for step in range(batches):
        tokens = [rng.integers(0, 150_000, length).astype(np.int32) for length in rng.integers(64, 2048, samples)]
        batch = {
            "tokens": tokens,
            "rewards": rng.random(samples).tolist(),
            "checks": [int(row.sum(dtype=np.int64)) for row in tokens],
        }
        start = time.perf_counter()
        ref = ferry.put(batch)
        print(f"step {step}: put {ref.nbytes:,} bytes in {time.perf_counter() - start:.3f} s", file=sys.stderr)
        print(ref.to_json(), flush=True)


def train(ferry: rollferry.Ferry) -> None:
    """Get the batches of the references on the input, check them, and remove them."""
    step = -1
    for step, ref in enumerate(sys.stdin):
        start = time.perf_counter()
        batch = ferry.get(ref)
        took = time.perf_counter() - start
        for row, check in zip(batch["tokens"], batch["checks"], strict=True):
            if int(row.sum(dtype=np.int64)) != check:
                raise SystemExit(f"step {step}: a row did not arrive as it was sent")
        ferry.remove(ref)
        print(f"step {step}: got {len(batch['tokens'])} samples in {took:.3f} s, all as they were sent", flush=True)
    if step < 0:
        raise SystemExit("no references came")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["lend", "rollout", "train"])
    parser.add_argument("--url", help="by default, ROLLFERRY_URL")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--samples", type=int, default=20_000, help="of each batch")
    options = parser.parse_args()
    try:
        with rollferry.connect(options.url) as ferry:
            if options.role == "lend":
                lend()
            elif options.role == "rollout":
                rollout(ferry, options.batches, options.samples)
            else:
                train(ferry)
    except rollferry.RollferryError as error:
        raise SystemExit(f"{options.role}: {error}") from None


if __name__ == "__main__":
    main()
