"""What an update's gradient should be, computed again from its batches and its parameters.

The gradient of a window is the sum over micro-steps of their mean gradients, each times the
micro-step's loss weight. So a ledger's weights can be held against the gradient that there was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its name everywhere

from accumaudit.demo.data import IGNORED, VOCABULARY_SIZE, Batch
from accumaudit.demo.loop import Loop, Window
from accumaudit.demo.model import TinyTransformer
from accumaudit.demo.variants import ClassWeights
from tests.trainings import make_loop


@dataclass(frozen=True)
class Update:
    """One update as it was: its batches, the parameters before it, the gradient before any clip."""

    window: Window
    parameters: list[Tensor]
    gradient: Tensor


class Watched(Loop):
    """A trait that keeps what each update was made of."""

    def accumulate(self, window: Window) -> None:
        self.current = window
        self.before = [parameter.detach().clone() for parameter in self.model.parameters()]
        super().accumulate(window)

    def clip(self) -> None:
        gradients = [parameter.grad for parameter in self.model.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])
        self.watched = [*getattr(self, "watched", []), Update(self.current, self.before, flat)]
        super().clip()


def compare_with_ledger(
    names: Sequence[str], folder: str, settings: dict[str, Any]
) -> list[dict[str, float]]:
    """Train; how far each update's gradient is from what its record predicts, and what it was made of."""
    loop = watched_loop(names, folder, settings)
    records = [json.loads(line) for file in ledgers(loop) for line in file.read_text().splitlines()]
    updates = [record for record in records if record["record"] == "update"]
    divisor = records[0]["gradient_divisor"]
    factors = [[a1 * record["grad_rescale"] / divisor for a1 in record["loss_weight"]] for record in updates]
    return [
        {"error": error, **counts(update.window, len(weights))}
        for update, weights, error in zip(loop.watched, factors, errors(loop, factors), strict=True)
    ]


def compare_with_full_batch(names: Sequence[str], folder: str, settings: dict[str, Any]) -> list[float]:
    """Train; how far each update's gradient is from that of its window in one large batch."""
    loop = watched_loop(names, folder, settings)
    windows = [update.window for update in loop.watched]
    return errors(
        loop, [[batch.valid_tokens / window.tokens for batch in window.batches] for window in windows]
    )


def watched_loop(names: Sequence[str], folder: str, settings: dict[str, Any]) -> Watched:
    """Such a loop, when it has trained."""
    loop = make_loop(names, Path(folder), settings, Watched)
    loop.train()
    assert isinstance(loop, Watched)
    return loop


def counts(window: Window, kept: int) -> dict[str, int]:
    """Micro-steps and positions of a window, of whose micro-steps the last ones were kept."""
    return {
        "micro_steps": len(window.batches),
        "valid": sum(batch.valid_tokens for batch in window.batches),
        "valid_kept": sum(batch.valid_tokens for batch in window.batches[len(window.batches) - kept :]),
        "attended": sum(int(batch.attention_mask.sum()) for batch in window.batches),
    }


def ledgers(loop: Loop) -> list[Path]:
    return sorted(loop.log_dir.glob(f"rank-*/{loop.rank:05}.*.jsonl"))


def errors(loop: Watched, factors: list[list[float]]) -> list[float]:
    """The relative distance of each update's gradient from the sum of mean gradients times these factors."""
    assert len(loop.watched) == len(factors)
    model = TinyTransformer(VOCABULARY_SIZE)
    distances = []
    for update, weights in zip(loop.watched, factors, strict=True):
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), update.parameters, strict=True):
                mine.copy_(theirs)
        # Where gradients were cleared in between, the weights are those of the last micro-steps.
        batches = update.window.batches[len(update.window.batches) - len(weights) :]
        terms = [
            weight * mean_loss(model, batch, loop)
            for batch, weight in zip(batches, weights, strict=True)
            if batch.valid_tokens
        ]
        predicted = gradient_of(model, terms)
        if loop.world_size > 1:
            dist.all_reduce(predicted)
        scale = max(float(update.gradient.norm()), 1e-12)
        distances.append(float((predicted - update.gradient).norm()) / scale)
    return distances


def mean_loss(model: TinyTransformer, batch: Batch, loop: Loop) -> Tensor:
    """The mean loss over a batch's valid tokens."""
    with torch.autocast("cpu", torch.bfloat16, enabled=loop.settings.precision == "bf16"):
        logits = model(batch.input_ids, batch.attention_mask)
    rows, labels = logits.float().flatten(0, 1), batch.labels.flatten()
    weights = loop.WEIGHTS.float() if isinstance(loop, ClassWeights) else None
    return F.cross_entropy(rows, labels, weights, ignore_index=IGNORED)


def gradient_of(model: TinyTransformer, terms: list[Tensor]) -> Tensor:
    """The gradient of the sum of these terms, as one vector."""
    parameters = list(model.parameters())
    if not terms:
        return torch.zeros(sum(parameter.numel() for parameter in parameters))
    gradients = torch.autograd.grad(torch.stack(terms).sum(), parameters)
    return torch.cat([gradient.flatten() for gradient in gradients])
