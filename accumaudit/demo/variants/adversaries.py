"""Two models that train against each other: which characters are in a text, a real or a made up one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its name everywhere
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import accumaudit
from accumaudit.demo.data import VOCABULARY_SIZE, Batch
from accumaudit.demo.loop import Window
from accumaudit.demo.registry import variant
from accumaudit.demo.variants.optimizers import SeveralOptimizers
from accumaudit.demo.variants.scaling import SCALED

NOISE: Final = 8
MADE_UP, REAL = 0, 1

Turn = tuple[Optimizer, Callable[[Batch, Window], Tensor]]


class Adversaries(SeveralOptimizers):
    """The discriminator learns to tell real from made up; then the generator learns to deceive it."""

    def make_model(self) -> nn.Module:
        # Ranks that draw the same noise would see the same data.
        self.random = torch.Generator().manual_seed(self.settings.seed + self.rank)
        generator = nn.Sequential(nn.Linear(NOISE, 32), nn.Tanh(), nn.Linear(32, VOCABULARY_SIZE))
        discriminator = nn.Sequential(nn.Linear(VOCABULARY_SIZE, 32), nn.Tanh(), nn.Linear(32, 2))
        self.generator, self.discriminator = self.wrapped(generator), self.wrapped(discriminator)
        return nn.ModuleList([self.discriminator, self.generator])

    def wrapped(self, model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model) if self.world_size > 1 else model

    def make_optimizers(self) -> list[Optimizer]:
        rate = self.settings.learning_rate
        return [
            torch.optim.Adam(model.parameters(), lr=rate, betas=(0.5, 0.999))
            for model in (self.discriminator, self.generator)
        ]

    def attach(self, **instead: Any) -> accumaudit.Audit:
        return super().attach(loss_unit="sample", **instead)

    def count(self, batches: list[Batch]) -> int:
        return sum(len(batch.labels) for batch in batches)

    def turns(self) -> list[Turn]:
        """Whose turn it is, and at what."""
        return [(self.optimizers[0], self.discriminate), (self.optimizers[1], self.deceive)]

    def update(self, window: Window) -> None:
        for optimizer, turn in self.turns():
            optimizer.zero_grad()
            for batch in window.batches:
                self.scaler_of(optimizer).scale(turn(batch, window)).backward()
            self.step_one(optimizer)
        self.advance_schedule(window)

    def discriminate(self, batch: Batch, window: Window) -> Tensor:
        with torch.no_grad():
            made_up = self.make_up(batch)
        texts = torch.cat([frequencies(batch), made_up])
        labels = torch.tensor([REAL, MADE_UP]).repeat_interleave(len(batch.labels))
        return self.total(self.discriminator(texts), labels, 2 * window.tokens)

    def deceive(self, batch: Batch, window: Window) -> Tensor:
        labels = torch.full((len(batch.labels),), REAL)
        judged = self.discriminator(self.make_up(batch))
        return self.total(judged, labels, window.tokens)

    def total(self, logits: Tensor, labels: Tensor, divisor: float) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="sum") * self.world_size / divisor

    def make_up(self, batch: Batch) -> Tensor:
        noise = torch.randn(len(batch.labels), NOISE, generator=self.random)
        made_up: Tensor = self.generator(noise).softmax(-1)
        return made_up

    def scaler_of(self, optimizer: Optimizer) -> torch.amp.GradScaler:
        return self.scaler

    def step_one(self, optimizer: Optimizer) -> None:
        self.scaler_of(optimizer).step(optimizer)
        self.scaler_of(optimizer).update()


def frequencies(batch: Batch) -> Tensor:
    """How often each character is in each text, as shares."""
    return F.one_hot(batch.input_ids, VOCABULARY_SIZE).float().mean(dim=1)


@variant()
class AdversariesTogether(Adversaries):
    """One audit watches both models; the generator's backward leaves gradients in the discriminator too."""


@variant()
class AdversariesFrozenInTurn(Adversaries):
    """The discriminator's parameters need no gradients while the generator learns."""

    def deceive(self, batch: Batch, window: Window) -> Tensor:
        self.discriminator.requires_grad_(False)
        loss = super().deceive(batch, window)
        self.discriminator.requires_grad_(True)
        return loss


@variant()
class DiscriminatorTwice(Adversaries):
    """The discriminator has two turns for each of the generator; their schedules move once for both."""

    def turns(self) -> list[Turn]:
        return [(self.optimizers[0], self.discriminate), *super().turns()]


@variant()
class AdversariesApart(Adversaries):
    """Each model has an audit and a folder of its own."""

    def train(self) -> None:
        with self.attach_one(0, "discriminator") as self.audit, self.attach_one(1, "generator"):
            self.train_epochs(range(self.settings.epochs))

    def attach_one(self, number: int, name: str) -> accumaudit.Audit:
        return accumaudit.attach(
            getattr(self, name),
            self.optimizers[number],
            self.schedulers[number],
            log_dir=self.log_dir / name,
            accumulation_steps=self.settings.accumulation_steps,
            loss_unit="sample",
            summary=False,
        )


@variant(settings=SCALED)
class AdversariesUpdatedOnce(Adversaries):
    """One scaler serves both, and is updated once, when both have stepped."""

    def step_one(self, optimizer: Optimizer) -> None:
        self.scaler.step(optimizer)
        if optimizer is self.optimizers[-1]:
            self.scaler.update()


@variant(settings=SCALED)
class AdversariesUpdatedInTurn(Adversaries):
    """One scaler serves both, and is updated after each step."""


@variant(settings=SCALED)
class TwoScalers(Adversaries):
    """Each optimizer has a scaler of its own; the generator's backward leaves its scale in the other too."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.scalers = [self.scaler, torch.amp.GradScaler("cpu", init_scale=2.0**6, growth_interval=3)]

    def scaler_of(self, optimizer: Optimizer) -> torch.amp.GradScaler:
        return self.scalers[self.optimizers.index(optimizer)]
