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
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_
from torch.optim import Optimizer
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
    scheduler: torch.optim.lr_scheduler.LambdaLR
    audit: Audit
    steps: int = 4
    """Micro-steps of a window."""

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


def record(loop: Loop, folder: Path, **options: Any) -> list[dict[str, Any]]:
    """Run a loop with the hooks on; all its records."""
    torch.manual_seed(0)
    model = TinyModel(loop.reentrant) if loop.model is None else loop.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    options = {"accumulation_steps": loop.steps, "summary": False, **options}
    with accumaudit.attach(model, optimizer, scheduler, log_dir=folder, **options) as audit:
        loop.run(Training(model, optimizer, scheduler, audit, loop.steps))
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


def preference_pairs(training: Training) -> None:
    chosen, rejected = batches(24)[:12], batches(24)[12:]
    for place, (yes, no) in enumerate(zip(chosen, rejected, strict=True), 1):
        margin = token_loss(training.model(no), no) - token_loss(training.model(yes), yes)
        (-functional.logsigmoid(margin) / 4).backward()
        if place % 4 == 0:
            training.step()


def two_backwards(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        logits = training.model(ids)
        (token_loss(logits, ids) / training.divisor).backward(retain_graph=True)
        (logits.square().mean() * 1e-3).backward()
        if place % 4 == 0:
            training.step()


def all_forwards_first(training: Training) -> None:
    for _ in range(3):
        losses = [token_loss(training.model(ids), ids) / (4 * TOKENS) for ids in batches(4)]
        torch.stack(losses).sum().backward()
        training.step()


def all_forwards_first_backward_each(training: Training) -> None:
    for _ in range(3):
        losses = [token_loss(training.model(ids), ids) / (2 * TOKENS) for ids in batches(2)]
        for loss in losses:
            loss.backward()
        training.step()


def method_called(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        (training.model.compute_loss(ids) / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def evaluations(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        with torch.no_grad():
            training.loss(ids)
        with torch.inference_mode():
            training.loss(ids)
        training.loss(ids)  # with gradients on, and never used
        if place % 4 == 0:
            training.step()


def gradients_probed(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        loss = training.loss(ids)
        torch.autograd.grad(loss, list(training.model.parameters()), retain_graph=True)
        loss.backward()
        if place % 4 == 0:
            training.step()


def gradients_set_by_hand(training: Training) -> None:
    parameters = list(training.model.parameters())
    for ids in batches(3):
        gradients = torch.autograd.grad(training.loss(ids), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        training.optimizer.step()
        training.optimizer.zero_grad()


def gradient_penalty(training: Training) -> None:
    for ids in batches(3):
        loss = training.loss(ids)
        gradients = torch.autograd.grad(loss, list(training.model.hidden.parameters()), create_graph=True)
        penalty = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
        (loss + penalty).backward(inputs=list(training.model.parameters()))
        training.optimizer.step()
        training.optimizer.zero_grad()


def exceptions(training: Training) -> None:
    done = 0
    for place, ids in enumerate(batches(16)):
        try:
            logits = training.model(ids.float() if place == 1 else ids)
            if place == 2:
                raise RuntimeError("between forward and loss")
            loss = token_loss(logits, ids.clamp(min=VOCABULARY) if place == 3 else ids) / training.divisor
        except (RuntimeError, IndexError):
            continue
        loss.backward()
        done += 1
        if done % 4 == 0:
            training.step()


def non_finite_skipped(training: Training) -> None:
    done = 0
    for place, ids in enumerate(batches(13)):
        loss = training.loss(ids) * (math.nan if place == 2 else 1.0)
        if not torch.isfinite(loss):
            continue
        loss.backward()
        done += 1
        if done % 4 == 0:
            training.step()


def chunked(training: Training, backward_each: bool = False) -> None:
    for place, ids in enumerate(batches(12), 1):
        logits = training.model(ids)[:, :-1].reshape(-1, VOCABULARY)
        targets = ids[:, 1:].reshape(-1)
        losses = []
        for part, target in zip(logits.chunk(3), targets.chunk(3), strict=True):
            loss = functional.cross_entropy(part, target, reduction="sum") / training.divisor
            losses.append(loss)
            if backward_each:
                loss.backward(retain_graph=True)
        if not backward_each:
            torch.stack(losses).sum().backward()
        if place % 4 == 0:
            training.step()


def chunked_backward_each(training: Training) -> None:
    chunked(training, backward_each=True)


def checkpointed_loss(reentrant: bool) -> Callable[[Training], None]:
    """The loss itself is recomputed in the backward."""

    def run(training: Training) -> None:
        for place, ids in enumerate(batches(12), 1):
            loss = checkpoint(token_loss, training.model(ids), ids, use_reentrant=reentrant)
            (loss / training.divisor).backward()
            if place % 4 == 0:
                training.step()

    return run


def masked_losses(training: Training) -> None:
    mask = torch.ones(2, 7)
    mask[0, :3] = 0
    for place, ids in enumerate(batches(12), 1):
        losses = token_loss(training.model(ids), ids, reduction="none").view(2, 7) * mask
        (losses.sum() / (mask.sum() * 4)).backward()
        if place % 4 == 0:
            training.step()


def class_weights_mean(training: Training) -> None:
    weight = torch.linspace(0.5, 1.5, VOCABULARY)
    for place, ids in enumerate(batches(12), 1):
        (token_loss(training.model(ids), ids, "mean", weight=weight) / 4).backward()
        if place % 4 == 0:
            training.step()


def label_smoothing(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        (token_loss(training.model(ids), ids, label_smoothing=0.1) / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def soft_targets(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        soft = functional.one_hot(ids[:, 1:].reshape(-1), VOCABULARY).float()
        logits = training.model(ids)[:, :-1].reshape(-1, VOCABULARY)
        (functional.cross_entropy(logits, soft, reduction="sum") / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def negative_log_likelihood(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        logs = functional.log_softmax(training.model(ids)[:, :-1].reshape(-1, VOCABULARY), -1)
        (functional.nll_loss(logs, ids[:, 1:].reshape(-1), reduction="sum") / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def loss_module(training: Training) -> None:
    criterion = nn.CrossEntropyLoss()
    for place, ids in enumerate(batches(12), 1):
        logits = training.model(ids)[:, :-1].reshape(-1, VOCABULARY)
        loss = criterion(logits, ids[:, 1:].reshape(-1))
        loss /= 4  # in place, after the loss was seen
        loss.backward()
        if place % 4 == 0:
            training.step()


def linear_cross_entropy(training: Training) -> None:
    hidden = nn.Linear(16, 16)
    for place, ids in enumerate(batches(12), 1):
        states = hidden(training.model.embedding(ids))[:, :-1].reshape(-1, 16)
        weight = training.model.head.weight
        loss = functional.linear_cross_entropy(states, weight, ids[:, 1:].reshape(-1), reduction="sum")
        (loss / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def two_terms(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        logits = training.model(ids)
        main = token_loss(logits, ids) / training.divisor
        ahead = functional.cross_entropy(logits[:, :-2].reshape(-1, VOCABULARY), ids[:, 2:].reshape(-1))
        (main + 0.3 * ahead / 4).backward()
        if place % 4 == 0:
            training.step()


def own_loss(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        logs = torch.log_softmax(training.model(ids)[:, :-1], -1)
        loss = -logs.gather(-1, ids[:, 1:, None]).sum()
        (loss / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def own_loss_declared(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        logs = torch.log_softmax(training.model(ids)[:, :-1], -1)
        loss = -logs.gather(-1, ids[:, 1:, None]).sum()
        training.audit.observe_loss(loss, valid_tokens=TOKENS, reduction="sum")
        (loss / training.divisor).backward()
        if place % 4 == 0:
            training.step()


def zero_token_micro_step(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        targets = ids[:, 1:].reshape(-1) if place % 4 else torch.full((TOKENS,), -100)
        logits = training.model(ids)[:, :-1].reshape(-1, VOCABULARY)
        (functional.cross_entropy(logits, targets, reduction="sum") / (TOKENS * 3)).backward()
        if place % 4 == 0:
            training.step()


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
        halved_between_micro_steps, ["ZFBFBMFBFBCOS"] * 3, weights=[0.75, 0.75, 0.75], codes={"ACC104"}
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
    "preference pairs": Loop(preference_pairs, ["ZFFBFFBFFBFFBCOS"] * 3, weights=[None, None, None]),
    "two backwards": Loop(two_backwards, ["ZFBBFBBFBBFBBCOS"] * 3),
    "all forwards first": Loop(all_forwards_first, ["ZFFFFBCOS"] * 3, [1, 1, 1], steps=1),
    "all forwards first, a backward each": Loop(
        all_forwards_first_backward_each, ["ZFFBBCOS"] * 3, [1, 1, 1], steps=1
    ),
    "a method called": Loop(method_called, ["ZBBBBCOS"] * 3),
    "evaluations": Loop(evaluations, HEALTHY),
    "gradients probed": Loop(gradients_probed, HEALTHY),
    "gradients set by hand": Loop(
        gradients_set_by_hand, ["ZMO"] * 3, [0, 0, 0], weights=[None, None, None], steps=1
    ),
    "gradient penalty": Loop(gradient_penalty, ["ZFBO"] * 3, [1, 1, 1], steps=1),
    "exceptions": Loop(exceptions, HEALTHY, leftover=1, codes={"ACC205"}),
    "non-finite skipped": Loop(non_finite_skipped, HEALTHY),
    "chunked": Loop(chunked, HEALTHY),
    "chunked, a backward each": Loop(chunked_backward_each, ["ZFBBBFBBBFBBBFBBBCOS"] * 3),
    "loss recomputed": Loop(checkpointed_loss(False), HEALTHY),
    "loss recomputed, reentrant": Loop(checkpointed_loss(True), HEALTHY),
    "masked losses": Loop(masked_losses, HEALTHY),
    "class weights": Loop(class_weights_mean, HEALTHY),
    "label smoothing": Loop(label_smoothing, HEALTHY),
    "soft targets": Loop(soft_targets, HEALTHY),
    "negative log likelihood": Loop(negative_log_likelihood, HEALTHY),
    "loss module, divided in place": Loop(loss_module, HEALTHY),
    "linear cross entropy": Loop(linear_cross_entropy, ["ZBBBBCOS"] * 3),
    "two terms": Loop(two_terms, HEALTHY),
    "own loss": Loop(own_loss, HEALTHY, weights=[None, None, None]),
    "own loss, declared": Loop(own_loss_declared, HEALTHY),
    "a micro-step without tokens": Loop(zero_token_micro_step, HEALTHY),
    "closure": Loop(closure, ["(ZFB)O"] * 3, [1, 1, 1]),
    "interrupted": Loop(interrupted, HEALTHY[:2], [4, 4], [0, 0], [1.0, 1.0], leftover=2, codes={"ACC205"}),
    "long windows": Loop(long_windows, ["ZFB{FB}126FBCOS"] * 2, [128, 128], [0, 0], [1.0, 1.0], steps=128),
    "smallest parameter unused": Loop(smallest_parameter_unused, HEALTHY),
}
