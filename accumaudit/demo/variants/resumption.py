"""What a loop reports, saves and takes up again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import accumaudit
from accumaudit.demo.checkpoints import CheckpointedLoop, State
from accumaudit.demo.data import Batch
from accumaudit.demo.loop import Loop, Settings, Window
from accumaudit.demo.registry import against_advice, variant
from accumaudit.demo.variants.scaling import SCALED, Overflowing


@variant()
class Reporting(Loop):
    """The loop reports what it counts, in updates and valid tokens of all ranks, and its plan."""

    tokens_so_far = 0

    def attach(self, **instead: Any) -> accumaudit.Audit:
        audit = super().attach(**instead)
        audit.declare(
            planned_updates=self.settings.updates,
            warmup_updates=self.settings.warmup_updates,
            peak_learning_rate=self.settings.learning_rate,
        )
        return audit

    def step(self, window: Window) -> None:
        super().step(window)
        self.tokens_so_far += window.tokens
        self.audit.report(
            global_valid_tokens=window.tokens,
            cumulative_train_tokens=self.tokens_so_far,
            global_step=self.updates,
        )


@variant(launches=2)
class Resumed(CheckpointedLoop):
    """The first launch stops after two thirds of the epochs; the second takes its checkpoint up."""

    @property
    def checkpoint(self) -> Path:
        return self.log_dir / "checkpoints" / f"rank-{self.rank}.pt"

    def train(self) -> None:
        resumes = self.checkpoint.exists()
        with self.attach() as self.audit:
            if resumes:
                self.restore(torch.load(self.checkpoint, weights_only=True))
                self.train_epochs(range(self.settings.epochs - 1, self.settings.epochs))
            else:
                self.train_epochs(range(self.settings.epochs - 1))
                self.save()

    def save(self) -> None:
        self.checkpoint.parent.mkdir(exist_ok=True)
        torch.save(self.state(), self.checkpoint)


@variant(launches=2)
class ResumedWithoutAudit(Resumed):
    """The checkpoint does not hold the audit's counts."""

    def restore_audit(self, state: State) -> None:
        pass


@variant(launches=2, settings=SCALED)
class ResumedUnderScaler(Resumed, Overflowing):
    """The checkpoint holds the scale; each launch has skipped a step."""

    OVERFLOWS = (3,)


@variant(launches=2, settings=SCALED)
class ResumedWithoutScale(ResumedUnderScaler):
    """The second launch begins at the first scale again."""

    def restore_scaler(self, state: State) -> None:
        pass


@variant(launches=2)
class ScheduleFastForwarded(Resumed):
    """The second launch has no state of the schedule, and steps it to where it was."""

    def restore_schedule(self, state: State) -> None:
        with against_advice():
            for _ in range(self.updates):
                if self.scheduler is not None:
                    self.scheduler.step()


@variant(launches=2)
class SecondStage(Resumed):
    """The second launch goes on at a tenth of the rate with a warm-up of its own, and declares this."""

    def __init__(self, settings: Settings, log_dir: Path) -> None:
        if any(log_dir.glob("checkpoints/*")):
            rate = settings.learning_rate / 10
            settings = replace(settings, epochs=1, learning_rate=rate, warmup_updates=1)
        super().__init__(settings, log_dir)

    def restore_schedule(self, state: State) -> None:
        """This stage has a schedule of its own; the rate of the old one came with the optimizer."""
        assert self.scheduler is not None
        for group, rate in zip(self.optimizer.param_groups, self.scheduler.get_last_lr(), strict=True):
            group |= {"lr": rate, "initial_lr": self.settings.learning_rate}
        self.audit.declare(
            resumed_from_update=state["updates"],
            planned_updates=state["updates"] + self.settings.updates,
            warmup_updates=self.settings.warmup_updates,
            peak_learning_rate=self.settings.learning_rate,
        )


@variant(launches=2)
class SecondFreshRun(Loop):
    """The training is started again from nothing, in the folder of the first."""


@variant(launches=3)
class FreshRunAfterResume(Resumed):
    """The first run was resumed; then the training is started again from nothing, in the same folder."""

    def train(self) -> None:
        resumed = self.checkpoint.exists()
        super().train()
        if resumed:
            self.checkpoint.unlink()


@variant()
class CheckpointsNamed(Loop):
    """Checkpoints are named by updates, by epochs, or by no number at all."""

    def train_epochs(self, epochs: Iterable[int]) -> None:
        for epoch in epochs:
            super().train_epochs([epoch])
            for name in self.names(epoch):
                self.audit.mark("checkpoint", name=name)

    def names(self, epoch: int) -> list[str]:
        return [
            f"checkpoint-{self.updates}",
            f"epoch-{epoch + 1}.pt",
            f"epoch={epoch}-step={self.updates}.ckpt",
            f"tiny-32x2-{self.updates:07}.safetensors",
            "last.pt",
        ]


@variant()
class LossLogged(Loop):
    """The loop reports the loss of each update over all ranks, as it was measured."""

    def step(self, window: Window) -> None:
        super().step(window)
        self.audit.report(loss=self.mean_over_ranks(self.losses[-1]))


@variant()
class LossSmoothed(LossLogged):
    """The loop reports a running mean of its losses."""

    def step(self, window: Window) -> None:
        Loop.step(self, window)
        self.audit.report(loss=self.mean_over_ranks(sum(self.losses) / len(self.losses)))


@variant()
class LossOfLastMicroStep(Loop):
    """The loop reports the mean loss of the window's last micro-step on this rank."""

    def loss(self, batch: Batch, window: Window) -> Tensor:
        loss = super().loss(batch, window)
        self.last = loss.detach() * window.tokens / (self.world_size * max(1, batch.valid_tokens))
        return loss

    def step(self, window: Window) -> None:
        super().step(window)
        self.audit.report(loss=self.last)


@variant(launches=2)
class ResumedAfterWarmup(Resumed, Reporting):
    """The rate stays at its declared peak after the warm-up, so the second launch begins there."""

    def rate(self, update: int) -> float:
        warmup = self.settings.warmup_updates or 0
        return min(1.0, (update + 1) / (warmup + 1))

    def state(self) -> State:
        return super().state() | {"tokens_so_far": self.tokens_so_far}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.tokens_so_far = state["tokens_so_far"]


@variant(launches=2)
class ScheduledDecay(Resumed):
    """The weight decay rises with every update, by hand, and goes on where it was."""

    def apply(self) -> bool:
        for group in self.optimizer.param_groups:
            group["weight_decay"] = 0.01 * (1 + self.updates)
        return super().apply()
