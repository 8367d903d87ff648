"""Losses scaled and gradients unscaled at the wrong time, or not at all."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import fault
from accumaudit.demo.variants.scaling import SCALED

UNCLIPPED: Final = Settings(loss_scale=2.0**10, max_grad_norm=None)


@fault("ACC701", settings=SCALED)
class ScaleChangedInsideWindow(Loop):
    """The scaler's state is set back in the midst of a window, and its gradients carry two scales."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        loss = super().micro_step(number, batch, window)
        if number == 2 and self.updates == 4:
            self.scaler.load_state_dict(self.scaler.state_dict() | {"scale": self.scaler.get_scale() / 8})
        return loss


@fault("ACC702", settings=UNCLIPPED)
class UnscaleInsideWindow(Loop):
    """The gradients are unscaled after the first micro-step, and those of the others stay scaled."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        loss = super().micro_step(number, batch, window)
        if number == 1:
            super().unscale()
        return loss

    def unscale(self) -> None:
        pass


@fault("ACC703", settings=UNCLIPPED)
class ScalerOrder(Loop):
    """The losses are scaled, and the optimizer steps without the scaler: nobody unscales the gradients."""

    def unscale(self) -> None:
        pass

    def apply(self) -> bool:
        self.optimizer.step()
        return True


@fault("ACC704", settings=Settings(loss_scale=2.0**4))
class SkipStorm(Loop):
    """A layer yields gradients that are not finite at any scale: from then on every update is skipped."""

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, labels = super().forward(batch)
        if self.updates == 3:
            logits.register_hook(lambda gradient: torch.full_like(gradient, math.nan))
        return logits, labels


@fault("ACC706", settings=SCALED)
class ScaledAndUnscaledMixed(Loop):
    """The loss of the last micro-step is not scaled, and counts a thousandth of what it should."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        if not window.ends_with(number):
            return super().micro_step(number, batch, window)
        loss = self.loss(batch, window)
        loss.backward()
        return loss.item()
