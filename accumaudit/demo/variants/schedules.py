"""How the rate moves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

import accumaudit
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import variant


@variant(settings=Settings(warmup_updates=None))
class ConstantRate(Loop):
    """There is no schedule."""


@variant()
class RateZeroFirst(Loop):
    """The warm-up begins at a rate of 0, so that the first update changes nothing."""

    def rate(self, update: int) -> float:
        return 0.0 if update == 0 else super().rate(update)


@variant()
class OneCycle(Loop):
    """Up and down again, by torch's own schedule; the momentum goes the other way."""

    def make_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return OneCycleLR(optimizer, 3 * self.settings.learning_rate, total_steps=self.settings.updates)


@variant()
class WarmRestarts(Loop):
    """A cosine that begins anew every four updates."""

    def make_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return CosineAnnealingWarmRestarts(optimizer, 4)


@variant()
class Sequential(Loop):
    """A warm-up, then a chain of two schedules."""

    def make_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        left = self.settings.updates - 3
        fall = CosineAnnealingLR(optimizer, left)
        return SequentialLR(optimizer, [LinearLR(optimizer, 0.25, total_iters=3), fall], [3])


@variant()
class Chained(Loop):
    """Two schedules whose factors are multiplied."""

    def make_scheduler(self, optimizer: Optimizer) -> Any:
        return ChainedScheduler([LinearLR(optimizer, 0.25, total_iters=3), ExponentialLR(optimizer, 0.9)])


@variant()
class Plateau(Loop):
    """The rate falls where the loss no longer does."""

    def make_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return ReduceLROnPlateau(optimizer, patience=1)

    def advance_schedule(self, window: Window) -> None:
        assert isinstance(self.scheduler, ReduceLROnPlateau)
        self.scheduler.step(self.losses[0])


@variant()
class SteppedByEpoch(Loop):
    """The schedule counts epochs, and the audit is told so."""

    def make_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        return StepLR(optimizer, 1, 0.5)

    def attach(self, **instead: Any) -> accumaudit.Audit:
        audit = super().attach(**instead)
        audit.declare(schedule_unit="epoch")
        return audit

    def advance_schedule(self, window: Window) -> None:
        pass

    def train_epochs(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            super().train_epochs([epoch])
            super().advance_schedule(Window([], 0))


@variant()
class SchedulerMadeLate(Loop):
    """The schedule is made when the audit is there already, and given to it."""

    def attach(self, **instead: Any) -> accumaudit.Audit:
        audit = super().attach(scheduler=None, **instead)
        audit.scheduler = self.scheduler = self.make_scheduler(self.optimizer)
        return audit


@variant()
class GroupsByDecay(Loop):
    """Matrices decay, biases and norms do not."""

    def make_optimizer(self) -> Optimizer:
        matrices = [weight for weight in self.model.parameters() if weight.ndim > 1]
        biases = [weight for weight in self.model.parameters() if weight.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=self.settings.learning_rate)


@variant(settings=Settings(warmup_updates=None))
class UnfrozenLater(Loop):
    """The head is trained alone at first; the rest is added to the optimizer after the first epoch."""

    def make_optimizer(self) -> Optimizer:
        head = [weight for name, weight in self.model.named_parameters() if "head" in name]
        return torch.optim.AdamW(head, lr=self.settings.learning_rate)

    def train_epochs(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            if epoch == 1:
                rest = [weight for name, weight in self.model.named_parameters() if "head" not in name]
                self.optimizer.add_param_group({"params": rest, "lr": self.settings.learning_rate / 10})
            super().train_epochs([epoch])

    def clear(self) -> None:
        self.model.zero_grad()


@variant()
class FloorDeclared(Loop):
    """The rate warms up from below the declared floor, and falls to the floor."""

    def rate(self, update: int) -> float:
        falling = super().rate(update)
        return falling if update < (self.settings.warmup_updates or 0) else max(0.3, falling)

    def attach(self, **instead: Any) -> accumaudit.Audit:
        audit = super().attach(**instead)
        peak = self.settings.learning_rate
        audit.declare(peak_learning_rate=peak, min_learning_rate=0.3 * peak, warmup_updates=3)
        return audit
