"""How gradients are accumulated, clipped and cleared."""

from __future__ import annotations

import math

import torch
from torch import nn

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import variant


@variant(settings=Settings(accumulation_steps=1))
class NoAccumulation(Loop):
    """Every micro-step is an update."""


@variant(settings=Settings(precision="bf16"))
class UnderAutocast(Loop):
    """The forward runs in bf16."""


@variant(settings=Settings(checkpointing="reentrant"))
class ReentrantCheckpointing(Loop):
    """The backward computes activations again, in a graph of its own."""


@variant(settings=Settings(checkpointing="non-reentrant"))
class NonReentrantCheckpointing(Loop):
    """The backward computes activations again, by hooks on saved tensors."""


@variant(settings=Settings(max_grad_norm=None))
class NoClip(Loop):
    """The gradients are taken as they are."""


@variant(settings=Settings(max_grad_norm=None))
class NormLogged(Loop):
    """A clip without limit, which only measures the norm."""

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), math.inf)


@variant(settings=Settings(max_grad_norm=0.3))
class ClippedByHand(Loop):
    """The gradients are multiplied by the limit over their norm, without torch's function."""

    def clip(self) -> None:
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for gradient in gradients:
            gradient *= min(1.0, (self.settings.max_grad_norm or math.inf) / norm.item())


@variant(ranks=(1,))
class GradientsKeptElsewhere(Loop):
    """The loop adds each micro-step to buffers of its own, and puts the sum back before the step."""

    def accumulate(self, window: Window) -> None:
        self.buffers = [torch.zeros_like(weight) for weight in self.model.parameters()]
        super().accumulate(window)

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        loss = super().micro_step(number, batch, window)
        for weight, buffer in zip(self.model.parameters(), self.buffers, strict=True):
            if weight.grad is not None:
                buffer += weight.grad
            weight.grad = None
        return loss

    def before_step(self, window: Window) -> None:
        for weight, buffer in zip(self.model.parameters(), self.buffers, strict=True):
            weight.grad = buffer


@variant()
class WindowThrownAway(Loop):
    """Two windows are taken for outliers: their gradients are cleared, and only the schedule moves on."""

    windows_seen = 0

    def step(self, window: Window) -> None:
        self.windows_seen += 1
        if self.windows_seen in (3, 6):
            self.advance_schedule(window)
        else:
            super().step(window)


@variant()
class ClearedAtTop(Loop):
    """The gradients are cleared before a window, and stay what they are after its step."""

    def accumulate(self, window: Window) -> None:
        self.optimizer.zero_grad()
        super().accumulate(window)

    def clear(self) -> None:
        pass


@variant()
class ClearedByHand(Loop):
    """The gradients are set to None, one by one."""

    def clear(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None
