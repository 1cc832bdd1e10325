"""The policy: a transformer with rotary positions, causal attention, RMS norms and gated layers; and how it is sampled."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own documentation calls it so

from task import END, VOCABULARY

WIDTH, LAYERS, HEADS, HIDDEN = 96, 3, 4, 256


class Cache:
    """Keys and values of the positions so far, of all layers."""

    def __init__(self, rows: int, length: int) -> None:
        self.keys = torch.empty(LAYERS, rows, HEADS, length, WIDTH // HEADS)
        self.values = torch.empty_like(self.keys)
        self.filled = 0

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add a layer's new positions; give all of them."""
        end = self.filled + keys.shape[2]
        self.keys[layer, :, :, self.filled : end] = keys
        self.values[layer, :, :, self.filled : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class Attention(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.inward = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.outward = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, turns: Tensor, cache: Cache | None, mask: Tensor | None) -> Tensor:
        queries, keys, values = self.inward(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        queries, keys = rotate(queries, turns), rotate(keys, turns)
        if cache is not None:
            keys, values = cache.extend(self.layer, keys, values)
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None)
        return self.outward(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.attention_norm, self.gated_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention(layer)
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor, turns: Tensor, cache: Cache | None, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turns, cache, mask)
        y = self.gated_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(layer) for layer in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, cache: Cache | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Log-probs of each next token, (rows, length, vocabulary).

        With a cache, tokens are those after what it holds, and the mask says what each of them attends to.
        """
        if positions is None:
            positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
        x, turns = self.embedding(tokens), rotations(positions)
        for block in self.blocks:
            x = block(x, turns, cache, mask)
        if cache is not None:
            cache.filled += tokens.shape[1]
        return self.head(self.norm(x)).log_softmax(-1)


def rotations(positions: Tensor) -> Tensor:
    """Rotary embedding: a turn for each position and pair of channels, as complex numbers."""
    half = WIDTH // HEADS // 2
    speeds = 100.0 ** -(torch.arange(half) / half)  # the longest text has a dozen tokens
    angles = positions[:, None, :, None] * speeds
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns).flatten(-2)


@dataclass
class Completion:
    response: list[int]
    log_probs: Tensor  # of the response's tokens


@torch.inference_mode()
def generate(policy: Policy, prompts: list[list[int]], longest: int, generator: torch.Generator) -> list[Completion]:
    """Continue prompts of any lengths token by token, until each has its end or `longest` tokens."""
    rows, width = len(prompts), max(map(len, prompts))
    lead = torch.tensor([width - len(prompt) for prompt in prompts])  # prompts stand at the right
    tokens = torch.tensor([[END] * (width - len(prompt)) + prompt for prompt in prompts])
    places = torch.arange(width + longest)
    seen = (places >= lead[:, None])[:, None, None, :]  # (rows, head, query, key)
    causal = places[:width, None] >= places[:width]
    cache = Cache(rows, width + longest)
    mask = causal & seen[..., :width] | torch.eye(width, dtype=torch.bool)  # what is padding sees itself, or nothing
    positions = (places[:width] - lead[:, None]).clamp(min=0)
    drawn, log_probs, open_rows = [], [], torch.ones(rows, dtype=torch.bool)
    for place in range(width, width + longest):
        scores = policy(tokens, positions, cache, mask)[:, -1]
        tokens = torch.multinomial(scores.exp(), 1, generator=generator)
        drawn.append(tokens)
        log_probs.append(scores.gather(1, tokens))
        open_rows &= tokens[:, 0] != END
        if not open_rows.any():
            break
        positions, mask = place - lead[:, None], seen[..., : place + 1]
    texts, chances = torch.cat(drawn, 1).tolist(), torch.cat(log_probs, 1)
    lengths = [text.index(END) + 1 if END in text else len(text) for text in texts]
    return [Completion(text[:n], chance[:n]) for text, chance, n in zip(texts, chances, lengths, strict=True)]
