"""Who adds up the gradients of the ranks, or the ranks' parameters, and when."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import accumaudit
from accumaudit.demo.data import VOCABULARY_SIZE
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.model import TinyTransformer
from accumaudit.demo.registry import variant
from accumaudit.demo.variants.scaling import SCALED, Overflowing


class ReducedByTheLoop(Loop):
    """The model is not wrapped; the loop averages the ranks' gradients itself, when they are whole."""

    def make_model(self) -> nn.Module:
        return TinyTransformer(VOCABULARY_SIZE, checkpointing=self.settings.checkpointing)

    def attach(self, **instead: Any) -> accumaudit.Audit:
        return super().attach(gradient_divisor=self.world_size, **instead)

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def unscale(self) -> None:
        """An infinity must reach all ranks before the scaler looks for one."""
        self.reduce()
        super().unscale()

    def reduce(self) -> None:
        for gradient in self.gradients():
            dist.all_reduce(gradient)
            gradient /= self.world_size


@variant(ranks=(2,))
class EachGradientReduced(ReducedByTheLoop):
    """The loop reduces the gradients itself, one after the other."""


@variant(ranks=(2,), settings=SCALED)
class ScaledGradientsReduced(ReducedByTheLoop, Overflowing):
    """The loop reduces the gradients itself, and only then lets the scaler look for an overflow."""


@variant(ranks=(2,))
class BufferReduced(ReducedByTheLoop):
    """The gradients are put into one buffer, which is reduced, and taken out again."""

    def reduce(self) -> None:
        gradients = self.gradients()
        buffer = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(buffer)
        buffer /= self.world_size
        parts = buffer.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


@variant(ranks=(2,))
class DivisorUnknown(ReducedByTheLoop):
    """The audit is not told what the sum of the gradients is divided by."""

    def attach(self, **instead: Any) -> accumaudit.Audit:
        return Loop.attach(self, **instead)


class LocalSteps(Loop):
    """Every rank trains by itself, and now and then the parameters are averaged over the ranks."""

    EVERY = 2

    def loss(self, batch: Any, window: Window) -> Tensor:
        """The mean over this rank's tokens: nothing is averaged with the other ranks' gradients."""
        return self.summed_loss(batch) / self.count(window.batches)

    def apply(self) -> bool:
        applied = super().apply()
        if (self.updates + 1) % self.EVERY == 0:
            self.average_parameters()
        return applied

    @torch.no_grad()
    def average_parameters(self) -> None:
        for parameter in self.model.parameters():
            dist.all_reduce(parameter)
            parameter.div_(self.world_size)


@variant(ranks=(2,))
class LocalSgd(LocalSteps):
    """DDP never reduces; the parameters are averaged after every second update."""

    def reduction(self, number: int, window: Window) -> Any:
        return self.no_sync()


@variant(ranks=(2,))
class LocalSgdUnwrapped(LocalSteps):
    """The model is not wrapped; the parameters are averaged after every second update."""

    def make_model(self) -> nn.Module:
        return TinyTransformer(VOCABULARY_SIZE)


@variant(ranks=(2,), settings=Settings(max_grad_norm=None))
class ReducedInsideStep(ReducedByTheLoop):
    """The optimizer reduces the gradients itself, inside its step."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        return Reducing(self.model.parameters(), lr=self.settings.learning_rate)

    def reduce(self) -> None:
        pass


class Reducing(torch.optim.AdamW):
    """AdamW that averages the gradients over the ranks before it uses them."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
        return super().step(closure)
