"""Which optimizers there are, and who calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import accumaudit
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import variant
from accumaudit.demo.variants.scaling import SCALED, Overflowing


class SeveralOptimizers(Loop):
    """The parameters are shared out among optimizers, and each steps on the gradients of one backward."""

    def __init__(self, settings: Settings, log_dir: Path) -> None:
        super().__init__(settings, log_dir)
        self.optimizers = self.make_optimizers()
        self.schedulers = [LambdaLR(optimizer, self.rate) for optimizer in self.optimizers]

    def make_optimizers(self) -> list[Optimizer]:
        """One for each layer that has parameters of its own."""
        layers = [list(layer.parameters(recurse=False)) for layer in self.model.modules()]
        rate = self.settings.learning_rate
        return [torch.optim.AdamW(parameters, lr=rate) for parameters in layers if parameters]

    def attach(self, **instead: Any) -> accumaudit.Audit:
        return super().attach(optimizer=self.optimizers, scheduler=self.schedulers, **instead)

    def unscale(self) -> None:
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)

    def apply(self) -> bool:
        scale = self.scaler.get_scale()
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= scale

    def advance_schedule(self, window: Window) -> None:
        for scheduler in self.schedulers:
            scheduler.step()

    def clear(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()


class MuonBesideAdamW(SeveralOptimizers):
    """Muon steps the matrices inside the blocks, and AdamW all the rest."""

    def make_optimizers(self) -> list[Optimizer]:
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for name, parameter in self.model.named_parameters():
            (matrices if parameter.ndim == 2 and "blocks" in name else others).append(parameter)
        rate = self.settings.learning_rate
        return [torch.optim.Muon(matrices, lr=rate), torch.optim.AdamW(others, lr=rate)]


@variant()
class MuonAndAdamw(MuonBesideAdamW):
    """Muon steps the matrices inside the blocks and AdamW all the rest, after one backward."""


@variant(settings=SCALED)
class MuonAndAdamwUnderScaler(MuonBesideAdamW, Overflowing):
    """One scaler serves both; torch skips each optimizer by its own gradients."""


@variant()
class OptimizerForEachLayer(SeveralOptimizers):
    """Every layer has an optimizer of its own."""


@variant(ranks=(1,), settings=Settings(accumulation_steps=1, max_grad_norm=None))
class OptimizerInBackward(SeveralOptimizers):
    """Each layer steps inside the backward, as soon as its gradients are there, and clears them."""

    def __init__(self, settings: Settings, log_dir: Path) -> None:
        super().__init__(settings, log_dir)
        for optimizer in self.optimizers:
            self.step_inside_backward(optimizer)

    def step_inside_backward(self, optimizer: Optimizer) -> None:
        parameters = optimizer.param_groups[0]["params"]

        def step(_: Tensor) -> None:
            if all(parameter.grad is not None for parameter in parameters):
                optimizer.step()
                optimizer.zero_grad()

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(step)

    def apply(self) -> bool:
        return True

    def clear(self) -> None:
        pass


class SharpnessAware(Optimizer):
    """SAM: looks for the worst neighbour of the parameters, and steps from here along its gradient."""

    def __init__(
        self, parameters: Any, base: Callable[..., Optimizer], radius: float, **options: Any
    ) -> None:
        self.radius = radius
        super().__init__(parameters, options)
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]  # it needs one
        """Climb along the gradients that are there, take them anew by the closure, go back and step."""
        assert closure is not None
        moved = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in moved]).norm()
        climbs = [p.grad * (self.radius / (norm + 1e-12)) for p in moved]
        for parameter, climb in zip(moved, climbs, strict=True):
            parameter += climb
        with torch.enable_grad():
            closure()
        for parameter, climb in zip(moved, climbs, strict=True):
            parameter -= climb
        self.base.step()


class ByClosure(Loop):
    """The optimizer is given a function that computes the window's gradients, and calls it itself."""

    window: Window

    def accumulate(self, window: Window) -> None:
        self.window = window

    def evaluate(self) -> float:
        """Clear, and accumulate the window's gradients; its loss."""
        self.clear()
        super().accumulate(self.window)
        return self.losses[-1]

    def apply(self) -> bool:
        self.optimizer.step(self.evaluate)
        return True


@variant(settings=Settings(max_grad_norm=None, epochs=1))
class LbfgsByClosure(ByClosure):
    """LBFGS computes the gradients of a window several times in each step."""

    def make_optimizer(self) -> Optimizer:
        return torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=3)


@variant(settings=Settings(max_grad_norm=None))
class SamByClosure(ByClosure):
    """SAM computes the gradients twice: here, and at the worst neighbour, inside its step."""

    def make_optimizer(self) -> Optimizer:
        rate = self.settings.learning_rate
        return SharpnessAware(self.model.parameters(), torch.optim.SGD, 0.05, lr=rate, momentum=0.9)

    def accumulate(self, window: Window) -> None:
        super().accumulate(window)
        self.evaluate()


@variant(settings=Settings(max_grad_norm=None))
class AdamwByClosure(ByClosure):
    """AdamW calls the closure once, before it steps."""
