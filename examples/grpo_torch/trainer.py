"""A trainer rank: reads its rows of each batch, takes FSDP2 steps of GRPO with the other rank, and puts the new weights."""

import argparse
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F  # noqa: N812  # torch's own documentation calls it so
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence

import rollferry
from policy import Policy
from processes import Line
from task import END, draw, encode

RANKS = 2
CLIP_LOW, CLIP_HIGH = 0.8, 1.28  # how far a token's probability may move from that of its rollout
LARGEST_NORM = 1.0
WARM_UP_ROWS, WARM_UP_RATE = 256, 2e-3
FIELDS = ["tokens", "loss_masks", "rollout_log_probs", "rewards", "group_indices", "weight_versions"]


class Trainer:
    def __init__(self, ferry: rollferry.Ferry, options: argparse.Namespace, rank: int) -> None:
        self.ferry, self.options, self.rank = ferry, options, rank
        torch.manual_seed(options.seed)  # all ranks begin with the same weights
        self.policy = Policy()
        for block in self.policy.blocks:
            fully_shard(block)
        fully_shard(self.policy)
        self.version = 0  # how many GRPO steps were taken
        self.optimizer = self.new_optimizer(WARM_UP_RATE)

    def new_optimizer(self, rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.policy.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.0)

    def warm_up(self, line: Line) -> None:
        """Supervised steps on sums of which many have wrong digits, so that there is something for GRPO to put right."""
        rng = np.random.default_rng([self.options.seed, 0, self.rank])
        for step in range(1, self.options.warm_up + 1):
            tokens, masks = [], []
            for problem in draw(rng, WARM_UP_ROWS // RANKS, self.options.limit):
                wrong = rng.random(len(problem.answer)) < self.options.warm_up_noise
                digits = np.where(wrong, rng.integers(0, 10, len(wrong)), encode(problem.answer))
                tokens.append(torch.tensor([*encode(problem.prompt), *digits, END]))
                masks.append(torch.tensor([0.0] * (len(problem.prompt) - 1) + [1.0] * (len(digits) + 1)))
            mask = pad_sequence(masks, batch_first=True)
            chosen = self.log_probs(pad_sequence(tokens, batch_first=True, padding_value=END))
            loss = -(chosen * mask).sum() / mask.sum()
            self.descend(loss)
            if self.rank == 0 and step % 50 == 0:
                line.tell(warm=step, loss=loss.item())
        self.optimizer = self.new_optimizer(self.options.rate)

    def read(self, refs: list[str]) -> tuple[dict[str, list[Any]], dict[str, float]]:
        """This rank's rows of some batches, as one; and what it cost to get them."""
        start, nbytes, parts = time.perf_counter(), 0, []
        for ref in map(rollferry.TransferRef.from_json, refs):
            rows = slice(self.rank * ref.rows // RANKS, (self.rank + 1) * ref.rows // RANKS)
            parts.append(self.ferry.get(ref, fields=FIELDS, rows=rows))
            nbytes += self.ferry.timings[-1].fetched_nbytes
        joined = {name: [row for part in parts for row in part[name]] for name in FIELDS}
        return joined, {"get_ms": 1e3 * (time.perf_counter() - start), "nbytes": nbytes}

    def train(self, batch: dict[str, list[Any]]) -> dict[str, float]:
        """Take the GRPO steps of a batch; figures over all ranks."""
        staleness = self.version - min(int(version) for row in batch["weight_versions"] for version in row)
        if staleness > self.options.staleness:
            raise RuntimeError(f"step {self.version} got samples that are {staleness} versions stale")
        tokens = pad_sequence([torch.from_numpy(row) for row in batch["tokens"]], True, END).long()
        mask = responses(batch["loss_masks"], batch["tokens"])
        old = responses(batch["rollout_log_probs"], batch["tokens"])
        gains = advantages(batch["rewards"], batch["group_indices"])[:, None]
        losses, drifts, clipped = [], [], []
        for part in range(self.options.minibatches):
            rows = slice(part, None, self.options.minibatches)  # some of each group
            weight = mask[rows] / total(mask[rows].sum())  # of each token in the mean over all ranks
            log_ratio = (self.log_probs(tokens[rows]) - old[rows]) * mask[rows]
            gain = log_ratio.exp() * gains[rows]
            limited = log_ratio.exp().clamp(CLIP_LOW, CLIP_HIGH) * gains[rows]
            loss = -(torch.minimum(gain, limited) * weight).sum()
            self.descend(RANKS * loss)  # fully_shard takes the mean of the ranks' gradients; the sum is wanted
            losses.append(loss.detach())
            drifts.append((log_ratio.detach().abs() * weight).sum())
            clipped.append(((limited < gain) * weight).sum())
        self.version += 1
        means = total(torch.stack([torch.stack(figure) for figure in (losses, drifts, clipped)])).tolist()
        return {
            "stale": staleness,
            "loss": float(np.mean(means[0])),
            "drift": means[1][0],  # of the first minibatch: for fresh samples there is none yet
            "clipped": float(np.mean(means[2])),
        }

    def log_probs(self, tokens: Tensor) -> Tensor:
        """Log-probs of all tokens but the first, (rows, length - 1)."""
        return self.policy(tokens[:, :-1]).gather(2, tokens[:, 1:, None])[..., 0]

    def descend(self, loss: Tensor) -> None:
        loss.backward()
        clip_grad_norm_(self.policy.parameters(), LARGEST_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def publish(self) -> dict[str, Any]:
        """Put the whole weights, from rank 0; all ranks take part in gathering them."""
        weights = get_model_state_dict(
            self.policy, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )  # empty but on rank 0
        if self.rank:
            return {"weights": None}
        start = time.perf_counter()
        ref = self.ferry.put(weights, metadata={"weight_version": self.version})
        return {"weights": ref.to_json(), "nbytes": ref.nbytes, "put_ms": 1e3 * (time.perf_counter() - start)}


def total(value: Tensor) -> Tensor:
    """The sum over all ranks, in place."""
    dist.all_reduce(value)
    return value


def responses(rows: list[np.ndarray], tokens: list[np.ndarray]) -> Tensor:
    """Values of response tokens as float32 (rows, length - 1), where `Trainer.log_probs` has those tokens; 0 elsewhere."""
    leads = (len(whole) - 1 - len(row) for whole, row in zip(tokens, rows, strict=True))
    return pad_sequence(
        [F.pad(torch.from_numpy(row).float(), (lead, 0)) for row, lead in zip(rows, leads, strict=True)], True
    )


def advantages(rewards: list[float], groups: list[int]) -> Tensor:
    """Rewards relative to those of their group: mean 0 and, where they differ at all, deviation 1."""
    values = torch.tensor(rewards)
    _, member, count = torch.tensor(groups).unique(return_inverse=True, return_counts=True)
    centred = values - (torch.zeros(len(count)).index_add(0, member, values) / count)[member]
    variance = torch.zeros(len(count)).index_add(0, member, centred.square()) / count
    return centred / (variance.sqrt() + 1e-4)[member]


def meet(rank: int, path: str) -> None:
    """Join the other rank, by way of a file that is not there yet. FSDP2 on CPUs uses gloo, all of whose calls may time out."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{path}", timedelta(seconds=60), RANKS, rank)


def run_trainer(line: Line, ferry: rollferry.Ferry, options: argparse.Namespace, rank: int, meeting: str) -> None:
    """Warm up, then answer orders until it is to stop."""
    meet(rank, meeting)
    trainer = Trainer(ferry, options, rank)
    trainer.warm_up(line)
    line.tell(ready=True, **trainer.publish())
    while (order := line.hear())["do"] == "train":
        batch, cost = trainer.read(order["batches"])
        line.tell(read=order["step"], **cost)
        figures = trainer.train(batch)
        line.tell(trained=order["step"], **figures, **trainer.publish())
    dist.destroy_process_group()
