"""Ranks that do not do the same."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, Subset

from accumaudit.demo.checkpoints import State
from accumaudit.demo.data import Batch, Exercise
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.model import TinyTransformer
from accumaudit.demo.registry import fault
from accumaudit.demo.variants.reduction import ReducedByTheLoop
from accumaudit.demo.variants.resumption import Resumed
from accumaudit.demo.variants.scaling import SCALED, Overflowing


@fault("ACC601", ranks=(2,), settings=Settings(batches=40, epochs=1))
class RankStoppedEarly(Loop):
    """The last rank has less data and leaves; DDP's join lets the others go on without it."""

    WINDOWS_OF_THE_LAST = 8

    def make_sampler(self) -> DistributedSampler[Exercise]:
        sampler = super().make_sampler()
        if self.rank < self.world_size - 1:
            return sampler
        rows = self.WINDOWS_OF_THE_LAST * self.settings.accumulation_steps * self.settings.batch_size
        return DistributedSampler(Subset(sampler.dataset, range(rows)), num_replicas=1, rank=0)

    def train(self) -> None:
        assert isinstance(self.model, Joinable)
        with Join([self.model]):
            super().train()

    def sum_over_ranks(self, number: int) -> int:
        everyone_is_there = self.updates < self.WINDOWS_OF_THE_LAST
        return super().sum_over_ranks(number) if everyone_is_there else number


@fault("ACC602", ranks=(2,), settings=SCALED)
class SkipDisagreement(ReducedByTheLoop, Overflowing):
    """Each rank looks for an overflow before the gradients are added up: one skips, and the others step."""

    def unscale(self) -> None:
        self.scaler.unscale_(self.optimizer)
        for gradient in self.gradients():
            gradient.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        self.reduce()

    def overflow(self, logits: Tensor) -> None:
        """In the gradient of the head's bias alone, so that the others can be used."""
        assert isinstance(self.model, TinyTransformer)
        bias = self.model.head.bias

        def once(gradient: Tensor) -> Tensor:
            handle.remove()
            return torch.full_like(gradient, math.inf)

        handle = bias.register_hook(once)


@fault("ACC603", ranks=(2,))
class RateDisagreement(Loop):
    """The rate is scaled by the rank where the number of ranks was meant."""

    def rate(self, update: int) -> float:
        return super().rate(update) * (self.rank + 1)


@fault("ACC604", ranks=(2,))
class GradientDisagreement(Loop):
    """After the reduction each rank adds noise of its own to the gradients."""

    def before_step(self, window: Window) -> None:
        generator = torch.Generator().manual_seed(1000 * self.rank + self.updates)
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad += 0.01 * torch.randn(parameter.grad.shape, generator=generator)


@fault("ACC605", ranks=(2,))
class ParameterDisagreement(Loop):
    """The head is initialised anew, from each rank's own seed, when DDP has made the models equal."""

    def make_model(self) -> nn.Module:
        model = super().make_model()
        assert isinstance(model, DistributedDataParallel)
        torch.manual_seed(self.settings.seed + self.rank)
        model.module.head.reset_parameters()
        return model


@fault("ACC606", ranks=(2,))
class WindowSizeDisagreement(Loop):
    """The last rank leaves the last batch of every window out; its windows are shorter than the others'."""

    def windows(self) -> Iterator[list[Batch]]:
        for batches in super().windows():
            yield batches[:-1] if self.rank == self.world_size - 1 else batches


@fault("ACC607", ranks=(2,), settings=SCALED)
class ScaleDisagreement(Loop):
    """The last rank starts at another loss scale than the others, and each unscales by its own."""

    def make_scaler(self) -> torch.amp.GradScaler:
        scale = (self.settings.loss_scale or 1.0) * (2.0 if self.rank == self.world_size - 1 else 1.0)
        return torch.amp.GradScaler("cpu", init_scale=scale)


@fault("ACC608", ranks=(2,))
class IdenticalDataOnRanks(Loop):
    """The sampler does not know of the ranks, and all of them see the same rows."""

    def make_sampler(self) -> DistributedSampler[Exercise]:
        sampler = super().make_sampler()
        rows = range(self.settings.batches * self.settings.batch_size)
        return DistributedSampler(Subset(sampler.dataset, rows), num_replicas=1, rank=0)


@fault("ACC609", ranks=(2,), launches=2)
class OptimizerStateDisagreement(Resumed):
    """The first rank alone takes up the optimizer's state; the others begin with empty moments."""

    def restore_optimizer(self, state: State) -> None:
        if self.rank > 0:
            state["optimizer"]["state"] = {}
        super().restore_optimizer(state)
