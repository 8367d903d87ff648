"""The loop that is measured: a small transformer, accumulated, clipped, with AdamW."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from accumaudit import Audit

VOCABULARY = 128
LENGTH = 33


class TinyGpt(nn.Module):
    """Four causal blocks of width 128: about 20 ms an update of four micro-steps on one core."""

    def __init__(self, width: int = 128, blocks: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        states = self.embedding(ids)
        for block in self.blocks:
            states = block(states, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(states)
        return logits


def micro_batches(number: int, size: int) -> list[Tensor]:
    """Data of one window."""
    return [torch.randint(0, VOCABULARY, (size, LENGTH)) for _ in range(number)]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Sequence[Tensor], updates: int) -> Tensor:
    """Some updates of the plain loop; the last loss."""
    tokens = sum(map(len, data)) * (LENGTH - 1)
    loss = torch.zeros(())
    for _ in range(updates):
        for ids in data:
            logits = model(ids)[:, :-1].reshape(-1, VOCABULARY)
            loss = nn.functional.cross_entropy(logits, ids[:, 1:].reshape(-1), reduction="sum") / tokens
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return loss


def written(audit: Audit) -> None:
    """Wait until the writer has nothing left to do: its work is part of the cost."""
    recorder = audit._recorder
    if recorder is not None and recorder.writer is not None:
        done = threading.Event()
        recorder.writer.submit(done.set, urgent=True)
        done.wait(60)


def cpu_time(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Sequence[Tensor], updates: int, audit: Audit
) -> float:
    """Seconds of CPU time an update, all threads together, once two updates have warmed up."""
    train(model, optimizer, data, 2)
    written(audit)
    begin = time.process_time()
    train(model, optimizer, data, updates)
    written(audit)
    return (time.process_time() - begin) / updates


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Median, smallest and largest."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
