"""How 16 bit gradients are kept in range: losses scaled, overflows skipped, schedules held meanwhile."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import variant

SCALED: Final = Settings(loss_scale=2.0**10)
"""A run whose losses are scaled, in 32 bit: what is measured has no rounding of 16 bit in it."""


class Overflowing(Loop):
    """In some windows the gradient of one micro-step leaves the range of 16 bit on the last rank."""

    OVERFLOWS: tuple[int, ...] = (5,)
    """The windows, counted from 1."""

    windows_begun = 0
    forwards_of_window = 0

    def accumulate(self, window: Window) -> None:
        self.windows_begun += 1
        self.forwards_of_window = 0
        super().accumulate(window)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, labels = super().forward(batch)
        self.forwards_of_window += 1
        overflows = self.windows_begun in self.OVERFLOWS and self.rank == self.world_size - 1
        if overflows and self.forwards_of_window == min(2, self.settings.accumulation_steps):
            self.overflow(logits)
        return logits, labels

    def overflow(self, logits: Tensor) -> None:
        logits.register_hook(lambda gradient: torch.full_like(gradient, math.inf))


@variant(settings=SCALED)
class UnderScaler(Loop):
    """Losses are scaled, and gradients unscaled before the clip."""


@variant(settings=Settings(precision="fp16", loss_scale=2.0**24))
class HalfPrecision(Loop):
    """The forward runs in 16 bit; the first scales are too large for it, and their steps are skipped."""


@variant(settings=Settings(precision="fp16", loss_scale=2.0**18, growth_interval=2, batches=20))
class LargerScalesTried(Loop):
    """After every second update a larger scale is tried; where it is too large a step is skipped."""


@variant(settings=Settings(loss_scale=2.0**10, growth_interval=3))
class OverflowSkipped(Overflowing):
    """The gradient of one micro-step is infinite, and the scaler skips the update; the schedule waits."""


@variant(settings=SCALED)
class FirstStepsSkipped(Overflowing):
    """The scale is too large at first: the first three attempts are skipped."""

    OVERFLOWS = (1, 2, 3)


@variant(settings=SCALED)
class InfiniteLossSkipped(Loop):
    """The loss of one micro-step is not finite, and the scaler skips the update."""

    forwards = 0

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, labels = super().forward(batch)
        self.forwards += 1
        return (logits * math.inf if self.forwards == 6 else logits), labels


@variant(settings=Settings(loss_scale=2.0**10, max_grad_norm=None))
class UnscaledWithoutClip(Loop):
    """The gradients are unscaled to be looked at, and not clipped."""


@variant(settings=Settings(loss_scale=2.0**10, max_grad_norm=None))
class UnscaledByTheStep(Loop):
    """Nobody asks for the unscaled gradients; the scaler unscales them in its step."""

    def unscale(self) -> None:
        pass


@variant(settings=Settings(loss_scale=2.0**10, max_grad_norm=None))
class ScaledNormLogged(Loop):
    """A clip without limit measures the norm of the gradients, which are unscaled before."""

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), math.inf)


class StepCounted(Loop):
    """Whether a step was skipped is read from the optimizer's own count of its steps."""

    def steps_done(self) -> int:
        return max((int(state["step"]) for state in self.optimizer.state.values()), default=0)

    def apply(self) -> bool:
        before = self.steps_done()
        self.scaler.step(self.optimizer)
        applied = self.steps_done() > before
        self.update_scale(applied)
        return applied

    def update_scale(self, applied: bool) -> None:
        self.scaler.update()


@variant(settings=SCALED)
class Hysteresis(StepCounted, Overflowing):
    """The scale falls at the second overflow in a row, not at the first."""

    OVERFLOWS = (3, 6, 7)
    PATIENCE = 2
    overflows_in_a_row = 0

    def update_scale(self, applied: bool) -> None:
        self.overflows_in_a_row = 0 if applied else self.overflows_in_a_row + 1
        keep = 0 < self.overflows_in_a_row < self.PATIENCE
        self.scaler.update(self.scaler.get_scale() if keep else None)


@variant()
class ManualLossScale(Loop):
    """The loss is multiplied by a constant, and the gradients are divided by it."""

    SCALE = 1024.0

    def loss(self, batch: Batch, window: Window) -> Tensor:
        return super().loss(batch, window) * self.SCALE

    def before_step(self, window: Window) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= self.SCALE


class Fused(StepCounted):
    """The step of all parameters is one kernel, which skips by itself where the scaler found an overflow."""

    def make_optimizer(self) -> Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.settings.learning_rate, fused=True)


class ForEach(Loop):
    """The step works on lists of all parameters at once."""

    def make_optimizer(self) -> Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=self.settings.learning_rate, foreach=True)


@variant()
class FusedOptimizer(Fused):
    """The step of all parameters is one kernel."""


@variant()
class ForeachOptimizer(ForEach):
    """The step works on lists of all parameters at once."""


@variant(settings=SCALED)
class FusedUnderScaler(Fused, Overflowing):
    """The scaler calls a fused step in any case; where it found an overflow the kernel does nothing."""


@variant(settings=Settings(loss_scale=2.0**10, max_grad_norm=None))
class FusedUnscales(Fused, Overflowing):
    """A fused step unscales by itself: the gradients that it is given are still scaled."""

    def unscale(self) -> None:
        pass


@variant(settings=SCALED)
class ForeachUnderScaler(ForEach, Overflowing):
    """The scaler calls a step over lists, or skips it."""


@variant(settings=SCALED)
class ScalerNotGiven(Overflowing):
    """The audit is not told of the scaler."""

    def attach(self, **instead: Any) -> Any:
        return super().attach(scaler=None, **instead)
