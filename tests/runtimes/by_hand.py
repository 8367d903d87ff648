"""The demo's loop around an Accelerator, so that its faults are those of a loop that Accelerate wraps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import accumaudit
from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Window
from tests.runtimes import accelerate


class Accelerated(Loop):
    """All but the windows is an Accelerator's: model, optimizer, schedule, backward and scaler."""

    accelerator: Any

    @staticmethod
    @contextlib.contextmanager
    def surroundings() -> Iterator[None]:
        """What the library keeps for the process ends with the training."""
        with accelerate.fresh() as Accelerated.accelerator:
            try:
                yield
            finally:
                del Accelerated.accelerator

    def make_model(self) -> nn.Module:
        if (scale := self.settings.loss_scale) is not None:
            accelerate.fp16(self.accelerator, scale)
            self.accelerator.scaler.set_growth_interval(self.settings.growth_interval)
        prepared: nn.Module = self.accelerator.prepare_model(super().make_model())
        return prepared

    def make_optimizer(self) -> Optimizer:
        prepared: Optimizer = self.accelerator.prepare_optimizer(super().make_optimizer())
        return prepared

    def make_scheduler(self, optimizer: Optimizer) -> LRScheduler:
        prepared: LRScheduler = self.accelerator.prepare_scheduler(
            super().make_scheduler(getattr(optimizer, "optimizer", optimizer))
        )
        return prepared

    def make_scaler(self) -> torch.amp.GradScaler:
        scaler: torch.amp.GradScaler | None = self.accelerator.scaler
        return super().make_scaler() if scaler is None else scaler

    def attach(self, **instead: Any) -> accumaudit.Audit:
        given: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "log_dir": self.log_dir,
            "accumulation_steps": self.settings.accumulation_steps,
            "max_grad_norm": self.settings.max_grad_norm,
            "dataloader": self.loader,
            "summary": False,
        }
        return accumaudit.attach_accelerate(self.accelerator, **given | instead)

    def micro_step(self, number: int, batch: Batch, window: Window) -> float:
        with self.reduction(number, window):
            loss = self.loss(batch, window)
            self.accelerator.backward(loss)
        return loss.item()

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        found: contextlib.AbstractContextManager[None] = self.accelerator.no_sync(self.model)
        return found

    def unscale(self) -> None:
        self.accelerator.unscale_gradients()

    def apply(self) -> bool:
        """The prepared optimizer asks the scaler by itself."""
        self.optimizer.step()
        return not self.accelerator.optimizer_step_was_skipped
