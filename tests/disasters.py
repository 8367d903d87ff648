"""Trainings that go wrong for one reason, and the same trainings as they should be."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from accumaudit.demo.checkpoints import State
from accumaudit.demo.data import Batch
from accumaudit.demo.faults.normalisation import FixedDivisorTail
from accumaudit.demo.loop import Loop, Settings
from accumaudit.demo.variants import combined
from accumaudit.demo.variants.reduction import ReducedByTheLoop
from accumaudit.demo.variants.resumption import Resumed
from tests.processes import Processes
from tests.trainings import environment

WARMING_UP: Final = Settings(
    accumulation_steps=2,
    batch_size=4,
    batches=20,
    epochs=14,
    warmup_updates=100,
    learning_rate=0.03,
    max_grad_norm=None,
    answer_length=20,
)
"""Ten updates an epoch."""
WITH_TAILS: Final = replace(WARMING_UP, batches=21)
"""The same, with a short window at the end of each epoch."""
HALF_PRECISION: Final = Settings(
    accumulation_steps=2, batches=20, epochs=4, precision="fp16", loss_scale=2.0**16, warmup_updates=10
)


class ResumedAfterAnEpoch(Resumed):
    """A checkpoint is saved after each epoch, and a second launch goes on from the first of them."""

    DOUBLINGS = 8
    """Of the rate, in the warm-up."""

    def rate(self, update: int) -> float:
        """Doubled with every so many updates of the warm-up, and constant after it."""
        warmup = self.settings.warmup_updates or 1
        return float(2.0 ** min(0.0, self.DOUBLINGS * (update / warmup - 1)))

    def train(self) -> None:
        resumes = self.checkpoint.exists()
        with self.attach() as self.audit:
            if resumes:
                self.restore(torch.load(self.checkpoint, weights_only=True))
            for epoch in range(1, self.settings.epochs) if resumes else range(1):
                self.train_epochs([epoch])
                self.save()
                self.audit.mark("checkpoint", name=f"epoch-{epoch + 1}.pt")


class RateScaledAgain(ResumedAfterAnEpoch):
    """A resume multiplies the rate by the size of the batch, which the checkpoint's rate had in it.

    At first the loss falls all the faster. As the warm-up goes on, the rate becomes too high: it explodes.
    """

    FACTOR = 16.0

    def restore_schedule(self, state: State) -> None:
        super().restore_schedule(state)
        assert self.scheduler is not None
        self.scheduler.base_lrs = [rate * self.FACTOR for rate in self.scheduler.base_lrs]
        for group in self.optimizer.param_groups:
            group["lr"] *= self.FACTOR


class ReducedOverGroup(ReducedByTheLoop):
    """The loop averages the gradients over a group of ranks that it made itself."""

    group: Any = None

    def members(self) -> int:
        return self.world_size

    def reduce(self) -> None:
        self.group = self.group or dist.new_group(range(self.members()))
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # where this rank is none of the group, torch warns and does nothing
            for gradient in self.gradients():
                dist.all_reduce(gradient, group=self.group)
                gradient /= self.world_size


class LastRankLeftOut(ReducedOverGroup):
    """The group was made for one rank fewer: the gradients of the last one stay its own."""

    def members(self) -> int:
        return self.world_size - 1


class NeverFinite(Loop):
    """From some update on the gradients are not finite, at whatever scale."""

    LAST_GOOD = 12

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits, labels = super().forward(batch)
        if self.updates >= self.LAST_GOOD:
            logits.register_hook(lambda gradient: torch.full_like(gradient, math.nan))
        return logits, labels


class ScheduleGoesOn(NeverFinite):
    """Besides, the schedule moves where the scaler skips the step."""

    def apply(self) -> bool:
        applied = super().apply()
        self.updates -= not applied
        return True


@dataclass(frozen=True)
class Disaster:
    """A training, and how it is started."""

    loops: tuple[type[Loop], ...]
    settings: Settings
    launches: int = 1
    ranks: int = 1

    def train(self, folder: Path, processes: Processes) -> None:
        """Train in this process, or in those that are given where there are several ranks."""
        folder.mkdir()
        name = next(name for name, one in DISASTERS.items() if one is self)
        for launch in range(self.launches):
            if self.ranks == 1:
                train_here(name, str(folder), launch)
            else:
                processes.call("tests.disasters:train_here", name=name, folder=str(folder), launch=launch)


def train_here(name: str, folder: str, launch: int) -> None:
    """Train one launch on this process's rank."""
    disaster = DISASTERS[name]
    with environment(ACCUMAUDIT="1", TORCHELASTIC_RESTART_COUNT=str(launch)):
        combined(*disaster.loops)(disaster.settings, Path(folder)).train()


SHORT: Final = Settings(batches=10)

DISASTERS: Final[dict[str, Disaster]] = {
    "rate": Disaster((RateScaledAgain,), WARMING_UP, launches=2),
    "rate and tails": Disaster((RateScaledAgain, FixedDivisorTail), WITH_TAILS, launches=2),
    "rate, right": Disaster((ResumedAfterAnEpoch,), WARMING_UP, launches=2),
    "rank": Disaster((LastRankLeftOut,), SHORT, ranks=3),
    "rank, right": Disaster((ReducedOverGroup,), SHORT, ranks=3),
    "scale": Disaster((NeverFinite,), HALF_PRECISION),
    "scale and schedule": Disaster((ScheduleGoesOn,), HALF_PRECISION),
    "scale, right": Disaster((), HALF_PRECISION),
}
