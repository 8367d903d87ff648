"""What an update's gradient should be, computed again from its batches and its parameters.

The gradient of a window is the sum over micro-steps of their mean gradients, each times the
micro-step's loss weight. So a ledger's weights can be held against the gradient that there was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn import functional as F  # noqa: N812 - its name everywhere
from torch.optim import Optimizer

from accumaudit.demo.data import IGNORED, VOCABULARY_SIZE, Batch
from accumaudit.demo.loop import Loop, Window
from accumaudit.demo.model import TinyTransformer
from accumaudit.demo.variants.adversaries import Adversaries
from accumaudit.demo.variants.losses import ClassWeights
from accumaudit.demo.variants.scaling import FusedUnscales, UnscaledByTheStep
from tests.trainings import make_loop


@dataclass(frozen=True)
class Update:
    """One update as it was: its batches, the parameters before it, the gradient before any clip."""

    window: Window
    parameters: list[Tensor]
    gradient: Tensor


SCALED_STILL = (UnscaledByTheStep, FusedUnscales)
"""Loops in which gradients are unscaled by the step alone."""


class Watched(Loop):
    """A trait that keeps what each update was made of."""

    def accumulate(self, window: Window) -> None:
        self.current = window
        with whole_model(self.model):
            self.before = [whole(parameter.detach()) for parameter in self.model.parameters()]
        super().accumulate(window)

    def clip(self) -> None:
        with whole_model(self.model):
            gradients = [parameter.grad for parameter in self.model.parameters()]
            flat = torch.cat([whole(gradient).flatten() for gradient in gradients if gradient is not None])
        if isinstance(self, SCALED_STILL):
            flat /= self.scaler.get_scale()
        self.watched = [*getattr(self, "watched", []), Update(self.current, self.before, flat)]
        super().clip()


def whole_model(model: nn.Module) -> AbstractContextManager[Any]:
    """Parameters and gradients are whole inside, where they are flat shards outside."""
    if not isinstance(model, FullyShardedDataParallel):
        return nullcontext()
    context: AbstractContextManager[Any] = model.summon_full_params(model, writeback=False, with_grads=True)
    return context


def whole(tensor: Tensor) -> Tensor:
    """A copy of all of a tensor, where ranks hold parts of it."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def compare_with_ledger(names: Sequence[str], folder: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Train; how far each update's gradient is from what its record predicts, and what it was made of.

    The error is NaN where the gradient overflowed.
    """
    loop = watched_loop(names, folder, settings)
    records = [json.loads(line) for file in ledgers(loop) for line in file.read_text().splitlines()]
    compared = []
    for optimizer in range(len(records[0]["optimizers"])):
        updates = [r for r in records if r["record"] == "update" and r["optimizer"] == optimizer]
        factors = [factors_of(update, records[0]["gradient_divisor"]) for update in updates]
        compared += [
            {"error": error, **counts(update.window, len(weights)), "skipped": math.isnan(error)}
            for update, weights, error in zip(loop.watched, factors, errors(loop, factors), strict=True)
        ]
    return compared


def factors_of(update: dict[str, Any], divisor: float) -> list[float]:
    """By what each micro-step's mean gradient went into the sum; of a skipped attempt it may be unknown."""
    rescale = update["grad_rescale"]
    if rescale is None and update["optimizer_step_skipped"]:
        rescale = math.nan
    return [a1 * rescale / divisor for a1 in update["loss_weight"]]


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


def counts(window: Window, kept: int) -> dict[str, Any]:
    """Micro-steps and positions of a window, of whose micro-steps the last ones were kept."""
    return {
        "micro_steps": len(window.batches),
        "valid": sum(batch.valid_tokens for batch in window.batches),
        "valid_kept": sum(batch.valid_tokens for batch in window.batches[len(window.batches) - kept :]),
        "valid_each": [batch.valid_tokens for batch in window.batches],
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
    dtype = torch.float16 if loop.settings.precision == "fp16" else torch.bfloat16
    with torch.autocast("cpu", dtype, enabled=loop.settings.precision != "fp32"):
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


class WatchedAdversaries(Adversaries):
    """A trait that keeps the mean gradient of each micro-step, and the gradient of each step."""

    def total(self, logits: Tensor, labels: Tensor, divisor: float) -> Tensor:
        mine = self.discriminator if labels.unique().numel() > 1 else self.generator
        mean = F.cross_entropy(logits, labels)
        gradients = torch.autograd.grad(mean, list(mine.parameters()), retain_graph=True)
        self.means = [*getattr(self, "means", []), torch.cat([part.flatten() for part in gradients])]
        return super().total(logits, labels, divisor)

    def step_one(self, optimizer: Optimizer) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        scale = self.scaler_of(optimizer).get_scale()
        whole = torch.cat([gradient.flatten() for gradient in gradients if gradient is not None]) / scale
        number = self.optimizers.index(optimizer)
        self.steps = [*getattr(self, "steps", []), (number, self.means, whole)]
        self.means = []
        super().step_one(optimizer)


def compare_adversaries(name: str, folder: Path) -> list[tuple[int, float, float]]:
    """Train; of each step its optimizer, its total weight, and how far its gradient is from the predicted."""
    loop = make_loop([name], folder, {}, WatchedAdversaries)
    loop.train()
    assert isinstance(loop, WatchedAdversaries)
    records = [json.loads(line) for file in ledgers(loop) for line in file.read_text().splitlines()]
    compared = []
    for number, means, whole in loop.steps:
        update = next(r for r in records if r["record"] == "update" and r["optimizer"] == number)
        records.remove(update)
        weights = update["loss_weight"]
        predicted = torch.stack([a1 * mean for a1, mean in zip(weights, means, strict=True)]).sum(0)
        distance = float((predicted - whole).norm() / whole.norm())
        compared.append((number, math.fsum(weights) * update["grad_rescale"], distance))
    return compared
