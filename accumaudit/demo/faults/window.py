"""Micro-steps that are in the wrong window, or in none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Final

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import fault
from accumaudit.demo.variants.losses import GradientsRescaled

WHOLE_WINDOWS: Final = 12
"""Batches of an epoch that has no tail."""


@fault("ACC201", settings=Settings(batches=WHOLE_WINDOWS, warmup_updates=None))
class StepInsideWindow(Loop):
    """The optimizer steps after every second micro-step, although four are declared."""

    def windows(self) -> Iterator[list[Batch]]:
        batches = iter(self.loader)
        while window := list(islice(batches, self.settings.accumulation_steps // 2)):
            yield window


@fault("ACC202", settings=Settings(batches=WHOLE_WINDOWS))
class GradientsClearedInsideWindow(Loop):
    """The gradients are cleared before every micro-step, so that only the last one counts."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        self.clear()
        return super().micro_step(number, batch, window)


@fault("ACC203")
class StaleGradients(Loop):
    """The gradients are never cleared, so that every update holds those of all updates before it."""

    def clear(self) -> None:
        pass


@fault("ACC204", settings=Settings(batches=15, warmup_updates=None))
class WindowTooLong(Loop):
    """Off by one: the optimizer steps after five micro-steps, although four are declared."""

    def windows(self) -> Iterator[list[Batch]]:
        batches = iter(self.loader)
        while window := list(islice(batches, self.settings.accumulation_steps + 1)):
            yield window


@fault("ACC205", settings=Settings(warmup_updates=None))
class DroppedTail(Loop):
    """The micro-steps of a short last window are computed, never applied, and cleared with the next."""

    def update(self, window: Window) -> None:
        self.clear()
        if len(window.batches) == self.settings.accumulation_steps:
            super().update(window)
        else:
            self.accumulate(window)


@fault("ACC206", settings=Settings(epochs=2, warmup_updates=None))
class WindowStraddlesEpochs(GradientsRescaled):
    """Micro-steps are counted on from epoch to epoch, so a window begins in one and ends in the next."""

    def train_epochs(self, epochs: Iterable[int]) -> None:
        batches: list[Batch] = []
        for epoch in epochs:
            self.sampler.set_epoch(epoch)
            for batch in self.loader:
                batches.append(batch)
                self.micro_step(len(batches), batch, Window(batches, 0))
                if len(batches) == self.settings.accumulation_steps:
                    self.finish(Window(batches, self.sum_over_ranks(self.count(batches))))
                    batches = []

    def reduction(self, number: int, window: Window) -> AbstractContextManager[None]:
        return nullcontext() if number == self.settings.accumulation_steps else self.no_sync()

    def finish(self, window: Window) -> None:
        self.unscale()
        self.before_step(window)
        self.clip()
        self.step(window)
        self.clear()
