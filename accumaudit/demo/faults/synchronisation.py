"""Gradients that are reduced over the ranks at the wrong time, or never."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Window
from accumaudit.demo.registry import fault
from accumaudit.demo.variants.sharding import FullyShardNoSync


@fault("ACC501", ranks=(2,))
class UpdateWithoutSync(Loop):
    """No micro-step reduces the gradients: each rank trains a model of its own."""

    def reduction(self, number: int, window: Window) -> AbstractContextManager[None]:
        return self.no_sync()


@fault("ACC502", ranks=(2,))
class SyncOnWrongMicroStep(Loop):
    """The first micro-step reduces the gradients, and the others add what the other ranks never see."""

    def reduction(self, number: int, window: Window) -> AbstractContextManager[None]:
        return nullcontext() if number == 1 else self.no_sync()


@fault("ACC503", ranks=(2,))
class NoSyncAroundBackwardOnly(Loop):
    """no_sync holds the backward alone; DDP decides at the forward, and reduces every micro-step."""

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        loss = self.loss(batch, window)
        with self.reduction(number, window):
            self.scaler.scale(loss).backward()
        return loss.item()


@fault("ACC504", ranks=(2,))
class SyncEveryMicroStep(Loop):
    """Every micro-step reduces the gradients: right, and four times the communication."""

    def reduction(self, number: int, window: Window) -> AbstractContextManager[None]:
        return nullcontext()


@fault("ACC505", ranks=(2,))
class GradientsNotReduced(Loop):
    """The inner module's forward is called as a method, past DDP; nothing is reduced, no flag shows it."""

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        assert isinstance(self.model, DistributedDataParallel)
        logits = self.model.module.forward(batch.input_ids, batch.attention_mask)
        return logits.flatten(0, 1), batch.labels.flatten()


@fault("ACC506", ranks=(2,))
class UnshardedGradientsHeld(FullyShardNoSync):
    """FSDP reduces in the last micro-step alone, and holds whole gradients until then."""
