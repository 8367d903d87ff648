"""What shows over the whole of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its name everywhere

from accumaudit.demo.data import IGNORED, Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import fault

LONG: Final = Settings(
    accumulation_steps=1,
    batch_size=4,
    batches=8,
    epochs=16,
    learning_rate=1e-2,
    warmup_updates=None,
    max_grad_norm=None,
)
"""128 small updates at a constant rate."""


@fault("ACC901", settings=LONG)
class DivergenceOnset(Loop):
    """A second stage is given a rate with a wrong exponent: what was learned is lost for good."""

    def before_step(self, window: Window) -> None:
        if self.updates == 90:
            for group in self.optimizer.param_groups:
                group["lr"] = 3.0


@fault("ACC902", settings=LONG)
class GradientSpike(Loop):
    """One batch is broken: its logits are fifty times as large as they should be."""

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, labels = super().forward(batch)
        return (50 * logits if self.updates == 90 else logits), labels


@fault("ACC903", settings=Settings(accumulation_steps=2, batches=8, epochs=16, warmup_updates=None))
class BatchSizeChanged(Loop):
    """In the midst of the run the loader takes twice as many rows, and an update twice as many samples."""

    def windows(self) -> Iterator[list[Batch]]:
        if self.updates >= 24 and self.loader.batch_sampler is not None:
            vars(self.loader.batch_sampler)["batch_size"] = 2 * self.settings.batch_size
        return super().windows()


@fault("ACC904", settings=Settings(epochs=8))
class FrozenOrPlaceholderField(Loop):
    """The loss that is logged is for ever that of the first update."""

    def step(self, window: Window) -> None:
        super().step(window)
        self.audit.report(loss=self.losses[0])


@fault("ACC905")
class EquivalentBatchShrunk(Loop):
    """Each sequence takes the mean over its own tokens, so those of long answers hardly count."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        logits, _ = self.forward(batch)
        rows = zip(logits.split(batch.labels.shape[1]), batch.labels, strict=True)
        means = [F.cross_entropy(row, row_labels, ignore_index=IGNORED) for row, row_labels in rows]
        share = batch.valid_tokens * self.world_size / window.tokens
        return torch.stack(means).mean() * share
