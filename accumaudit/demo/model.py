"""A causal transformer of some twenty thousand parameters: as large as seconds on a CPU allow."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its name everywhere
from torch.utils.checkpoint import checkpoint

Checkpointing = Literal["off", "reentrant", "non-reentrant"]

LONGEST = 96
"""Positions that the model knows."""


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind its norm and added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_output = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, hidden: Tensor, visible: Tensor) -> Tensor:
        rows, positions, width = hidden.shape
        parts = self.queries_keys_values(self.attention_norm(hidden)).chunk(3, dim=-1)
        query, key, value = (part.view(rows, positions, self.heads, -1).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        hidden = hidden + self.attention_output(attended.transpose(1, 2).reshape(rows, positions, width))
        output: Tensor = hidden + self.feed_forward(hidden)
        return output


class TinyTransformer(nn.Module):
    """Logits of the next token at every position."""

    def __init__(
        self,
        vocabulary_size: int,
        *,
        width: int = 32,
        heads: int = 2,
        layers: int = 2,
        checkpointing: Checkpointing = "off",
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary_size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        length = input_ids.shape[1]
        hidden = self.tokens(input_ids) + self.positions(torch.arange(length, device=input_ids.device))
        # Padding stands at the end, so every position sees the first token at least.
        earlier = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril()
        visible = earlier & attention_mask.bool()[:, None, None, :]
        for block in self.blocks:
            hidden = self._through(block, hidden, visible)
        logits: Tensor = self.head(self.norm(hidden))
        return logits

    def _through(self, block: nn.Module, hidden: Tensor, visible: Tensor) -> Tensor:
        if self.checkpointing == "off":
            output: Tensor = block(hidden, visible)
        else:
            output = checkpoint(block, hidden, visible, use_reentrant=self.checkpointing == "reentrant")
        return output
