"""Which micro-steps there are."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from accumaudit.demo.data import IGNORED, Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import variant
from accumaudit.demo.variants.losses import GradientsRescaled


@variant(settings=Settings(accumulation_steps=128, batches=255, batch_size=1, epochs=1))
class TailOfMany(Loop):
    """A tail of 127 where the whole windows are of 128."""


@variant()
class TailLeftOut(Loop):
    """A short last window is not computed at all."""

    def windows(self) -> Iterator[list[Batch]]:
        for batches in super().windows():
            if len(batches) == self.settings.accumulation_steps:
                yield batches


@variant()
class ZeroTokenMicroStep(Loop):
    """The last micro-step of every window has no valid token."""

    def windows(self) -> Iterator[list[Batch]]:
        for batches in super().windows():
            if len(batches) > 1:
                batches[-1].labels.fill_(IGNORED)
            yield batches


@variant(ranks=(2,))
class ZeroTokenRank(Loop):
    """The last rank has no valid token in the second window."""

    def windows(self) -> Iterator[list[Batch]]:
        for number, batches in enumerate(super().windows(), start=1):
            if number == 2 and self.rank == self.world_size - 1:
                for batch in batches:
                    batch.labels.fill_(IGNORED)
            yield batches


@variant()
class NonFiniteSkipped(GradientsRescaled):
    """A micro-step whose loss is not finite has no backward, and its tokens are in no divisor."""

    forwards = 0

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, labels = super().forward(batch)
        self.forwards += 1
        return (logits * math.inf if self.forwards == 6 else logits), labels

    def accumulate(self, window: Window) -> None:
        self.tokens_used = 0
        super().accumulate(window)

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        with self.reduction(number, window):
            loss = self.loss(batch, window)
            if not loss.isfinite():
                return 0.0
            self.scaler.scale(loss).backward()
        self.tokens_used += batch.valid_tokens
        return loss.item()

    def before_step(self, window: Window) -> None:
        self.rescale(self.world_size / self.sum_over_ranks(self.tokens_used))
