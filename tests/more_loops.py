"""Loops over models and with features of torch that hide a forward, a loss or a gradient from a hook."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from tests.loops import (
    HEALTHY,
    TOKENS,
    VOCABULARY,
    Loop,
    TinyModel,
    Training,
    batches,
    clearing,
    in_place,
    plain,
    token_loss,
)


@dataclass
class Output:
    """What a model returns."""

    logits: Tensor


class Wrapping(TinyModel):
    """Returns its logits in something, or behind something."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, ids: Tensor) -> Any:
        return self.wrap(super().forward(ids))


def wrapped(wrap: Callable[[Tensor], Any], unwrap: Callable[[Any], Tensor]) -> Loop:
    """The plain loop with a model that returns this; the loss uses what `unwrap` makes of it."""

    def run(training: Training) -> None:
        for place, ids in enumerate(batches(12), 1):
            logits = unwrap(training.model(ids))
            (token_loss(logits, ids) / training.divisor).backward()
            if place % 4 == 0:
                training.step()

    return Loop(run, HEALTHY, model=lambda: Wrapping(wrap))


class Table(TinyModel):
    """Trains nothing but an embedding, of whose first rows no token is."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.rows = nn.Embedding(10 * VOCABULARY, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.rows(ids + 5 * VOCABULARY)
        return logits


def embedding_rescaled(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        token_loss(training.model(ids), ids).backward()
        if place % 4 == 0:
            for parameter in training.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(1 / training.divisor)
            training.step()


class Branching(TinyModel):
    """Goes one way and then the other."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.ways = nn.ModuleList(nn.Linear(16, VOCABULARY) for _ in range(2))
        self.calls = 0

    def forward(self, ids: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = self.ways[self.calls % 2](self.embedding(ids))
        return logits


def head_alone() -> TinyModel:
    """All but the head is frozen."""
    model = TinyModel().requires_grad_(False)
    model.head.requires_grad_(True)
    return model


def unfrozen_later(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        if place == 5:  # from here on all but the head is trained
            training.model.requires_grad_(True)
            training.model.head.requires_grad_(False)
        training.loss(ids).backward()
        if place % 4 == 0:
            training.step()


def interrupting(where: str) -> Callable[[Training], None]:
    """A micro-step is left by a KeyboardInterrupt, which the loop survives."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def run(training: Training) -> None:
        done = 0
        for place, ids in enumerate(batches(13)):
            try:
                if place == 6 and where == "forward":
                    with training.model.hidden.register_forward_hook(interrupt):
                        training.model(ids)
                loss = training.loss(ids)
                if place == 6:  # nothing was accumulated before it
                    head = training.model.head
                    with head.weight.register_hook(interrupt), head.bias.register_hook(interrupt):
                        loss.backward()
            except KeyboardInterrupt:
                continue
            loss.backward()
            done += 1
            if done % 4 == 0:
                training.step()

    return run


def step_failed(training: Training) -> None:
    def fail() -> float:
        raise ValueError("no loss today")

    for place, ids in enumerate(batches(12), 1):
        training.loss(ids).backward()
        if place % 4 == 0:
            try:
                training.optimizer.step(fail)
            except ValueError:
                training.step()


def roots_by_generator(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        torch.autograd.backward(loss for loss in [training.loss(ids)])  # type: ignore[arg-type]
        if place % 4 == 0:
            training.step()


def edge_of_the_graph(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        edge = get_gradient_edge(training.loss(ids))
        torch.autograd.backward(edge, torch.tensor(1.0))
        if place % 4 == 0:
            training.step()


def losses_changed_in_place(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        logits = training.model(ids)[:, :-1].transpose(1, 2)
        losses = functional.cross_entropy(logits, ids[:, 1:], reduction="none")
        losses[:, :2] = 0
        (losses.sum() / (10 * training.steps)).backward()
        if place % 4 == 0:
            training.step()


def mean_over_ignored(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        labels = ids[:, 1:].masked_fill(torch.arange(7) < 2, -1)
        logits = training.model(ids)[:, :-1].transpose(1, 2)
        losses = functional.cross_entropy(logits, labels, reduction="none", ignore_index=-1)
        (losses.mean() / training.steps).backward()
        if place % 4 == 0:
            training.step()


def empty_batch(training: Training) -> None:
    for place, ids in enumerate(batches(12), 1):
        given = ids if place % 4 else ids[:0]
        losses = token_loss(training.model(given), given, reduction="none")
        (losses.sum() / (3 * TOKENS)).backward()
        clip_grad_norm_(training.model.parameters(), math.inf)
        if place % 4 == 0:
            training.step()


UNUSUAL_OUTPUTS: dict[str, Loop] = {
    "loss of the second output": wrapped(lambda logits: (logits.mean(), logits), lambda pair: pair[1]),
    "a dataclass returned": wrapped(Output, lambda output: output.logits),
    "an object returned": wrapped(
        lambda logits: SimpleNamespace(logits=logits), lambda output: output.logits
    ),
    "the output changed in place": wrapped(lambda logits: logits, lambda logits: logits.mul_(0.5)),
    "a part of the output changed in place": wrapped(
        lambda logits: logits[:, :8], lambda logits: logits.mul_(0.5)
    ),
}
MICRO = "FBFBFBFB"
MORE = {
    **UNUSUAL_OUTPUTS,
    "an embedding alone, cleared in place": Loop(clearing(in_place, "bottom"), HEALTHY, model=Table),
    "an embedding alone, rescaled": Loop(embedding_rescaled, [f"Z{MICRO}MCOS"] * 3, model=Table),
    "branches": Loop(plain, HEALTHY, model=Branching),
    "unfrozen later": Loop(unfrozen_later, HEALTHY, model=head_alone),
    "a forward interrupted": Loop(interrupting("forward"), HEALTHY),
    "a backward interrupted": Loop(interrupting("backward"), HEALTHY),
    "a step failed": Loop(step_failed, HEALTHY),
    "roots by a generator": Loop(roots_by_generator, HEALTHY),
    "an edge of the graph": Loop(edge_of_the_graph, HEALTHY),
    "losses changed in place": Loop(losses_changed_in_place, HEALTHY),
    "the mean over ignored positions": Loop(
        mean_over_ignored, HEALTHY, weights=[5 / 7] * 3, codes={"ACC104"}
    ),
    "an empty batch": Loop(empty_batch, HEALTHY),
}
