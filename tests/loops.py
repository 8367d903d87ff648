"""Hand-written training loops, as people write them, and what is recorded of each."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

import accumaudit
from accumaudit import Audit

VOCABULARY = 20
TOKENS = 14
"""Valid tokens of every batch: two rows of eight, each position predicting the next."""


class TinyModel(nn.Module):
    """Embeds, mixes, predicts; with activation checkpointing where it is asked for."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.hidden = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, VOCABULARY)
        self.reentrant = reentrant

    def body(self, states: Tensor) -> Tensor:
        mixed: Tensor = self.norm(torch.relu(self.hidden(states)))
        return mixed

    def forward(self, ids: Tensor) -> Tensor:
        states = self.embedding(ids)
        if self.reentrant is None:
            states = self.body(states)
        else:
            states = checkpoint(self.body, states, use_reentrant=self.reentrant)
        logits: Tensor = self.head(states)
        return logits

    def compute_loss(self, ids: Tensor) -> Tensor:
        """A method that a loop may call past the module's own call."""
        return token_loss(self.forward(ids), ids)


def token_loss(logits: Tensor, ids: Tensor, reduction: str = "sum", **options: Any) -> Tensor:
    """Cross entropy of every next token."""
    return functional.cross_entropy(
        logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1), reduction=reduction, **options
    )


def batches(count: int) -> list[Tensor]:
    """Batches of token ids, always the same."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, VOCABULARY, (2, 8), generator=generator) for _ in range(count)]


@dataclass
class Training:
    """What a loop works on."""

    model: TinyModel
    optimizer: Optimizer
    scheduler: Any
    audit: Audit
    steps: int = 4
    """Micro-steps of a window."""
    scaler: GradScaler = field(default_factory=lambda: GradScaler("cpu", enabled=False))
    optimizers: list[Optimizer] = field(default_factory=list)
    """All of them, `optimizer` the first; those of a loop that has several."""
    schedulers: list[Any] = field(default_factory=list)

    @property
    def divisor(self) -> int:
        """Valid tokens of a window."""
        return TOKENS * self.steps

    def loss(self, ids: Tensor) -> Tensor:
        """The rightly divided loss of one micro-step."""
        return token_loss(self.model(ids), ids) / self.divisor

    def step(self, clear: bool = True) -> None:
        """Clip, step, schedule and clear."""
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        if clear:
            self.optimizer.zero_grad()


@dataclass
class Loop:
    """A loop and its record: words, kept and discarded micro-steps, total weights (None: not known)."""

    run: Callable[[Training], None]
    words: list[str]
    kept: list[int] = field(default_factory=lambda: [4, 4, 4])
    discarded: list[int] = field(default_factory=lambda: [0, 0, 0])
    weights: list[float | None] = field(default_factory=lambda: [1.0, 1.0, 1.0])
    leftover: int = 0
    reentrant: bool | None = None
    steps: int = 4
    """Declared micro-steps of a window."""
    codes: set[str] = field(default_factory=set)
    """What `check` finds in it."""
    model: Callable[[], TinyModel] | None = None
    """Another model."""
    optimizers: Callable[[TinyModel], list[Optimizer]] = lambda model: [
        torch.optim.AdamW(model.parameters(), lr=1e-2)
    ]
    schedule: Callable[[Optimizer], Any] = lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step))
    scaler: Callable[[], GradScaler] = lambda: GradScaler("cpu", enabled=False)


def record(loop: Loop, folder: Path, **options: Any) -> list[dict[str, Any]]:
    """Run a loop with the hooks on; all its records."""
    torch.manual_seed(0)
    model = TinyModel(loop.reentrant) if loop.model is None else loop.model()
    optimizers, scaler = loop.optimizers(model), loop.scaler()
    schedulers = [loop.schedule(optimizer) for optimizer in optimizers]
    options = {"accumulation_steps": loop.steps, "summary": False, **options}
    with accumaudit.attach(model, optimizers, schedulers, scaler, log_dir=folder, **options) as audit:
        first = (model, optimizers[0], schedulers[0])
        loop.run(Training(*first, audit, loop.steps, scaler, optimizers, schedulers))
    return read_records(folder)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Every record of a run's folder."""
    files = sorted(folder.glob("rank-*/*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines() if line]


def total_weight(record: dict[str, Any]) -> float | None:
    """T of a run of one process; None where a weight is not known."""
    weights = record["loss_weight"]
    if not weights or None in weights or None in record["weight_uniform"] or record["grad_rescale"] is None:
        return None
    return math.fsum(weights) * float(record["grad_rescale"])


# the loops


def plain(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        if place % 4 == 0:
            training.step()


def no_accumulation(training: Training) -> None:
    for ids in batches(3):
        training.loss(ids).backward()
        training.optimizer.step()
        training.scheduler.step()
        training.optimizer.zero_grad()


def clearing(clear: Callable[[Training], None], where: str) -> Callable[[Training], None]:
    """The plain loop, clearing at the top, between forward and backward, or at the bottom."""

    def run(training: Training) -> None:
        for place, ids in enumerate(batches(12)):
            if where == "top" and place % 4 == 0:
                clear(training)
            loss = training.loss(ids)
            if where == "before backward" and place % 4 == 0:
                clear(training)
            loss.backward()
            if place % 4 == 3:
                training.step(clear=False)
                if where == "bottom":
                    clear(training)

    return run


def by_optimizer(training: Training) -> None:
    training.optimizer.zero_grad()


def by_model(training: Training) -> None:
    training.model.zero_grad()


def in_place(training: Training) -> None:
    training.optimizer.zero_grad(set_to_none=False)


def by_hand(training: Training) -> None:
    for parameter in training.model.parameters():
        parameter.grad = None


def cleared_between_step_and_schedule(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        if place % 4 == 0:
            clip_grad_norm_(training.model.parameters(), 1.0)
            training.optimizer.step()
            training.optimizer.zero_grad()
            training.scheduler.step()


def never_cleared(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        if place % 4 == 0:
            training.step(clear=False)


def cleared_every_micro_step(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        training.optimizer.zero_grad()
        training.loss(ids).backward()
        if place % 4 == 0:
            training.optimizer.step()


def cleared_before_the_step(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        if place % 4 == 0:
            training.optimizer.zero_grad()
            training.optimizer.step()


def stepped_every_micro_step(training: Training) -> None:
    for ids in batches(3):
        training.loss(ids).backward()
        training.optimizer.step()


def stepped_without_gradients(training: Training) -> None:
    for ids in batches(2):
        training.loss(ids).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.optimizer.step()


def finishing(finish: Callable[[Training], None]) -> Callable[[Training], None]:
    """The plain loop with another end of the window."""

    def run(training: Training) -> None:
        for place, ids in enumerate(batches(12), 1):
            training.loss(ids).backward()
            if place % 4 == 0:
                finish(training)
                training.optimizer.step()
                training.optimizer.zero_grad()

    return run


def clip_value(training: Training) -> None:
    torch.nn.utils.clip_grad_value_(training.model.parameters(), 0.01)


def clip_value_by_name(training: Training) -> None:
    clip_grad_value_(training.model.parameters(), 0.01)


def clip_with_norm(training: Training) -> None:
    norm = torch.nn.utils.get_total_norm([p.grad for p in training.model.parameters() if p.grad is not None])
    torch.nn.utils.clip_grads_with_norm_(training.model.parameters(), 1.0, norm)


def clip_with_norm_by_name(training: Training) -> None:
    clip_grads_with_norm_(training.model.parameters(), 0.01, torch.tensor(1.0))


def log_norm(training: Training) -> None:
    clip_grad_norm_(training.model.parameters(), math.inf)


def rescaling(rescale: Callable[[list[Tensor], float], None]) -> Callable[[Training], None]:
    """Losses are summed, gradients divided when they are whole."""

    def run(training: Training) -> None:
        for place, ids in enumerate(batches(12), 1):
            token_loss(training.model(ids), ids).backward()
            if place % 4 == 0:
                rescale(list(training.model.parameters()), 1 / training.divisor)
                training.step()

    return run


def multiply(parameters: list[Tensor], factor: float) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad.mul_(factor)


def multiply_together(parameters: list[Tensor], factor: float) -> None:
    torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], factor)


def replace(parameters: list[Tensor], factor: float) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad = parameter.grad * factor


def manual_loss_scale(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        (training.loss(ids) * 1024).backward()
        if place % 4 == 0:
            multiply(list(training.model.parameters()), 1 / 1024)
            training.step()


def halved_between_micro_steps(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        if place % 4 == 2:
            multiply(list(training.model.parameters()), 0.5)
        if place % 4 == 0:
            training.step()


def clip_per_micro_step(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        clip_grad_norm_(training.model.parameters(), 0.1)
        if place % 4 == 0:
            training.optimizer.step()
            training.optimizer.zero_grad()


def schedule_per_micro_step(training: Training) -> None:
    training.optimizer.step()  # torch warns where a scheduler comes first
    for place, ids in enumerate(batches(8), 1):
        training.loss(ids).backward()
        training.scheduler.step()
        if place % 4 == 0:
            training.optimizer.step()
            training.optimizer.zero_grad()


def schedule_before_step(training: Training) -> None:
    training.optimizer.step()
    for place, ids in enumerate(batches(8), 1):
        training.loss(ids).backward()
        if place % 4 == 0:
            training.scheduler.step()
            training.optimizer.step()
            training.optimizer.zero_grad()


def rate_by_hand(training: Training) -> None:
    for place, ids in enumerate(batches(12)):
        if place % 4 == 0:
            training.optimizer.param_groups[0]["lr"] = 1e-3 * (place + 1)
        training.loss(ids).backward()
        if place % 4 == 3:
            training.optimizer.step()
            training.optimizer.zero_grad()


def fast_forwarded(training: Training) -> None:
    training.optimizer.step()
    for _ in range(200):
        training.scheduler.step()
    plain(training)


def closure(training: Training) -> None:
    def evaluate(ids: Tensor) -> Callable[[], float]:
        def run() -> float:
            training.optimizer.zero_grad()
            loss = training.loss(ids) * 4
            loss.backward()
            return float(loss.detach())

        return run

    for ids in batches(3):
        training.optimizer.step(evaluate(ids))


def interrupted(training: Training) -> None:
    for place, ids in enumerate(batches(10), 1):
        training.loss(ids).backward()
        if place % 4 == 0:
            training.step()


def long_windows(training: Training) -> None:
    for place, ids in enumerate(batches(256), 1):
        training.loss(ids).backward()
        if place % 128 == 0:
            training.step()


def smallest_parameter_unused(training: Training) -> None:
    training.model.norm.bias = nn.Parameter(
        torch.zeros(16)
    )  # not the optimizer's: it never gets a gradient there
    plain(training)


MICRO = "FBFBFBFB"
HEALTHY = [f"Z{MICRO}COS"] * 3
LOOPS = {
    "plain": Loop(plain, HEALTHY),
    "checkpointed": Loop(plain, HEALTHY, reentrant=False),
    "checkpointed, reentrant": Loop(plain, HEALTHY, reentrant=True),
    "no accumulation": Loop(no_accumulation, ["ZFBOS"] * 3, kept=[1, 1, 1], steps=1),
    **{
        f"cleared {how.__name__} at the {where}": Loop(clearing(how, where), HEALTHY)
        for how in (by_optimizer, by_model, in_place, by_hand)
        for where in ("top", "before backward", "bottom")
    },
    "cleared between step and schedule": Loop(cleared_between_step_and_schedule, HEALTHY),
    "never cleared": Loop(never_cleared, [f"Z{MICRO}COS", f"{MICRO}COS", f"{MICRO}COS"], codes={"ACC203"}),
    "cleared every micro-step": Loop(
        cleared_every_micro_step,
        ["ZFBZFBZFBZFBO"] * 3,
        [1, 1, 1],
        [3, 3, 3],
        [0.25, 0.25, 0.25],
        codes={"ACC202"},
    ),
    "cleared before the step": Loop(
        cleared_before_the_step,
        [f"Z{MICRO}ZO"] * 3,
        [0, 0, 0],
        [4, 4, 4],
        [None, None, None],
        codes={"ACC202"},
    ),
    "stepped every micro-step": Loop(
        stepped_every_micro_step,
        ["ZFBO", "FBO", "FBO"],
        [1, 1, 1],
        weights=[0.25, 0.25, 0.25],
        codes={"ACC201"},
    ),
    "stepped without gradients": Loop(
        stepped_without_gradients, ["ZFBO", "ZO"] * 2, [1, 0, 1, 0], [0] * 4, [1.0, None, 1.0, None], steps=1
    ),
    "clipped by value": Loop(finishing(clip_value), [f"Z{MICRO}CO"] * 3),
    "clipped by value, imported by name": Loop(
        finishing(clip_value_by_name), [f"Z{MICRO}MO"] * 3, weights=[None, None, None]
    ),
    "clipped with a norm": Loop(finishing(clip_with_norm), [f"Z{MICRO}CO"] * 3),
    "clipped with a norm, imported by name": Loop(
        finishing(clip_with_norm_by_name), [f"Z{MICRO}MO"] * 3, weights=[0.01, 0.01, 0.01], codes={"ACC104"}
    ),
    "norm logged": Loop(finishing(log_norm), [f"Z{MICRO}O"] * 3),
    "rescaled in place": Loop(rescaling(multiply), [f"Z{MICRO}MCOS"] * 3),
    "rescaled together": Loop(rescaling(multiply_together), [f"Z{MICRO}MCOS"] * 3),
    "rescaled into new tensors": Loop(rescaling(replace), [f"Z{MICRO}MCOS"] * 3),
    "manual loss scale": Loop(manual_loss_scale, [f"Z{MICRO}MCOS"] * 3),
    "halved between micro-steps": Loop(
        halved_between_micro_steps, ["ZFBFBMFBFBCOS"] * 3, weights=[0.75, 0.75, 0.75], codes={"ACC106"}
    ),
    "clipped per micro-step": Loop(clip_per_micro_step, ["ZFBCFBCFBCFBCO"] * 3, codes={"ACC401"}),
    "schedule per micro-step": Loop(
        schedule_per_micro_step,
        ["ZO", *["ZFBSFBSFBSFBSO"] * 2],
        [0, 4, 4],
        weights=[None, 1.0, 1.0],
        codes={"ACC301"},
    ),
    "schedule before the step": Loop(
        schedule_before_step,
        ["ZO", *[f"Z{MICRO}SO"] * 2],
        [0, 4, 4],
        weights=[None, 1.0, 1.0],
        codes={"ACC304"},
    ),
    "rate set by hand": Loop(rate_by_hand, [f"RZ{MICRO}OR", f"Z{MICRO}OR", f"Z{MICRO}O"]),
    "fast-forwarded": Loop(
        fast_forwarded, ["ZOS{S}198S", *HEALTHY], [0, 4, 4, 4], [0] * 4, [None, 1.0, 1.0, 1.0]
    ),
    "closure": Loop(closure, ["(ZFB)O"] * 3, [1, 1, 1]),
    "interrupted": Loop(interrupted, HEALTHY[:2], [4, 4], [0, 0], [1.0, 1.0], leftover=2, codes={"ACC205"}),
    "long windows": Loop(long_windows, ["ZFB{FB}126FBCOS"] * 2, [128, 128], [0, 0], [1.0, 1.0], steps=128),
    "smallest parameter unused": Loop(smallest_parameter_unused, HEALTHY),
}
